"""Membership inference on a model: was this record in the table that it was trained on?

A random part of the table are canaries; a fair coin says which of them the run may see. The attack
looks at what the run published and at the canaries, never at the coins, and its guesses give a
lower bound on epsilon for this one run.

Shadow models are trained on the private records themselves to attack a model of them. They stay
with the owner of the records: nobody else may see them, and no budget is charged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike, NDArray

from tacit import _check, _tree
from tacit.audit.bounds import OWNER_SIDE, SYNTHETIC, AuditedData, AuditResult
from tacit.audit.runs import coins, one_run_result
from tacit.errors import InvalidArgumentError
from tacit.inference import Plan, fit
from tacit.inference.method import Kernel, objective_of
from tacit.models import Model
from tacit.models.base import Moments
from tacit.posterior import Posterior
from tacit.privacy.budget import Budget
from tacit.rng import fresh_key, seeded_key
from tacit.typing import Array, Key, Params, Record, Tree

__all__ = [
    "FunctionTrainer",
    "LiRA",
    "LossAttack",
    "PlanTrainer",
    "Trainer",
    "audit_membership",
    "canary_scores",
    "lira_scores",
    "shadow_coins",
    "weighted",
]

_SMALLEST_STD = 1e-12


@dataclass(frozen=True, kw_only=True)
class LossAttack:
    """The simplest attack: who is predicted well was there."""

    @property
    def sentence(self) -> str:
        """What it is, for a report."""
        return "membership inference by how well each record is predicted"


@dataclass(frozen=True, kw_only=True)
class LiRA:
    """The likelihood-ratio attack: compares with models trained with and without the record.

    Args:
      num_shadows: how many models; each has every canary with probability one half.
      is_online: whether models with the canary are used too; offline attacks are weaker.

    Reference:
      Carlini et al., "Membership inference attacks from first principles" (2022).
    """

    num_shadows: int = 32
    is_online: bool = True

    @property
    def sentence(self) -> str:
        """What it is, for a report."""
        way = "online" if self.is_online else "offline"
        return f"likelihood-ratio membership inference ({way}, {self.num_shadows} shadow models)"


class Trainer(Protocol):
    """Trains what is audited, and shadow models of it."""

    def train(self, records: Record, *, seed: int | None) -> Posterior:
        """Returns the posterior of one run, with its statement."""
        ...

    def shadow_scores(
        self, records: Record, presence: NDArray[np.float32], canaries: Record, *, seed: int | None
    ) -> Array:
        """Returns each canary's score in each shadow model; ``presence`` has a row for each."""
        ...


@dataclass(frozen=True, kw_only=True)
class PlanTrainer:
    """A plan on a model through `fit`; shadow models are compiled once and run together."""

    plan: Plan
    model: Model
    budget: Budget

    def train(self, records: Record, *, seed: int | None) -> Posterior:
        """Runs the plan by `fit`."""
        return fit(self.plan, self.model, records, budget=self.budget, seed=seed).posterior

    def shadow_scores(
        self, records: Record, presence: NDArray[np.float32], canaries: Record, *, seed: int | None
    ) -> Array:
        """Runs the plan's kernel for all shadow models at once; one chain of each."""
        kernel = self.plan.method.build(self.model)

        # Records are arguments: what a program closes over is part of it, wherever it is kept.
        def one(key: Key, present: Array, records: Record, canaries: Record) -> Array:
            run_key, draw_key = jax.random.split(key)
            kept = _run(kernel, self.plan, run_key, weighted(records, present))
            states = _members_apart(kernel, kept)
            num_draws = _tree.num_records(states)
            draws = jax.vmap(kernel.sampler.draw)(jax.random.split(draw_key, num_draws), states)
            return canary_scores(self.model, draws, canaries)

        key = fresh_key() if seed is None else jax.random.fold_in(seeded_key(seed), 0x5AD0)
        shadows = jax.jit(jax.vmap(one, in_axes=(0, 0, None, None)))
        keys = jax.random.split(key, len(presence))
        return shadows(keys, jnp.asarray(presence), records, canaries)


@dataclass(frozen=True)
class FunctionTrainer:
    """Any function from records and a seed to a posterior; shadow models one after the other."""

    function: Callable[[Record, int | None], Posterior]

    def train(self, records: Record, *, seed: int | None) -> Posterior:
        """Calls the function."""
        return self.function(records, seed)

    def shadow_scores(
        self, records: Record, presence: NDArray[np.float32], canaries: Record, *, seed: int | None
    ) -> Array:
        """Calls the function for each shadow model."""
        rows = []
        for number, present in enumerate(presence):
            # Far from the seed of the run under attack, which may be this one's neighbour.
            own = None if seed is None else seed + 1_000_003 * (number + 1)
            posterior = self.function(weighted(records, present), own)
            rows.append(canary_scores(posterior.model, posterior.draws(), canaries))
        return jnp.stack(rows)


