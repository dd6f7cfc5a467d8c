"""Privacy loss distributions on a grid, discretised from above, composed by Fourier transform.

A composition of thousands of different releases is one product of transforms, so schedules cost
as much as their distinct steps, and every rounding goes to the side of safety. The grid of one
release has gaps where hardly any mass lies: its tails reach far, and there a few points suffice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.signal import lfilter

from tacit.privacy.accounting import rules
from tacit.privacy.accounting.divergences import Pair
from tacit.privacy.accounting.releases import Counts, Release, SamplingKind
from tacit.privacy.accounting.rules import Adjacency

__all__ = ["LossDistribution", "TooWideError", "compose", "compose_losses", "discretise"]

Values = NDArray[np.float64]

_MAX_POINTS = 2**20
_TAIL_MASS = 1e-16
"""Mass that a composition may lose at either end; it is counted as an infinite loss."""

_NEGLIGIBLE = 1e-20
"""Mass in a tail of one release that is not resolved; it is counted as an infinite loss."""

_WIDEST_GAP = 0.01
"""Between neighbouring losses of one release; at an epsilon of 10 it adds less than 1e-4 of it."""

_COARSEST = 1.0
"""Beyond this grid interval the distribution says no more than bounds in closed form."""


class TooWideError(Exception):
    """The grid would need more points than memory should hold; coarsen it by ``factor``."""

    def __init__(self, points: float) -> None:
        super().__init__(f"{points:.3g} points")
        self.factor = 2.0 ** math.ceil(math.log2(points / _MAX_POINTS))


@dataclass(frozen=True)
class LossDistribution:
    """Mass ``probs[i]`` at loss ``indices[i] * interval``, and ``infinite`` mass at infinity.

    Guarantee:
      ``delta`` and ``epsilon`` are monotone, never negative and never NaN.
    """

    interval: float
    indices: NDArray[np.int64]
    probs: Values
    infinite: float

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at a non-negative epsilon."""
        grid, excess = self._curve()
        if epsilon >= grid[-1]:
            return self.infinite
        cell = int(np.searchsorted(grid, epsilon, side="right")) - 1
        # Between grid points the divergence is affine in e^epsilon.
        ratio = math.exp(grid[cell] - grid[cell + 1])
        share = (1 - math.exp(epsilon - grid[cell + 1])) / (1 - ratio)
        value = excess[cell + 1] + share * (excess[cell] - excess[cell + 1])
        return float(min(1.0, self.infinite + value))

    def epsilon(self, delta: float) -> float:
        """The smallest non-negative epsilon whose divergence is at most ``delta``."""
        target = delta - self.infinite
        if target < 0:
            return math.inf
        grid, excess = self._curve()
        if excess[0] <= target:
            return 0.0
        cell = int(np.searchsorted(-excess, -target, side="left")) - 1
        share = (target - excess[cell + 1]) / (excess[cell] - excess[cell + 1])
        ratio = math.exp(grid[cell] - grid[cell + 1])
        return float(grid[cell + 1] + math.log1p(-share * (1 - ratio)))

    def _curve(self) -> tuple[Values, Values]:
        """Grid points from zero up, and the part of the divergence there that is finite.

        With U_i the mass above point i, the divergence obeys D_i = a D_{i+1} + (1-a) U_i for
        a = e^-interval: a filter of positive terms, so nothing cancels and D decreases.
        """
        first = int(np.searchsorted(self.indices, 0))  # of the losses that are not negative
        if first == self.indices.size:
            return np.zeros(1), np.zeros(1)
        lowest = self.indices[first]
        probs = np.bincount(self.indices[first:] - lowest, weights=self.probs[first:])
        grid = (lowest + np.arange(probs.size)) * self.interval
        above = np.append(np.cumsum(probs[::-1])[::-1], 0.0)
        decay = math.exp(-self.interval)
        excess = lfilter([1.0], [1.0, -decay], (1 - decay) * above[1:][::-1])[::-1]
        if grid[0] > 0:
            grid = np.append(0.0, grid)
            excess = np.append(above[0] - math.exp(-grid[1]) * (above[0] - excess[0]), excess)
        return np.asarray(grid), np.asarray(excess)


