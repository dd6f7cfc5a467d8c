"""What the intervals of a posterior are made of, and where they are not to be trusted."""

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import IntervalWarning
from tacit.typing import Params

__all__ = ["Interval", "Intervals", "Parts"]


class Interval(NamedTuple):
    """The ends of equal-tailed credible intervals, each a tree like the parameters."""

    low: Params
    high: Params


class Parts(NamedTuple):
    """Standard deviations of every parameter, taken apart; each a tree like the parameters.

    Attributes:
      total: of the posterior, as it is published.
      without_privacy: what the posterior would have had without privacy noise.
      prior: of the prior alone; infinite where it is flat.
      data: of the records' likelihood alone.
      privacy: of the privacy noise (and the noise of batches) alone.
    """

    total: Params
    without_privacy: Params
    prior: Params
    data: Params
    privacy: Params

    @property
    def privacy_share(self) -> Params:
        """The share of each interval's width that privacy is responsible for, from 0 to 1."""
        return jax.tree.map(
            lambda with_noise, without: jnp.clip(1 - without / with_noise, 0.0, 1.0),
            self.total,
            self.without_privacy,
        )


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """What is known of the intervals of a posterior.

    Attributes:
      parts: where their widths come from; None where draws are as the method made them, because
        the correction for privacy noise does not apply.
      caveats: why they are not to be trusted, each a sentence; empty where nothing is known
        against them.
    """

    parts: Parts | None = None
    caveats: tuple[str, ...] = ()

    @property
    def is_corrected(self) -> bool:
        """Whether privacy noise is counted in the posterior's own widths."""
        return self.parts is not None

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Names and texts for tables that people read.

        Example:
          >>> stds = Parts(total=jnp.array([2.0]), without_privacy=jnp.array([1.5]),
          ...              prior=jnp.array([10.0]), data=jnp.array([1.6]), privacy=jnp.array([1.2]))
          >>> for name, text in Intervals(parts=stds).rows:
          ...     print(f"{name}: {text}")
          intervals: corrected for privacy noise, which is responsible for 25 % of their width
          widths: standard deviation 2; prior 10, data 1.6, privacy noise 1.2
        """
        if self.parts is None:
            rows = [("intervals", "not corrected for privacy noise")] if self.caveats else []
        else:
            shares = 100 * _numbers(self.parts.privacy_share)
            text = f"{np.median(shares):.0f} %"
            if len(shares) > 1:
                text += f" (median; {shares.min():.0f} to {shares.max():.0f} %)"
            middle = {
                name: f"{np.median(_numbers(tree)):.2g}"
                for name, tree in self.parts._asdict().items()
            }
            of = " (median)" if len(shares) > 1 else ""
            rows = [
                (
                    "intervals",
                    f"corrected for privacy noise, which is responsible for {text} of their width",
                ),
                (
                    "widths",
                    f"standard deviation{of} {middle['total']}; prior {middle['prior']}, data"
                    f" {middle['data']}, privacy noise {middle['privacy']}",
                ),
            ]
        return rows + [("caution", caveat) for caveat in self.caveats]

    def warn(self, *, stacklevel: int = 3) -> None:
        """Warns with `IntervalWarning` where intervals are not to be trusted."""
        for caveat in self.caveats:
            warnings.warn(caveat, IntervalWarning, stacklevel=stacklevel)


def _numbers(tree: Params) -> "np.typing.NDArray[np.float64]":
    return np.concatenate(
        [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    )