def audit_membership(
    trainer: Trainer,
    records: Record,
    *,
    num_canaries: int,
    attack: LossAttack | LiRA | None = None,
    confidence: float = 0.95,
    is_synthetic: bool = False,
    seed: int | None = None,
) -> AuditResult:
    """Audits a run of any method on any model, on the records themselves.

    Guarantee:
      If the run is as private as its statement says, a violation is reported with probability at
      most ``1 - confidence``, whatever the attack. The result itself is computed from the records
      and is not covered by any guarantee, unless they are synthetic.

    Args:
      trainer: trains the run under attack: `PlanTrainer` or `FunctionTrainer`.
      records: the table that it would be trained on.
      num_canaries: how many random records of it get a coin; the others are always there.
      attack: how canaries are scored; `LossAttack` by default.
      confidence: of lower bound and verdict.
      is_synthetic: whether the records are made up, so that the result may be published.
      seed: for tests; fresh coins and noise by default.
    """
    _check.fraction(one=False, confidence=confidence)
    num_records = _tree.num_records(records)
    _check.positive_integer(num_canaries=num_canaries)
    if num_canaries > num_records:
        raise InvalidArgumentError(
            f"num_canaries must be at most the table's {num_records} records; got {num_canaries}."
        )
    attack = attack or LossAttack()
    generator = np.random.default_rng(None if seed is None else [seed, 0x0E1E])
    rows = generator.choice(num_records, num_canaries, replace=False)
    canaries: Record = _tree.take(records, jnp.asarray(rows))
    is_present = coins(num_canaries, seed=seed)
    posterior = trainer.train(
        weighted(records, _presence(is_present, rows, num_records)), seed=seed
    )
    epsilon, delta = _claim(posterior.statement)
    scores: NDArray[np.float64] | Array = canary_scores(
        posterior.model, posterior.draws(), canaries
    )
    if isinstance(attack, LiRA):
        shadow_has = shadow_coins(attack.num_shadows, num_canaries, seed=seed)
        presence = np.stack([_presence(row, rows, num_records) for row in shadow_has])
        shadows = trainer.shadow_scores(records, presence, canaries, seed=seed)
        scores = lira_scores(scores, shadows, shadow_has, is_online=attack.is_online)
    return one_run_result(
        np.asarray(scores),
        is_present,
        attack=f"{attack.sentence}, {num_canaries} canaries in one run",
        data=AuditedData(
            name="synthetic records" if is_synthetic else "the private records themselves",
            num_records=num_records,
            public=is_synthetic,
            statement=SYNTHETIC if is_synthetic else OWNER_SIDE,
        ),
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
    )


def _presence(
    is_present: NDArray[np.bool_], rows: NDArray[np.int64], num_records: int
) -> NDArray[np.float32]:
    presence = np.ones(num_records, np.float32)
    presence[rows] = is_present
    return presence


def _claim(statement: Mapping[str, Any]) -> tuple[float, float]:
    try:
        return float(statement["epsilon"]), float(statement["delta"])
    except (KeyError, TypeError, ValueError):
        raise InvalidArgumentError(
            "trainer must return a posterior with a privacy statement, which is what is audited;"
            f" got the statement {statement!r}."
        ) from None


def weighted(records: Record, presence: ArrayLike) -> Record:
    """Returns the table in which absent records weigh nothing, as zero-out adjacency has it."""
    shape = (-1, *(1 for _ in records.weight.shape[1:]))
    return records._replace(weight=records.weight * jnp.asarray(presence).reshape(shape))


def canary_scores(model: Model, draws: Params, canaries: Record) -> Array:
    """Returns how well the posterior predictive of the draws knows each canary; high is well.

    For classes this is the log odds of the true class, whose distribution over models is nearly
    Gaussian; for numbers it is the log density.
    """
    loss = objective_of(model).record_loss
    key = seeded_key(0)

    def one(params: Params, record: Record) -> Array:
        return -loss(params, None, record, key)

    each = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(draws, canaries)
    mean = jax.nn.logsumexp(each, axis=0) - jnp.log(each.shape[0])
    if not _is_classification(model, draws, canaries):
        return mean
    # log p - log(1 - p); a p that rounds to one still has odds.
    return mean - jnp.log(jnp.maximum(-jnp.expm1(mean), 1e-7))


