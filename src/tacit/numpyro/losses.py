"""The loss of a private run: a release of its own, or not a number."""

from dataclasses import dataclass, replace
from typing import Any

import dp_accounting
import jax.numpy as jnp
from dp_accounting import DpEvent
from jax import lax
from numpyro.infer import Trace_ELBO

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.events import repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.typing import Key, Query, Scalar, Tree

__all__ = ["PrivateLoss", "num_particles_of", "released_loss"]


@dataclass(frozen=True, kw_only=True)
class PrivateLoss:
    """Asks for private estimates of the loss, which are paid for beside the gradients.

    A loss of the records is one more thing that tells of them, so `tacit.numpyro.DPSVI` returns NaN
    for it unless it is asked for one. The estimate sums the records' own losses, each cut to
    ``[-clip, clip]``, with noise; prior and entropy are added exactly.

    Guarantee:
      Each estimate is one release by the engine with ``noise_ratio`` times the noise multiplier of
      the gradients; its cost is in that of the run. It is made on a batch of its own, which is paid
      for as such; or, where batches are the user's, on that of the gradient, and the two are paid
      for as one release with less noise. The cost of all ``num_evaluations`` is paid with the
      first step, whether they are made or not.

    Args:
      clip: the largest loss that one record contributes; a public number.
      noise_ratio: the noise multiplier of a loss, in units of that of a gradient. A release costs
        about ``1 / noise_ratio**2`` of a gradient's.
      every: at which steps a loss is released: the first and then each ``every``-th. At others it
        is NaN. None: at no step.
      num_evaluations: how often `DPSVI.evaluate` may be called.
    """

    clip: float
    noise_ratio: float = 4.0
    every: int | None = 1
    num_evaluations: int = 0

    def __post_init__(self) -> None:
        _check.positive(clip=self.clip, noise_ratio=self.noise_ratio)
        _check.non_negative_integer(num_evaluations=self.num_evaluations)
        if self.every is not None:
            _check.positive_integer(every=self.every)

    def release_beside(self, gradient: GaussianSum) -> GaussianSum:
        """Returns the engine of the losses for that of the gradients."""
        return replace(
            gradient,
            clip_norm=self.clip,
            noise_multiplier=gradient.noise_multiplier * self.noise_ratio,
        )

    def num_due(self, num_steps: int, start: int) -> int:
        """Returns how many of the steps ``start`` to ``start + num_steps`` release a loss."""
        if self.every is None:
            return 0
        return -(-(start + num_steps) // self.every) - -(-start // self.every)

    def joint_cost(self, gradient: GaussianSum) -> DpEvent:
        """What a gradient and a loss of one and the same batch cost: one Gaussian, less noisy."""
        noise = gradient.noise_multiplier
        beside = noise * self.noise_ratio
        return gradient.cost_of((noise**-2 + beside**-2) ** -0.5 if noise > 0 else 0.0)

    def cost_of_evaluations(self, gradient: GaussianSum, *, is_amplified: bool) -> DpEvent:
        """What all evaluations cost.

        Where they see batches of the user's, which steps may have seen too, they are not amplified:
        given all that was released before, an evaluation tells at most what a Gaussian does.
        """
        release = self.release_beside(gradient)
        cost = release.cost
        if not is_amplified and release.is_private:
            cost = dp_accounting.GaussianDpEvent(release.noise_multiplier)
        return repeated(cost, self.num_evaluations)


def released_loss(key: Key, release: GaussianSum, query: Query, rest: Scalar, data: Tree) -> Scalar:
    """Returns one release's estimate of the loss over all records.

    Args:
      key: fresh for every call.
      release: the engine of losses.
      query: the loss of one record.
      rest: the loss that no record is in.
      data: the records.
    """
    return lax.convert_element_type(release(key, query, data) + rest, jnp.float32)


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
