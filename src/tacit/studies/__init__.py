"""Studies: from a table, a schema and a budget to a run that may be published.

This is the application layer: the command line, scikit-learn's estimators and Python programs
share it, and it prints nothing. A `Study` says what is to be fitted; `prepare` makes a model and a
calibrated plan of its public parts, within a budget and a ledger, without reading a record.
`execute` checks everything, pays, fits and writes the folder of the run, which `resume` goes on
with after an interruption. `fit_table` does the same for records in memory, without a folder.
`evaluate_run` and `certify_run` look at labelled records on stated `Terms`, and warnings and errors
tell the owner what else there is to know.
"""

from tacit.studies.execution import execute, resume
from tacit.studies.labelled import Terms, certify_run, evaluate_run
from tacit.studies.preparation import Prepared, Recipe, prepare
from tacit.studies.study import Study, read_study
from tacit.studies.table_fit import fit_table, load_fitted_table

__all__ = [
    "Prepared",
    "Recipe",
    "Study",
    "Terms",
    "certify_run",
    "evaluate_run",
    "execute",
    "fit_table",
    "load_fitted_table",
    "prepare",
    "read_study",
    "resume",
]
