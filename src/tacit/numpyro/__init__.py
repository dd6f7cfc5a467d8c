"""Private inference for NumPyro programs, with the interface of `numpyro.infer.SVI`."""

from tacit.numpyro.method import PrivateLoss
from tacit.numpyro.posterior import load_program_posterior, to_arviz
from tacit.numpyro.svi import DPSVI

__all__ = ["DPSVI", "PrivateLoss", "load_program_posterior", "to_arviz"]
