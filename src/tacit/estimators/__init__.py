"""Scikit-learn's interface: private estimators of tables, and a private search."""

from tacit.estimators.inputs import PrivateScaler, forget_fits
from tacit.estimators.private_bayes import PrivateBayesClassifier, PrivateBayesRegressor
from tacit.estimators.table_estimator import Uncertainty
from tacit.estimators.tuning import Tuned, tune

__all__ = [
    "PrivateBayesClassifier",
    "PrivateBayesRegressor",
    "PrivateScaler",
    "Tuned",
    "Uncertainty",
    "forget_fits",
    "tune",
]
