"""Tables in, posteriors out: the layer under the command line, and scikit-learn's estimators."""

from tacit.estimators.fitting import FittedTable, TableFit, fit_table, load_fitted_table
from tacit.estimators.preparing import Prepared, prepare
from tacit.estimators.recipe import Recipe

__all__ = [
    "FittedTable",
    "Prepared",
    "Recipe",
    "TableFit",
    "fit_table",
    "load_fitted_table",
    "prepare",
]