def discretise(pair: Pair, interval: float) -> LossDistribution:
    """A distribution on the grid whose curve lies above the pair's, at every epsilon.

    It is the smallest one with mass only at the points that are chosen: multiples of ``interval``
    at most 0.01 apart, the closer the more mass there is.

    Reference: Doroshenko et al. (2022), Connect the dots, algorithm 1,
    https://arxiv.org/abs/2207.04380
    """
    stride = 2 ** max(0, math.floor(math.log2(_WIDEST_GAP / interval)))
    below, above = (
        max(1.0, curve.limit / interval / stride) for curve in (pair.backward, pair.forward)
    )
    if not below + above < _MAX_POINTS - 4:
        raise TooWideError(below + above + 4)
    coarse = stride * np.arange(-math.ceil(below), math.ceil(above) + 1)
    excess = _excess(pair, coarse * interval)
    first = np.flatnonzero((coarse < 0) & (excess <= _NEGLIGIBLE))
    last = np.flatnonzero((coarse > 0) & (excess <= _NEGLIGIBLE))
    kept = slice(first[-1] if first.size else 0, last[0] + 1 if last.size else None)
    masses = _connect(coarse[kept], excess[kept], interval)
    indices = _refined(coarse[kept], masses, stride)
    excess = _excess(pair, np.asarray(indices * interval, dtype=np.float64))
    return LossDistribution(
        interval, indices, _connect(indices, excess, interval), float(excess[-1])
    )


def _excess(pair: Pair, epsilons: Values) -> Values:
    """How far the divergence of P and Q exceeds that of equal ones, max(0, 1 - e^epsilon)."""
    negative = epsilons[epsilons < 0]
    return np.concatenate(
        [
            np.exp(negative) * pair.backward.delta(-negative),
            pair.forward.delta(epsilons[epsilons >= 0]),
        ]
    )


def _connect(indices: NDArray[np.int64], excess: Values, interval: float) -> Values:
    """The masses at some points whose curve passes through the divergences there."""
    # They are linear in the divergence, and equal distributions have all mass at loss 0.
    # Small numbers thus stay accurate to a relative error, far down both tails.
    fall, gaps = -np.diff(excess), np.diff(indices) * interval
    probs = np.append(-excess[0], fall / -np.expm1(-gaps))
    probs[:-1] -= fall / np.expm1(gaps)
    probs[np.searchsorted(indices, 0)] += 1.0
    return np.maximum(probs, 0.0)


def _refined(coarse: NDArray[np.int64], masses: Values, stride: int) -> NDArray[np.int64]:
    """Divides each gap of a grid by a power of two, the more the more mass is at its ends."""
    # A gap w with mass m adds about m w^2 to the variance of a loss. With w in proportion to
    # m^(-1/4) the tails add no more than the bulk.
    mass = np.clip(masses[:-1] + masses[1:], 1e-300, 1.0)
    steps = np.minimum(stride, 2 ** np.floor(np.log2(mass) / -4)).astype(np.int64)
    points = stride // steps
    offset = np.arange(points.sum()) - np.repeat(np.cumsum(points) - points, points)
    return np.append(np.repeat(coarse[:-1], points) + offset * np.repeat(steps, points), coarse[-1])


def compose(parts: Sequence[tuple[LossDistribution, int]]) -> LossDistribution:
    """The distribution of the sum of independent losses, each taken as often as its count.

    Guarantee:
      Pessimistic: mass outside the window that is kept, and a bound on the rounding of the
      Fourier transforms, count as infinite loss.
    """
    interval = parts[0][0].interval
    low, high = _window(parts)
    size = high - low + 1
    if size > 2 * _MAX_POINTS:
        raise TooWideError(size)
    size = fft.next_fast_len(size, real=True)

    spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
    for part, count in parts:
        # A transform is cyclic, so that only the sum, not each loss, must fit into the window.
        cyclic = np.bincount(part.indices % size, weights=part.probs, minlength=size)
        spectrum *= _power(fft.rfft(cyclic), count)
    probs = np.maximum(np.roll(fft.irfft(spectrum, size), -low % size)[: high - low + 1], 0.0)

    num_releases = sum(count for _, count in parts)
    finite = math.prod((1 - part.infinite) ** count for part, count in parts)
    # |error|_1 <= |error of the spectrum|_2, and that is relative: releases x machine precision.
    rounding = np.finfo(float).eps * num_releases * math.sqrt(size) * float(np.linalg.norm(probs))
    infinite = 1 - finite + 2 * _TAIL_MASS + rounding
    return LossDistribution(interval, np.arange(low, high + 1), probs, float(min(1.0, infinite)))


