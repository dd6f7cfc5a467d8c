"""Training for audits: the run under attack by the public way, and shadow models by the dozen.

Shadow models are trained on private records to attack a model of them. They are work on the owner's
side: nobody else may see them, and no budget is charged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from numpy.typing import NDArray

from tacit import _tree
from tacit.inference import Plan, fit
from tacit.inference.base import Kernel, objective_of
from tacit.models import Model, Moments
from tacit.posterior import Posterior
from tacit.privacy.budget import Budget
from tacit.rng import fresh_key, seeded_key
from tacit.typing import Array, Key, Params, Record, Tree

__all__ = ["FunctionTrainer", "PlanTrainer", "Trainer", "canary_scores", "weighted"]


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

        def one(key: Key, present: Array) -> Array:
            run_key, draw_key = jax.random.split(key)
            kept = _run(kernel, self.plan, run_key, weighted(records, present))
            states = _members_apart(kernel, kept)
            num_draws = _tree.num_records(states)
            draws = jax.vmap(kernel.sampler.draw)(jax.random.split(draw_key, num_draws), states)
            return canary_scores(self.model, draws, canaries)

        key = fresh_key() if seed is None else jax.random.fold_in(seeded_key(seed), 0x5AD0)
        return jax.jit(jax.vmap(one))(jax.random.split(key, len(presence)), jnp.asarray(presence))


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
