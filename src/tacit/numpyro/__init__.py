"""Private inference for NumPyro programs, with the interface of `numpyro.infer.SVI`."""

from tacit.numpyro.combining import Combined, combined
from tacit.numpyro.export import to_arviz
from tacit.numpyro.losses import PrivateLoss
from tacit.numpyro.posterior import ProgramPosterior, load_program_posterior
from tacit.numpyro.row_mixture import RowMixture
from tacit.numpyro.rows import RowCode
from tacit.numpyro.state import DPSVIState
from tacit.numpyro.svi import DPSVI
from tacit.numpyro.synthetic import synthetic_tables
from tacit.numpyro.tables import as_table
from tacit.numpyro.twin import twin_guide, twin_program
from tacit.numpyro.utility import Utility, marginal_distances, table_utility

__all__ = [
    "DPSVI",
    "Combined",
    "DPSVIState",
    "PrivateLoss",
    "ProgramPosterior",
    "RowCode",
    "RowMixture",
    "Utility",
    "as_table",
    "combined",
    "load_program_posterior",
    "marginal_distances",
    "synthetic_tables",
    "table_utility",
    "to_arviz",
    "twin_guide",
    "twin_program",
]
