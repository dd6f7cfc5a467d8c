"""Certificates from a posterior: what no attack can change, and with what confidence.

`certify_predictive` and `certified_curve` certify what the draws predict together, `robust_draws`
each draw on its own, and `smooth` makes any classifier certifiable in Euclidean norm. All of them
are post-processing and cost nothing on public or consented inputs. On private test records, a
published certified accuracy is a release of its own.
"""

from tacit.certify.bounding import Bounds, Intervals, Linear
from tacit.certify.draws import RobustDraws, robust_draws
from tacit.certify.predictive import Certificate, certified_curve, certify_predictive
from tacit.certify.proportions import clopper_pearson, clopper_pearson_lower
from tacit.certify.rules import MeanLogit, MeanSoftmax, Predictor
from tacit.certify.smoothing import ABSTAINED, Smoothed, smooth

__all__ = [
    "ABSTAINED",
    "Bounds",
    "Certificate",
    "Intervals",
    "Linear",
    "MeanLogit",
    "MeanSoftmax",
    "Predictor",
    "RobustDraws",
    "Smoothed",
    "certified_curve",
    "certify_predictive",
    "clopper_pearson",
    "clopper_pearson_lower",
    "robust_draws",
    "smooth",
]
