"""Certificates from a posterior: what no attack can change, and with what confidence.

`certify_predictive` and `certified_curve` certify what the draws predict together, `robust_draws`
each draw on its own, and `smooth` makes any classifier certifiable in Euclidean norm. All of them
are post-processing and cost nothing on public or consented inputs. On private test records, a
published certified accuracy is a release of its own.
"""

from tacit.certify.draws import Bounds, Intervals, Linear, RobustDraws, robust_draws
from tacit.certify.intervals import interval_bounds, interval_bounds_over_weights
from tacit.certify.linear import EuclideanBall, linear_bounds
from tacit.certify.predictive import (
    Certificate,
    MeanLogit,
    MeanSoftmax,
    Predictor,
    certified_curve,
    certify_predictive,
)
from tacit.certify.smoothing import ABSTAINED, Smoothed, smooth
from tacit.certify.training import certified

__all__ = [
    "ABSTAINED",
    "Bounds",
    "Certificate",
    "EuclideanBall",
    "Intervals",
    "Linear",
    "MeanLogit",
    "MeanSoftmax",
    "Predictor",
    "RobustDraws",
    "Smoothed",
    "certified",
    "certified_curve",
    "certify_predictive",
    "interval_bounds",
    "interval_bounds_over_weights",
    "linear_bounds",
    "robust_draws",
    "smooth",
]
