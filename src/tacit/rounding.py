"""Half precision: how states are rounded to it, and what that changes, as it was measured."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tacit.metrics.scores import Floats
from tacit.metrics.uncertainty import DrawMoments

__all__ = ["Rounding", "RoundingLoss", "reference_of", "restored", "rounded"]

_LARGEST_HALF = 65504.0
_LARGEST_REFERENCE = 2.0**100
"""What is beyond has diverged, and a difference from it could overflow."""

_Numbers = NDArray[Any]


def reference_of(values: _Numbers) -> _Numbers:
    """Returns the reference of a state: its own values, but zero for what has diverged."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) <= _LARGEST_REFERENCE, values, 0).astype(values.dtype)


def rounded(values: _Numbers, reference: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Returns the scale of each chain, and how values differ from the reference in units of it.

    Guarantee:
      What is read again differs by at most 2**-11 of the difference, plus 2**-40 of the largest
      difference in the chain's array, plus the rounding of the values' own type. Infinities and
      NaN stay what they are.
    """
    with np.errstate(all="ignore"):
        differences = values - reference
        is_finite = np.isfinite(differences)
        axes = tuple(range(1, values.ndim))
        largest = np.max(np.abs(differences), axis=axes, where=is_finite, initial=0)
        _, exponents = np.frexp(largest)
        # The largest is then below 2**16, and no scale is so small that it has fewer digits.
        exponents = np.maximum(exponents - 16, np.finfo(values.dtype).minexp)
        scales = np.ldexp(values.dtype.type(1), exponents)
        halves = differences / scales.reshape(-1, *(1 for _ in axes))
        clipped = np.clip(halves, -_LARGEST_HALF, _LARGEST_HALF)
        return scales, np.where(is_finite, clipped, halves).astype(np.float16)


def restored(halves: _Numbers, scales: _Numbers, reference: _Numbers) -> _Numbers:
    """Returns the values that `rounded` gave a scale and halves of; operands are broadcast."""
    with np.errstate(all="ignore"):
        found = halves.astype(reference.dtype)
        found = found * scales
        return np.asarray(found + reference)


class RoundingLoss(NamedTuple):
    """By how much half precision changes what a posterior predicts, as it was measured.

    Attributes:
      num_inputs: how many made-up inputs were predicted.
      num_draws: with how many draws, before and after they were rounded.
      largest: change of a predicted probability (of a real target: of its mean).
      mean: change, over inputs and classes.
      in_stds: root mean square of the changes, as a share of that of the draws' standard deviation.
      std: root mean square of the changes of that standard deviation, as the same share.
      is_classification: whether probabilities were predicted.
    """

    num_inputs: int
    num_draws: int
    largest: float
    mean: float
    in_stds: float
    std: float
    is_classification: bool

    @property
    def text(self) -> str:
        """One line for people."""
        what = "probabilities" if self.is_classification else "means"
        return (
            f"in half precision; on {self.num_inputs} made-up inputs predicted {what} change by"
            f" {self.mean:.1g} on average and {self.largest:.1g} at most, which is"
            f" {self.in_stds:.1g} of the draws' standard deviation; that changes by"
            f" {100 * self.std:.1g} %"
        )


class Rounding(NamedTuple):
    """What draws predict for made-up inputs, exact and rounded.

    Attributes:
      exact: moments of the predictions of the states as they were made.
      rounded: of the same states as they are read from the file.
    """

    exact: DrawMoments[Floats]
    rounded: DrawMoments[Floats]

    @property
    def loss(self) -> RoundingLoss:
        """The differences in short."""
        change = np.abs(self.rounded.mean - self.exact.mean)
        stds = np.sqrt(self.exact.variance)
        spread = float(np.sqrt(np.mean(stds**2)))
        std_change = np.sqrt(self.rounded.variance) - stds

        def share(values: _Numbers) -> float:
            size = float(np.sqrt(np.mean(values**2)))
            return size / spread if spread > 0 else math.inf if size > 0 else 0.0

        return RoundingLoss(
            num_inputs=len(change),
            num_draws=int(self.exact.num_draws),
            largest=float(change.max()),
            mean=float(change.mean()),
            in_stds=share(change),
            std=share(std_change),
            is_classification=self.exact.noise.ndim < self.exact.mean.ndim,
        )

    def arrays(self) -> dict[str, _Numbers]:
        """Returns the moments by name, for a file."""
        return {
            f"rounding.{which}.{name}": np.asarray(values)
            for which, moments in self._asdict().items()
            for name, values in moments._asdict().items()
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, _Numbers]) -> Self:
        """Returns what `arrays` gave."""
        exact, rounded = (
            DrawMoments(*(arrays[f"rounding.{which}.{name}"] for name in DrawMoments._fields))
            for which in cls._fields
        )
        return cls(exact, rounded)
