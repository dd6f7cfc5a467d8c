"""Credible intervals: what their widths are made of, and when they are not to be trusted."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tacit import _artefact, _check, _display, _tree
from tacit.errors import IntervalWarning
from tacit.typing import Params, Tree

__all__ = [
    "CredibleInterval",
    "IntervalFacts",
    "Parts",
    "equal_tailed",
    "parameter_names",
]

_MOST_NAMED = 12
"""With more parameters than this a table of them is longer than what people read."""

_MOST_AT_ONCE = 2**22
"""Numbers of which quantiles are taken together."""


class CredibleInterval(NamedTuple):
    """The ends of equal-tailed credible intervals, each a tree like the parameters."""

    low: Params
    high: Params


class Parts(NamedTuple):
    """The standard deviation of every parameter by its sources; each a tree like the parameters.

    Attributes:
      total: of the posterior as it is published.
      without_privacy: what it would be without privacy noise.
      prior: of the prior alone; infinite where the prior is flat.
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

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of `rows`."""
        return (
            "standard deviation",
            "posterior",
            "prior",
            "data",
            "privacy noise",
            "share of width",
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The standard deviations as text: of each parameter, or their median and range if many.

        The last column is the share of the interval's width that privacy noise accounts for.

        Example:
          >>> stds = Parts(total={"slope": jnp.array(2.0)},
          ...              without_privacy={"slope": jnp.array(1.5)},
          ...              prior={"slope": jnp.array(jnp.inf)}, data={"slope": jnp.array(1.5)},
          ...              privacy={"slope": jnp.array(1.3)})
          >>> stds.rows
          [('slope', '2', '∞', '1.5', '1.3', '25 %')]
        """
        stds = [_numbers(tree) for tree in (self.total, self.prior, self.data, self.privacy)]
        numbers = np.stack([*stds, 100 * _numbers(self.privacy_share)], axis=1)
        names = parameter_names(self.total)
        if len(names) > _MOST_NAMED:
            names = ["median", "smallest", "largest"]
            numbers = np.stack([np.median(numbers, axis=0), numbers.min(0), numbers.max(0)])
        return [
            (name, *(_text(value) for value in values), f"{share:.0f} %")
            for name, (*values, share) in zip(names, numbers, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class IntervalFacts:
    """What is known about the intervals of a posterior.

    Attributes:
      parts: where their widths come from; None where the draws are as the method made them,
        because the correction for privacy noise does not apply.
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
          >>> facts = IntervalFacts(parts=stds, caveats=("The clip norm may be too small.",))
          >>> for name, text in facts.rows:
          ...     print(f"{name}: {text}")
          intervals: corrected for privacy noise, which accounts for 25 % of their width
          caution: The clip norm may be too small.
        """
        rows = []
        if self.parts is not None:
            shares = 100 * _numbers(self.parts.privacy_share)
            text = f"{np.median(shares):.0f} % of their width"
            if len(shares) > 1:
                text += f" (median; from {shares.min():.0f} to {shares.max():.0f} %)"
            rows = [("intervals", f"corrected for privacy noise, which accounts for {text}")]
        elif self.caveats:
            rows = [("intervals", "not corrected for privacy noise")]
        return rows + [(_display.CAUTION, caveat) for caveat in self.caveats]

    @property
    def table(self) -> list[tuple[str, ...]]:
        """The headings and rows of the parts; empty where nothing was corrected."""
        return [] if self.parts is None else [self.parts.columns, *self.parts.rows]

    def to_json(self) -> dict[str, Any]:
        """Returns all but `arrays`, for a document."""
        return {"is_corrected": self.is_corrected, "caveats": list(self.caveats)}

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the standard deviations by name; none where nothing was corrected."""
        parts = None if self.parts is None else self.parts._asdict()
        return _artefact.flatten(parts, prefix="parts")

    @classmethod
    def from_json(
        cls, document: Mapping[str, Any], arrays: dict[str, np.ndarray[Any, Any]], shapes: Tree
    ) -> Self:
        """Returns what `to_json` and `arrays` said; an empty document says nothing.

        Args:
          document: from `to_json`.
          arrays: of a file; others than those of `arrays` are left alone.
          shapes: of the parameters.
        """
        parts = None
        if document.get("is_corrected"):
            stds = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), shapes)
            template = dict.fromkeys(Parts._fields, stds)
            parts = Parts(**_artefact.unflatten(arrays, template, prefix="parts", leading=()))
        return cls(parts=parts, caveats=tuple(document.get("caveats", ())))

    def warn(self, *, stacklevel: int = 3) -> None:
        """Warns with `IntervalWarning`, once for each reason not to trust the intervals.

        Args:
          stacklevel: of `warnings.warn`; by default the caller of the function that calls this.
        """
        for caveat in self.caveats:
            warnings.warn(caveat, IntervalWarning, stacklevel=stacklevel)


def equal_tailed(draws: Tree, *, level: float, num_axes: int = 1) -> CredibleInterval:
    """Returns what lies between two quantiles of the draws, with equal probability on both sides.

    Args:
      draws: a tree of arrays whose first axes are those of draws; they are read in blocks.
      level: the posterior probability of each interval.
      num_axes: how many axes are those of draws.

    Example:
      >>> equal_tailed(jnp.arange(101.0), level=0.9)
      CredibleInterval(low=Array(5., dtype=float32), high=Array(95., dtype=float32))
    """
    _check.fraction(one=False, level=level)
    shares = ((1 - level) / 2, (1 + level) / 2)

    def quantiles(leaf: Any) -> NDArray[Any]:
        blocks = [
            np.quantile(
                block.reshape(-1, block.shape[-1]).astype(
                    jnp.promote_types(block.dtype, np.float32)
                ),
                shares,
                axis=0,
            )
            for block in _tree.column_blocks(leaf, num_axes=num_axes, most=_MOST_AT_ONCE)
        ]
        return np.concatenate(blocks, axis=1).reshape(2, *leaf.shape[num_axes:])

    both = jax.tree.map(quantiles, draws)
    low, high = (
        jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i], jnp.float32), both) for i in (0, 1)
    )
    return CredibleInterval(low, high)


def parameter_names(params: Tree) -> list[str]:
    """Returns a name for every number in a tree, in the order of its leaves.

    Example:
      >>> parameter_names({"dense": {"bias": jnp.zeros(1), "kernel": jnp.zeros((2, 1))}})
      ['dense.bias[0]', 'dense.kernel[0, 0]', 'dense.kernel[1, 0]']
    """
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        for index in np.ndindex(jnp.shape(leaf)):
            names.append(f"{name}[{', '.join(map(str, index))}]" if index else name)
    return names


def _numbers(tree: Params) -> NDArray[np.float64]:
    return np.concatenate(
        [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    )


def _text(value: float) -> str:
    return "∞" if np.isinf(value) else f"{value:.2g}"
