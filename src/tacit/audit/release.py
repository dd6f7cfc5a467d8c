"""Auditing one release: does the engine's clip and noise keep what its cost says?

The strongest attack there is, on the smallest thing that can be wrong. A canary record asks for a
gradient a thousand times the clip norm; everybody else is silent. What is released along the
canary's direction is all that an attacker can use, and with the clip and noise as claimed its
distribution is known exactly. Thousands of releases take seconds.
"""

import functools
from dataclasses import fields, is_dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from tacit import _check
from tacit.audit.bounds import SYNTHETIC, AuditedData, AuditResult, trial_bound
from tacit.errors import InvalidArgumentError
from tacit.privacy.accounting import Accountant
from tacit.privacy.accounting.accountants import DEFAULT_ACCOUNTANT
from tacit.privacy.interpretation import TradeOff
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import fresh_key, seeded_key
from tacit.typing import Array, Key, Scalar

__all__ = ["audit_release", "releases_of", "without_sampling"]

_DIRECTION = (0.6, 0.8)
_LOUDNESS = 1000.0
_LANES = 256


def audit_release(
    release: GaussianSum,
    *,
    delta: float,
    num_trials: int = 20_000,
    confidence: float = 0.999,
    accountant: Accountant = DEFAULT_ACCOUNTANT,
    seed: int | None = None,
) -> AuditResult:
    """Audits the gradient and the query of a release on synthetic canaries.

    Guarantee:
      On an engine that keeps its cost this reports a violation with probability at most
      ``1 - confidence``. It reads no record of anybody.

    Args:
      release: what is audited, with its own sampling.
      delta: at which the claimed and the found epsilon are compared in the report; the verdict is
        about the whole trade-off curve.
      num_trials: releases with the canary, and as many without, along each way through the engine.
        The largest epsilon that so many can show is about ``log(num_trials / 20)``.
      confidence: of lower bound and verdict.
      accountant: says what the release's cost means.
      seed: for tests; a fresh key by default.

    Example:
      >>> release = GaussianSum(
      ...     sampling=FullBatch(num_records=4), clip_norm=2.0, noise_multiplier=1.0)
      >>> audit_release(release, delta=1e-5, num_trials=200, seed=0).verdict
      'no violation found'
    """
    _check.positive_integer(num_trials=num_trials)
    _check.fraction(one=False, delta=delta, confidence=confidence)
    if not release.is_private:
        raise InvalidArgumentError(
            "release must have noise to be audited; got noise_multiplier=0, which claims nothing."
        )
    claim = TradeOff.of_cost(release.cost, accountant)
    key = fresh_key() if seed is None else seeded_key(seed)
    level = 1 - (1 - confidence) / 2
    bounds = {}
    for number, way in enumerate(("gradient", "query")):
        present, absent = _scores(jax.random.fold_in(key, number), release, way, num_trials)
        bounds[way] = trial_bound(present, absent, claim, delta=delta, confidence=level)
    worst = max(bounds, key=lambda way: bounds[way].excess)
    violation = None
    if bounds[worst].excess > 0:
        violation = (
            f"the {worst} of a release lets an attack find {bounds[worst].true_positive_rate:.1%}"
            f" at {bounds[worst].false_positive_rate:.1%} false positives, where its cost allows"
            f" {bounds[worst].allowed:.1%}"
        )
    return AuditResult(
        attack=f"one loud canary, {2 * num_trials} single releases each of gradient and query",
        data=AuditedData(
            name="synthetic canary",
            num_records=release.sampling.num_records,
            public=True,
            statement=SYNTHETIC,
        ),
        claimed_epsilon=accountant.epsilon(release.cost, delta=delta),
        claimed_delta=delta,
        lower_bound=max(bound.lower_bound for bound in bounds.values()),
        confidence=confidence,
        violation=violation,
        details={way: bound.to_json() for way, bound in bounds.items()},
    )


def without_sampling(release: GaussianSum) -> GaussianSum:
    """Returns a release whose clip and noise are the same, on a full batch of a few records.

    Sampling hides a canary most of the time. Who wants to know whether clip and noise are right
    needs a hundredth of the trials without it.
    """
    return replace(release, sampling=FullBatch(num_records=4))


def releases_of(method: object) -> list[GaussianSum]:
    """Returns the engines in a method, and in methods inside it: most have one, HMC has two."""
    if isinstance(method, GaussianSum):
        return [method]
    parts = fields(method) if is_dataclass(method) else ()
    return [found for part in parts for found in releases_of(getattr(method, part.name))]


def _scores(
    key: Key, release: GaussianSum, way: str, num_trials: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Releases with the canary and without, along its direction, in units of the clip norm."""
    # Full rows of lanes, so that one compilation serves all; a few trials more do no harm.
    num_rows = -(-2 * num_trials // _LANES)
    keys = jax.random.split(key, (num_rows, _LANES))
    is_present = (jnp.arange(num_rows * _LANES) < num_trials).reshape(num_rows, _LANES)
    trials = jax.vmap(functools.partial(_TRIALS[way], release))
    run = jax.jit(lambda xs: lax.map(lambda x: trials(*x), xs))
    released = np.asarray(run((keys, is_present)), np.float64).reshape(-1, len(_DIRECTION))
    scale = release.sampling.inclusion_rate / release.clip_norm
    # One that is not finite tells at least as much as a very high one.
    scores = np.nan_to_num(released @ np.array(_DIRECTION) * scale, nan=1e30, posinf=1e30)
    return scores[:num_trials], scores[num_trials:]


def _table(release: GaussianSum, is_present: Array) -> Array:
    rows = jnp.zeros((release.sampling.num_records, 2))
    canary = _LOUDNESS * release.clip_norm * jnp.array(_DIRECTION)
    return rows.at[0].set(jnp.where(is_present, canary, 0.0))


def _gradient_trial(release: GaussianSum, key: Key, is_present: Array) -> Array:
    def loss(params: Array, record: Array, key: Key) -> Scalar:
        del key
        return jnp.vdot(params, record)

    return release.gradient(key, loss, jnp.zeros(2), _table(release, is_present))


def _query_trial(release: GaussianSum, key: Key, is_present: Array) -> Array:
    return release(key, lambda record, key: record, _table(release, is_present))


_TRIALS = {"gradient": _gradient_trial, "query": _query_trial}
