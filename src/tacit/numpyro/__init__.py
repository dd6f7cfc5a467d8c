"""Private inference for NumPyro programs, with the interface of `numpyro.infer.SVI`."""

from tacit.numpyro.method import DPSVIState, PrivateLoss
from tacit.numpyro.posterior import ProgramPosterior, load_program_posterior, to_arviz
from tacit.numpyro.svi import DPSVI

__all__ = [
    "DPSVI",
    "DPSVIState",
    "PrivateLoss",
    "ProgramPosterior",
    "load_program_posterior",
    "to_arviz",
]
