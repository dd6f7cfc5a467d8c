"""Tables in, posteriors out: the layer under the command line, and scikit-learn's estimators."""

from tacit.estimators.classifier import PrivateBayesClassifier
from tacit.estimators.inputs import PrivateScaler, forget_fits
from tacit.estimators.regressor import PrivateBayesRegressor
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
