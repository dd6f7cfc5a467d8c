"""Certificates from a posterior: what no attack can change, and with what confidence.

`certify_predictive` and `certified_curve` certify what the draws predict together, `robust_draws`
each draw on its own, and `smooth` makes any classifier certifiable in Euclidean norm. All of them
are post-processing and cost nothing on public or consented inputs. On private test records, a
published certified accuracy is a release of its own.
"""

from tacit.certify.draws import Intervals, Linear, robust_draws
from tacit.certify.predictive import Certificate, certify_predictive
from tacit.certify.smoothing import smooth
from tacit.certify.training import certified

__all__ = [
    "Certificate",
    "Intervals",
    "Linear",
    "certified",
    "certify_predictive",
    "robust_draws",
    "smooth",
]
