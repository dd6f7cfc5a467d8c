"""Tables in, posteriors out: the layer under the command line, and scikit-learn's estimators."""

from tacit.estimators.classifier import PrivateBayesClassifier
from tacit.estimators.fitting import FittedTable, TableFit, fit_table, load_fitted_table
from tacit.estimators.preparing import Prepared, prepare
from tacit.estimators.recipe import Recipe
from tacit.estimators.refits import forget_fits
from tacit.estimators.regressor import PrivateBayesRegressor
from tacit.estimators.scaler import PrivateScaler
from tacit.estimators.table_estimator import Uncertainty
from tacit.estimators.tuning import Tuned, tune

__all__ = [
    "FittedTable",
    "Prepared",
    "PrivateBayesClassifier",
    "PrivateBayesRegressor",
    "PrivateScaler",
    "Recipe",
    "TableFit",
    "Tuned",
    "Uncertainty",
    "fit_table",
    "forget_fits",
    "load_fitted_table",
    "prepare",
    "tune",
]
