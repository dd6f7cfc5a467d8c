"""A second accountant: epsilon from a statement's JSON, with none of tacit's own accounting."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import special, stats

from tacit.errors import TacitError

__all__ = [
    "Leaf",
    "attack_from_curve",
    "epsilons_from_json",
    "releases_from_json",
]

_RELATION = {
    "zero-out": dpa.NeighboringRelation.REPLACE_SPECIAL,
    "add-remove": dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": dpa.NeighboringRelation.REPLACE_ONE,
}
_MAX_DISTINCT = 128
_LARGEST = 1e4


class Leaf(NamedTuple):
    """One kind of release: on what batch, with how much noise."""

    kind: str
    noise: float
    rate: float = 1.0
    num_records: int = 0
    size: int = 0


def releases_from_json(cost: Mapping[str, Any], *, adjacency: str) -> Counter[Leaf]:
    """Returns how often each release was made, read from a statement's ``cost``.

    Raises:
      TacitError: where an entry is missing, unknown or no sensible number.
    """
    if adjacency not in _RELATION:
        raise TacitError(f"the adjacency {adjacency!r} is unknown")
    counts: Counter[Leaf] = Counter()
    try:
        for leaf, count in _leaves(cost, 1, adjacency):
            counts[leaf] += count
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise TacitError(f"the cost cannot be read ({type(error).__name__}: {error})") from None
    return counts


def epsilons_from_json(
    counts: Counter[Leaf], *, adjacency: str, deltas: Sequence[float], near: float
) -> list[float]:
    """Returns epsilon at each delta by dp_accounting's loss distributions, an upper bound.

    Args:
      counts: what was released.
      adjacency: which data sets are neighbours.
      deltas: at which.
      near: about how large the first epsilon is said to be; only the fineness of the grid follows
        from it.

    Raises:
      TacitError: where epsilon is so large that it means nothing.
    """
    if any(leaf.noise == 0 for leaf in counts):
        return [math.inf for _ in deltas]
    merged = _merged(counts)
    if sum(n * (leaf.rate / leaf.noise) ** 2 for leaf, n in merged.items()) > _LARGEST:
        raise TacitError("its epsilon is in the thousands, too large to be composed")
    # A claim may be far too small: a quick look says how large a grid must be.
    rough = _epsilon(_composed(merged, adjacency, 1e-2), deltas[0])
    near = rough if 100 * max(near, 1.0) < rough < math.inf else near
    # Errors grow with the square of the interval, time with the distributions to be composed.
    interval = max(1e-4 if len(merged) <= 4 else 5e-4, 1e-5 * near)
    loss = _composed(merged, adjacency, interval)
    return [_epsilon(loss, delta) for delta in deltas]


def attack_from_curve(curve: Sequence[Mapping[str, Any]], rate: float) -> float:
    """Returns the most true positives that all points of a curve of promises allow at ``rate``."""
    bounds = [1.0]
    for point in curve:
        grown, delta = math.exp(min(point["epsilon"], 700.0)), point["delta"]
        bounds += [delta + grown * rate, 1 - max(0.0, 1 - delta - rate) / grown]
    return max(rate, min(bounds))


def _epsilon(loss: Any, delta: float) -> float:
    return float(loss.get_epsilon_for_delta(delta)) if delta > 0 else math.inf


def _composed(counts: Counter[Leaf], adjacency: str, interval: float) -> Any:
    total = pld.identity(value_discretization_interval=interval)
    for leaf, count in counts.items():
        total = total.compose(_loss(leaf, count, adjacency, interval))
    return total


def _leaves(cost: Mapping[str, Any], count: int, adjacency: str) -> Iterator[tuple[Leaf, int]]:
    match cost["kind"]:
        case "NoOpDpEvent":
            return
        case "NonPrivateDpEvent":
            yield Leaf("full", 0.0), count
        case "SelfComposedDpEvent":
            yield from _leaves(cost["event"], count * _count(cost["count"]), adjacency)
        case "ComposedDpEvent":
            for part in cost["events"]:
                yield from _leaves(part, count, adjacency)
        case "ParallelDpEvent":
            if adjacency == "replace-one":
                raise ValueError("disjoint shards prove nothing where a record is replaced")
            yield from _leaves(cost["event"], count, adjacency)
        case _:
            yield _leaf(cost), count


def _leaf(cost: Mapping[str, Any]) -> Leaf:
    match cost["kind"]:
        case "GaussianDpEvent":
            return Leaf("full", _noise(cost))
        case "PoissonSampledDpEvent":
            return Leaf("poisson", _noise(cost["event"]), _rate(cost["sampling_probability"]))
        case "ConditionedPoissonDpEvent":
            num_records, size = (_count(cost[key]) for key in ("num_records", "capacity"))
            rate = _rate(cost["sampling_probability"])
            if rate == 1 and size < num_records:
                raise ValueError("a batch without room for records that are always in it")
            return Leaf("conditioned", _noise(cost["event"]), rate, num_records, size)
        case "SampledWithoutReplacementDpEvent":
            num_records, size = (
                _count(cost["source_dataset_size"]),
                _count(cost["sample_size"]),
            )
            return Leaf(
                "fixed", _noise(cost["event"]), _rate(size / num_records), num_records, size
            )
        case other:
            raise ValueError(f"{other!r} is no mechanism that this accountant knows")


def _noise(cost: Mapping[str, Any]) -> float:
    """The multiplier of one Gaussian that is worth all those on one batch."""
    match cost["kind"]:
        case "GaussianDpEvent":
            return _number(cost["noise_multiplier"])
        case "SelfComposedDpEvent":
            parts = [_noise(cost["event"])]
            times = _count(cost["count"])
        case "ComposedDpEvent":
            parts, times = [_noise(part) for part in cost["events"]], 1
        case other:
            raise ValueError(f"{other!r} cannot be made on a batch")
    if 0.0 in parts:
        return 0.0
    precision = times * sum(part**-2 for part in parts)
    return 1e9 if precision == 0 else precision**-0.5


def _count(value: Any) -> int:
    """Returns a whole number of at least one; raises ``ValueError`` where it is something else."""
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise ValueError(f"a count of {value!r}")
    return int(value)


def _number(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not number >= 0:
        raise ValueError(f"a noise multiplier of {value!r}")
    return min(number, 1e9)


def _rate(value: Any) -> float:
    if not 0 < float(value) <= 1:
        raise ValueError(f"a sampling rate of {value!r}")
    return float(value)


def _merged(counts: Counter[Leaf]) -> Counter[Leaf]:
    """About 128 multipliers for each kind of batch, rounded down: schedules have thousands.

    They become powers of 2^(1/k), as in the first accountant: the rounding is part of the claim.
    """
    merged: Counter[Leaf] = Counter()
    for _, group in groupby(sorted(counts), key=lambda leaf: leaf._replace(noise=0.0)):
        leaves = list(group)
        if len(leaves) <= _MAX_DISTINCT:
            merged.update({leaf: counts[leaf] for leaf in leaves})
            continue
        octaves = np.log2([leaf.noise for leaf in leaves])
        k = 1024.0
        while np.minimum(1.0, k * np.diff(octaves)).sum() > _MAX_DISTINCT + 0.5:
            k /= 2
        for leaf, octave in zip(leaves, octaves, strict=True):
            noise = min(2.0 ** (math.floor(octave * k) / k), leaf.noise)
            merged[leaf._replace(noise=noise)] += counts[leaf]
    return merged


def _loss(leaf: Leaf, count: int, adjacency: str, interval: float) -> Any:
    relation = _RELATION[adjacency]
    match leaf.kind:
        case "full":
            return pld.from_gaussian_mechanism(
                leaf.noise / math.sqrt(count),
                value_discretization_interval=interval,
                neighboring_relation=relation,
            )
        case "poisson":
            loss = _sampled(leaf, leaf.rate, relation, interval)
        case "conditioned":
            loss = _conditioned(leaf, relation, interval)
        case _ if adjacency == "add-remove":
            # A record that comes or goes moves another one in or out: twice the clip norm.
            loss = pld.from_gaussian_mechanism(
                leaf.noise / 2, value_discretization_interval=interval, sampling_prob=leaf.rate
            )
        case _:
            loss = _fixed_size(leaf, interval)
    return loss.self_compose(count)


def _sampled(leaf: Leaf, rate: float, relation: Any, interval: float) -> Any:
    return pld.from_gaussian_mechanism(
        leaf.noise,
        value_discretization_interval=interval,
        sampling_prob=rate,
        neighboring_relation=relation,
    )


def _conditioned(leaf: Leaf, relation: Any, interval: float) -> Any:
    """A Poisson batch whose size is conditioned on being at most a capacity.

    Of two tables that differ in one row, batches without that row are equally likely in both. Such
    a batch of fewer rows than the capacity is followed by the row or not with the odds of a Poisson
    batch; of those that are full, none contains the row. Add-remove is the case of a vacant row.
    """
    ordinary = _sampled(leaf, leaf.rate, relation, interval)
    if leaf.size >= leaf.num_records:
        return ordinary
    # Full and without the row: C(n-1, c) q^c (1-q)^(n-c), of all batches that have room.
    others, drawn = (stats.binom(n, leaf.rate) for n in (leaf.num_records - 1, leaf.num_records))
    if drawn.cdf(leaf.size) < 1e-9:
        return ordinary
    full = (1 - leaf.rate) * others.pmf(leaf.size) / drawn.cdf(leaf.size)
    nothing = pld.identity(value_discretization_interval=interval)
    return nothing.compute_mixture(ordinary, full)


def _fixed_size(leaf: Leaf, interval: float) -> Any:
    """A batch of fixed size in which one record is replaced.

    Reference:
      Balle, Barthe, Gaboardi, "Privacy amplification by subsampling" (2018), theorem 9:
      ``delta'(log(1 + q (e^eps - 1))) = q delta(eps)``. It is proven for ``eps >= 0``; as
      neighbours are symmetric the other half follows.
    """
    mu = 2 / leaf.noise
    reach = math.log1p(leaf.rate * math.expm1(min(mu**2 / 2 + 9 * mu, 700.0)))
    steps = np.arange(0, math.ceil(reach / interval) + 1)
    plain = np.log1p(np.expm1(steps * interval) / leaf.rate)
    deltas = leaf.rate * (
        special.ndtr(mu / 2 - plain / mu) - np.exp(plain + special.log_ndtr(-mu / 2 - plain / mu))
    )
    deltas = np.maximum(deltas, 0.0)
    mirrored = 1 - np.exp(-steps[1:] * interval) * (1 - deltas[1:])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -int(steps[-1]), int(steps[-1]), np.concatenate([mirrored[::-1], deltas])
    )
    return pld.PrivacyLossDistribution(pmf)
