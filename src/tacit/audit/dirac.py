"""Auditing a whole run with Dirac canaries: one coordinate of the gradient for each.

The model here has one parameter for each canary, and a canary asks, loudly, for its own to grow. No
other record touches it, so that all that hides the canary is the method's clip and noise. It is an
ordinary model: every method runs on it through the public `fit`, and what `fit` publishes is what
the attack sees.
"""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tacit import _check
from tacit.audit.canaries import coins, one_run_result
from tacit.audit.release import releases_of
from tacit.audit.result import SYNTHETIC, AuditedData, AuditResult
from tacit.errors import InvalidArgumentError
from tacit.inference import Plan, fit
from tacit.models import Model
from tacit.posterior import Posterior
from tacit.privacy.budget import Budget
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = ["audit_method", "dirac_model", "dirac_records"]

_LOUDNESS = 100.0
_PRIOR_STD = 10.0


def dirac_model(num_canaries: int, *, loudness: float) -> Model:
    """Returns the model whose gradient has one coordinate for each canary.

    Args:
      num_canaries: how many parameters it has.
      loudness: the norm of a canary's gradient; well above the clip norm, to test the clip too.
    """
    _check.positive_integer(num_canaries=num_canaries)
    _check.positive(loudness=loudness)

    def init(key: Key) -> Params:
        del key
        return jnp.zeros(num_canaries)

    def log_prior(params: Params) -> Scalar:
        return -0.5 * jnp.sum((params / _PRIOR_STD) ** 2)

    def log_likelihood(params: Params, record: Record, key: Key) -> Scalar:
        del key
        return loudness * jnp.vdot(params, jax.nn.one_hot(record.x, num_canaries))

    def predict(params: Params, x: Input, key: Key) -> Array:
        del key
        chance = jax.nn.sigmoid(jnp.vdot(params, jax.nn.one_hot(x, num_canaries)))
        return jnp.stack([1 - chance, chance])

    return Model(init, log_prior, log_likelihood, predict)


def dirac_records(is_present: NDArray[np.bool_], *, num_records: int) -> Record:
    """Returns a table whose first rows are canaries; absent ones, and all others, weigh nothing."""
    num_canaries = len(is_present)
    number = np.full(num_records, -1, np.int32)
    number[:num_canaries] = np.arange(num_canaries)
    weight = np.zeros(num_records, np.float32)
    weight[:num_canaries] = is_present
    return Record(jnp.asarray(number), jnp.zeros(num_records, jnp.int32), jnp.asarray(weight))


def audit_method(
    plan: Plan,
    *,
    budget: Budget,
    num_canaries: int,
    confidence: float = 0.95,
    seed: int | None = None,
) -> AuditResult:
    """Audits a plan by one run on Dirac canaries.

    Guarantee:
      If the run is as private as its statement says, a violation is reported with probability at
      most ``1 - confidence``. It reads no record of anybody.

    Args:
      plan: what is audited; its canaries take the places of ``num_canaries`` of its records.
      budget: as for `fit`; finite, since there must be a claim.
      num_canaries: more show more: the largest epsilon in reach is about
        ``log(num_canaries / 10)``.
      confidence: of lower bound and verdict.
      seed: for tests; fresh coins and noise by default.
    """
    _check.fraction(one=False, confidence=confidence)
    num_records = plan.method.num_records
    _check.positive_integer(num_canaries=num_canaries)
    if num_canaries > num_records:
        raise InvalidArgumentError(
            f"num_canaries must be at most the plan's {num_records} records; got {num_canaries}."
        )
    if not np.isfinite(budget.epsilon):
        raise InvalidArgumentError("budget must be finite to be audited; got epsilon infinity.")
    is_present = coins(num_canaries, seed=seed)
    loudest = max(release.clip_norm for release in releases_of(plan.method))
    model = dirac_model(num_canaries, loudness=_LOUDNESS * loudest)
    records = dirac_records(is_present, num_records=num_records)
    run = fit(plan, model, records, budget=budget, seed=seed)
    return one_run_result(
        np.asarray(_scores(run.posterior), np.float64),
        is_present,
        attack=f"{num_canaries} Dirac canaries in one run, seen in what it publishes",
        data=AuditedData(
            name="synthetic canaries", num_records=num_records, public=True, statement=SYNTHETIC
        ),
        epsilon=run.statement.epsilon,
        delta=run.statement.delta,
        confidence=confidence,
    )


def _scores(posterior: Posterior) -> Array:
    """What a reader of the posterior sees of each canary: its parameter, averaged over draws."""
    return jnp.mean(posterior.draws(), axis=0)
