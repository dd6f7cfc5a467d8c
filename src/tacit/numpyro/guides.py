"""Guides that cannot be private, refused by name with the remedy."""

from typing import Any

from numpyro.infer.autoguide import (
    AutoDAIS,
    AutoLaplaceApproximation,
    AutoSemiDAIS,
)
from numpyro.infer.elbo import Trace_ELBO

from tacit.errors import InvalidArgumentError

__all__ = ["num_particles_of", "require_private_guide"]


def require_private_guide(guide: Any) -> None:
    """Raises for autoguides that look at every record beside the gradient."""
    if isinstance(guide, AutoLaplaceApproximation):
        raise InvalidArgumentError(
            "guide must not be AutoLaplaceApproximation: its covariance is a Hessian that reads"
            " every record without clip or noise. Use AutoMultivariateNormal, which learns the"
            " covariance from the private gradients, or AutoDelta for a point."
        )
    if isinstance(guide, AutoDAIS | AutoSemiDAIS):
        raise InvalidArgumentError(
            f"guide must not be {type(guide).__name__}: it draws latents by moving along gradients"
            " of the records' density, past clip and noise. Use AutoMultivariateNormal,"
            " AutoLowRankMultivariateNormal or a flow such as AutoIAFNormal."
        )


def num_particles_of(loss: Any) -> int:
    """Returns how many particles an objective averages; raises unless it can be split."""
    # Subclasses of Trace_ELBO compute something else.
    if type(loss) is not Trace_ELBO:
        raise InvalidArgumentError(
            "loss must be numpyro.infer.Trace_ELBO, which is a sum over records and a part"
            f" without them; got {type(loss).__name__}. Use Trace_ELBO(num_particles=...)."
        )
    if loss.multi_sample_guide or not loss.sum_sites:
        raise InvalidArgumentError(
            "loss must be a plain Trace_ELBO; got one with multi_sample_guide or without sum_sites."
            " Use Trace_ELBO(num_particles=...)."
        )
    return int(loss.num_particles)
