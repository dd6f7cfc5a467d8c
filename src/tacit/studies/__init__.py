"""Studies: from a table, a schema and a budget to a run; shared by all front ends."""

from tacit.studies.execution import execute, resume
from tacit.studies.preparation import Prepared, prepare
from tacit.studies.recipe import Recipe
from tacit.studies.study import Study, read_study
from tacit.studies.table_fit import FittedTable, TableFit, fit_table, load_fitted_table

__all__ = [
    "FittedTable",
    "Prepared",
    "Recipe",
    "Study",
    "TableFit",
    "execute",
    "fit_table",
    "load_fitted_table",
    "prepare",
    "read_study",
    "resume",
]
