"""Scikit-learn's interface: private estimators of tables, and a private search."""

from tacit.estimators.inputs import PrivateScaler
from tacit.estimators.private_bayes import PrivateBayesClassifier, PrivateBayesRegressor
from tacit.estimators.tuning import tune

__all__ = ["PrivateBayesClassifier", "PrivateBayesRegressor", "PrivateScaler", "tune"]