def _is_classification(model: Model, draws: Params, canaries: Record) -> bool:
    params, record = jax.tree.map(lambda leaf: leaf[0], (draws, canaries))
    x = record.x if record.mask is None else jax.tree.map(lambda leaf: leaf[0], record.x)
    return not isinstance(jax.eval_shape(model.predict, params, x, seeded_key(0)), Moments)


def shadow_coins(num_shadows: int, num_canaries: int, *, seed: int | None) -> NDArray[np.bool_]:
    """Returns which shadow model has which canary: each canary is in exactly half of them."""
    _check.positive_integer(num_shadows=num_shadows, num_canaries=num_canaries)
    if num_shadows < 4 or num_shadows % 2:
        raise InvalidArgumentError(
            f"num_shadows must be an even number of at least 4; got {num_shadows}."
        )
    generator = np.random.default_rng(None if seed is None else [seed, 0x5AD0])
    half = np.arange(num_shadows)[:, None] < num_shadows // 2
    return generator.permuted(np.broadcast_to(half, (num_shadows, num_canaries)), axis=0)


def lira_scores(
    target: ArrayLike, shadows: ArrayLike, is_present: ArrayLike, *, is_online: bool
) -> NDArray[np.float64]:
    """Returns the likelihood ratio of each canary's score in the target model; high means present.

    Online, the scores of shadow models with the canary and without it each are a Gaussian; offline,
    only those without it are known. Every canary has means of its own; as shadow models are few,
    all share the standard deviations.

    Args:
      target: the score of each canary in the model that is attacked.
      shadows: the same in each shadow model, with shape ``(num_shadows, num_canaries)``.
      is_present: which shadow model had which canary, in the same shape.
      is_online: whether models with the canary may be used too.

    Example:
      >>> shadows, coins = [[0.0, 1.0], [1.0, 0.0]] * 2, [[False, True], [True, False]] * 2
      >>> np.sign(lira_scores([0.9, 0.2], np.add(shadows, [[0], [0], [.1], [.1]]), coins,
      ...                     is_online=True))
      array([ 1., -1.])

    Reference:
      Carlini et al., "Membership inference attacks from first principles" (2022), algorithm 1 and
      section IV C.
    """
    attacked, known = np.asarray(target, np.float64), np.asarray(shadows, np.float64)
    there = np.asarray(is_present, bool)
    if known.ndim != 2 or there.shape != known.shape or attacked.shape != known.shape[1:]:
        raise InvalidArgumentError(
            "target, shadows and is_present must agree in the number of canaries; got shapes"
            f" {attacked.shape}, {known.shape} and {there.shape}."
        )
    out_mean, out_std = _gaussian(known, ~there)
    standardised = (attacked - out_mean) / out_std
    if not is_online:
        return standardised
    in_mean, in_std = _gaussian(known, there)
    log_in = -0.5 * ((attacked - in_mean) / in_std) ** 2 - np.log(in_std)
    return log_in + 0.5 * standardised**2 + np.log(out_std)


def _gaussian(
    scores: NDArray[np.float64], kept: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], float]:
    """The mean of each canary's kept scores, and their common standard deviation about it."""
    count = kept.sum(axis=0)
    if np.any(count == 0):
        raise InvalidArgumentError(
            "is_present must have, for each canary, shadow models with it and without it; got some"
            " with none. Use shadow_coins."
        )
    mean = np.where(kept, scores, 0.0).sum(axis=0) / count
    spread = np.where(kept, scores - mean, 0.0)
    freedom = max(1, int(count.sum()) - len(count))
    return mean, max(float(np.sqrt((spread**2).sum() / freedom)), _SMALLEST_STD)


def _run(kernel: Kernel, plan: Plan, key: Key, records: Record) -> Tree:
    """Returns the retained states of one chain, on their leading axis."""
    init_key, step_key = jax.random.split(key)
    stops = jnp.array(plan.kept_steps)
    starts = jnp.concatenate([jnp.zeros(1, stops.dtype), stops[:-1]])

    def step(t: Array, state: Tree) -> Tree:
        return kernel.step(jax.random.fold_in(step_key, t), state, records)[0]

    def segment(state: Tree, ends: tuple[Array, Array]) -> tuple[Tree, Tree]:
        state = lax.fori_loop(*ends, step, state)
        return state, kernel.retain(state)

    return lax.scan(segment, kernel.init(init_key), (starts, stops))[1]


def _members_apart(kernel: Kernel, kept: Tree) -> Tree:
    if kernel.num_members is None:
        return kept
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), kept)