def _power(values: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Squares and multiplies: NumPy's power of complex numbers takes logarithms, and is slow."""
    result = np.ones_like(values)
    while True:
        if count % 2:
            result *= values
        count //= 2
        if count == 0:
            return result
        values = values * values


def _window(parts: Sequence[tuple[LossDistribution, int]]) -> tuple[int, int]:
    """Grid indices outside of which the sum has at most ``_TAIL_MASS``, by Chernoff bounds."""
    interval = parts[0][0].interval
    low = sum(count * int(part.indices[0]) for part, count in parts)
    high = sum(count * int(part.indices[-1]) for part, count in parts)
    variance = math.fsum(count * _variance(part) for part, count in parts)
    log_tail = -math.log(_TAIL_MASS)
    # The best slope for a Gaussian of this variance, and smaller ones for heavier tails.
    best = math.sqrt(2 * log_tail / max(variance, 1e-12))
    slopes = np.geomspace(2 * best, min(best / 4, 0.05), 10)
    upper = log_tail + sum(count * _log_moments(part, slopes) for part, count in parts)
    lower = log_tail + sum(count * _log_moments(part, -slopes) for part, count in parts)
    high = min(high, math.ceil(float(np.min(upper / slopes)) / interval))
    low = max(low, math.floor(-float(np.min(lower / slopes)) / interval))
    return low, max(high, low)


def _variance(part: LossDistribution) -> float:
    losses = part.indices * part.interval
    mean = float(part.probs @ losses)
    return max(0.0, float(part.probs @ (losses - mean) ** 2))


def _log_moments(part: LossDistribution, slopes: Values) -> Values:
    """The log of sum_i probs[i] e^(slope * loss_i), for each slope."""
    exponents = np.outer(slopes, part.indices * part.interval)
    top = exponents.max(axis=1)
    total = np.exp(exponents - top[:, np.newaxis]) @ part.probs
    return np.asarray(top + np.log(np.maximum(total, 1e-300)))


@lru_cache(maxsize=64)
def compose_losses(
    counts: Counts, adjacency: Adjacency, interval: float
) -> tuple[LossDistribution, ...]:
    """The loss distribution of all releases together, in each direction of the adjacency.

    The grid is coarsened, pessimistically, until it fits; the result is empty if none does.
    """
    merged = _merge_full_batches(counts)
    while interval <= _COARSEST:
        try:
            parts = [(_one_release(r, adjacency, interval), count) for r, count in merged]
            num_directions = max(len(directions) for directions, _ in parts)
            return tuple(
                # A release with one distribution has the same in both directions.
                compose([(d[i % len(d)], count) for d, count in parts])
                for i in range(num_directions)
            )
        except TooWideError as error:
            interval *= error.factor
    return ()


@lru_cache(maxsize=1024)
def _one_release(
    release: Release, adjacency: Adjacency, interval: float
) -> tuple[LossDistribution, ...]:
    pairs = rules.look_up(rules.PAIRS, release, adjacency, "PLD")(release)
    return tuple(discretise(pair, interval) for pair in pairs)


def _merge_full_batches(counts: Counts) -> Counts:
    """Replaces all Gaussians on the full batch by the one that tells exactly as much."""
    full = [(r.noise_multiplier, c) for r, c in counts if r.sampling is SamplingKind.FULL]
    rest = tuple((r, c) for r, c in counts if r.sampling is not SamplingKind.FULL)
    if not full:
        return rest
    noise = sum(count / s**2 for s, count in full) ** -0.5
    return (*rest, (Release(sampling=SamplingKind.FULL, noise_multiplier=noise), 1))
