"""Privacy loss distributions on a grid, discretised from above, composed by Fourier transform.

A composition of thousands of different releases is one product of transforms, so schedules cost
as much as their distinct steps, and every rounding goes to the side of safety.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.signal import lfilter

from tacit.privacy._pairs import Pair

__all__ = ["LossDistribution", "TooWideError", "compose", "discretise"]

Values = NDArray[np.float64]

_MAX_POINTS = 2**20
_TAIL_MASS = 1e-16
"""Mass that a composition may lose at either end; it is counted as an infinite loss."""


class TooWideError(Exception):
    """The grid would need more points than memory should hold; coarsen it by ``factor``."""

    def __init__(self, points: float) -> None:
        super().__init__(f"{points:.3g} points")
        self.factor = 2.0 ** math.ceil(math.log2(points / _MAX_POINTS))


@dataclass(frozen=True)
class LossDistribution:
    """Mass ``probs[i]`` at loss ``(start + i) * interval``, and ``infinite`` mass at infinity.

    Guarantee:
      ``delta`` and ``epsilon`` are monotone, never negative and never NaN.
    """

    interval: float
    start: int
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
        first = max(0, -self.start)  # index of the first loss that is not negative
        probs = self.probs[first:]
        if probs.size == 0:
            return np.zeros(1), np.zeros(1)
        grid = (self.start + first + np.arange(probs.size)) * self.interval
        above = np.append(np.cumsum(probs[::-1])[::-1], 0.0)
        decay = math.exp(-self.interval)
        excess = lfilter([1.0], [1.0, -decay], (1 - decay) * above[1:][::-1])[::-1]
        if grid[0] > 0:
            grid = np.append(0.0, grid)
            excess = np.append(above[0] - math.exp(-grid[1]) * (above[0] - excess[0]), excess)
        return np.asarray(grid), np.asarray(excess)


def discretise(pair: Pair, interval: float) -> LossDistribution:
    """The smallest distribution on the grid whose curve lies above the pair's, at every epsilon.

    Reference: Doroshenko et al. (2022), Connect the dots, algorithm 1,
    https://arxiv.org/abs/2207.04380
    """
    below, above = pair.backward.limit / interval, pair.forward.limit / interval
    if not below + above < _MAX_POINTS - 4:
        raise TooWideError(below + above + 4)
    start, stop = -max(1, math.ceil(below)), max(1, math.ceil(above))
    epsilons = np.asarray(np.arange(start, stop + 1) * interval, dtype=np.float64)
    # The divergence of P and Q exceeds that of two equal distributions, max(0, 1 - e^epsilon), by:
    excess = np.concatenate(
        [
            np.exp(epsilons[:-start]) * pair.backward.delta(-epsilons[:-start]),
            pair.forward.delta(epsilons[-start:]),
        ]
    )
    # The masses are linear in the divergence, and equal distributions have all mass at loss 0.
    # Small numbers thus stay accurate to a relative error, far down both tails.
    fall = -np.diff(excess)
    probs = np.append(-excess[0], fall / -math.expm1(-interval))
    probs[:-1] -= fall / math.expm1(interval)
    probs[-start] += 1.0
    return LossDistribution(interval, start, np.maximum(probs, 0.0), float(excess[-1]))


def compose(parts: Sequence[tuple[LossDistribution, int]]) -> LossDistribution:
    """The distribution of the sum of independent losses, each taken as often as its count.

    Guarantee:
      Pessimistic: mass outside the window that is kept, and a bound on the rounding of the
      Fourier transforms, count as infinite loss.
    """
    interval = parts[0][0].interval
    origin = sum(count * part.start for part, count in parts)
    low, high = _window(parts)
    longest = max(part.probs.size for part, _ in parts)
    size = max(high - low + 1, longest)
    if size > 2 * _MAX_POINTS:
        raise TooWideError(size)
    size = fft.next_fast_len(int(size), real=True)

    spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
    for part, count in parts:
        spectrum *= fft.rfft(part.probs, size) ** count
    probs = np.roll(fft.irfft(spectrum, size), (origin - low) % size)
    probs = np.maximum(probs[: high - low + 1], 0.0)

    num_releases = sum(count for _, count in parts)
    finite = math.prod((1 - part.infinite) ** count for part, count in parts)
    # |error|_1 <= |error of the spectrum|_2, and that is relative: releases x machine precision.
    rounding = np.finfo(float).eps * num_releases * math.sqrt(size) * float(np.linalg.norm(probs))
    infinite = 1 - finite + 2 * _TAIL_MASS + rounding
    return LossDistribution(interval, low, probs, float(min(1.0, infinite)))


def _window(parts: Sequence[tuple[LossDistribution, int]]) -> tuple[int, int]:
    """Grid indices outside of which the sum has at most ``_TAIL_MASS``, by Chernoff bounds."""
    interval = parts[0][0].interval
    low = smallest = sum(count * part.start for part, count in parts)
    high = largest = sum(count * (part.start + part.probs.size - 1) for part, count in parts)
    variance = math.fsum(count * _variance(part) for part, count in parts)
    log_tail = -math.log(_TAIL_MASS)
    # The best slope for a Gaussian of this variance, and smaller ones for heavier tails.
    best = math.sqrt(2 * log_tail / max(variance, 1e-12))
    for slope in np.geomspace(2 * best, min(best / 4, 0.05), 10):
        upper = lower = log_tail
        for part, count in parts:
            upper += count * _log_moment(part.probs, slope * interval)
            lower += count * _log_moment(part.probs[::-1], slope * interval)
        # The moments are relative to the largest (smallest) possible sum.
        high = min(high, math.ceil(largest + upper / slope / interval))
        low = max(low, math.floor(smallest - lower / slope / interval))
    return low, max(high, low)


def _variance(part: LossDistribution) -> float:
    losses = np.arange(part.probs.size) * part.interval
    mean = float(part.probs @ losses)
    return max(0.0, float(part.probs @ (losses - mean) ** 2))


def _log_moment(probs: Values, slope: float) -> float:
    """The log of sum_i probs[i] e^(slope (i - last)), by a filter: exponentials are slow."""
    total = lfilter([1.0], [1.0, -math.exp(-slope)], probs)[-1]
    return math.log(max(float(total), 1e-300))
