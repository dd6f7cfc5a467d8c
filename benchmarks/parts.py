"""Where the time of a private step goes: its parts, each by itself in a loop, and the whole.

Clipping is timed in three stages, each of which goes further than the one before and begins with
the gather, so that a stage reads what the step reads. A part of it is the difference of two.
Nothing is computed when this is imported, so that processes can start afterwards.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.loops import in_loop, made_in_loop, private_step
from benchmarks.timing import Visit
from tacit import _tree
from tacit.inference import SGD, VI
from tacit.inference.compilation import step_key
from tacit.inference.method import objective_of
from tacit.models import Model
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.book_keeping import _Batch, norms_and_sum
from tacit.privacy.clipping.gradient import find_norm_plan, gradient_summation_of
from tacit.privacy.clipping.operations import NormPlan
from tacit.privacy.clipping.slack import Counted
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.noise import noisy
from tacit.rng import seeded_key
from tacit.tables.base import Batch, InMemory, drawn_batch
from tacit.typing import Array, Key, Params, Record, RecordLoss, Scalar, Tree

__all__ = ["LEFT", "PARTS", "STEP", "engine_noise", "parts_in", "visits_of_parts"]

STEP, LEFT = "step", "what is left"

_STAGES = {
    "gather": "gather",
    "forward and backward": "to derivatives",
    "norms": "to norms",
    "sum": "to the sum",
}
"""Parts that are differences of stages, in their order; the first begins at nothing."""

PARTS = ("draw", *_STAGES, "noise", "update", LEFT)
"""In the order of a step."""


def parts_in(ms: Mapping[str, float]) -> dict[str, float]:
    """Returns the milliseconds of each part, from those of what `visits_of_parts` visits."""
    found = {name: ms[name] for name in ("draw", "noise", "update")}
    before = 0.0
    for part, stage in _STAGES.items():
        if stage in ms:
            found[part] = ms[stage] - before
            before = ms[stage]
    found[LEFT] = ms[STEP] - sum(found.values())
    return {part: found[part] for part in PARTS if part in found}


def visits_of_parts(method: SGD | VI, model: Model, records: Record) -> dict[str, Visit]:
    """Returns what is visited: parts and stages of a step of this method, and the whole step.

    Where records are clipped one by one, the sum has no stages before it.
    """
    key, sampling = seeded_key(0), method.release.sampling
    kernel = method.build(model)
    params = jax.jit(model.init)(key)
    data = params, records, sampling.draw(key)
    stages = _stages(method.release, model)
    if isinstance(find_norm_plan(_loss_of(model), params, _tree.row_shapes(records), key), str):
        del stages["to derivatives"], stages["to norms"]
    sums = jax.eval_shape(stages["to the sum"], jnp.int32(0), key, data)

    def draw(t: Array, key: Key, data: None) -> Batch:
        return drawn_batch(sampling, step_key(key, t), None)

    return {
        "draw": made_in_loop(draw, key, None),
        **{name: made_in_loop(stage, key, data) for name, stage in stages.items()},
        "noise": engine_noise(sums.shape[1], num_limbs=sums.shape[0]),
        "update": _update(method, model, records),
        STEP: in_loop(private_step(kernel), jax.jit(kernel.init)(key), key, records),
    }


def engine_noise(num_values: int, *, num_limbs: int = 1) -> Visit:
    """Returns the visit that adds the engine's exact noise to so many integers, in a loop."""
    num_columns = -(-num_values // 2)

    def release(t: Array, key: Key, total: Array) -> Array:
        own = step_key(key, t)
        return noisy(own, total, ratio=2.0**18, scale=1.0, num_columns=num_columns)

    total = jnp.zeros((num_limbs, 2, num_columns), jnp.int32)
    return made_in_loop(release, seeded_key(0), total)


def _update(method: SGD | VI, model: Model, records: Record) -> Visit:
    """Returns the visit of steps that are given a release in the place of their table."""
    release, key, asked = method.release, seeded_key(0), []

    class Given(GaussianSum):
        def counted_gradient(
            self,
            key: Key,
            loss: RecordLoss,
            params: Params,
            data: Any,
            *,
            noise_multiplier: Scalar | float | None = None,
            clip_norm: Scalar | float | None = None,
        ) -> Counted:
            asked.append(params)
            return data

    kernel = replace(method, release=Given(**vars(release))).build(model)

    def update(t: Array, key: Key, carry: Any, found: Counted) -> Any:
        state, _ = kernel.step(step_key(key, t), carry[0], found)
        draws = asked.pop()
        # Records would be asked with these draws: they leave the loop, so they are made.
        return state, draws if isinstance(method, VI) else None

    params = jax.jit(model.init)(key)
    start = [params] if isinstance(method, VI) else None
    found = jax.eval_shape(
        functools.partial(release.counted_gradient, key, _loss_of(model)), start or params, records
    )
    given = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 1e-3, leaf.dtype), found)
    return in_loop(update, (jax.jit(kernel.init)(key), start), key, given)


def _loss_of(model: Model) -> RecordLoss:
    objective = objective_of(model)

    def loss(params: Params, record: Tree, key: Key) -> Scalar:
        # Aligned releases have a list of draws, of which a step has one here.
        draw = params[0] if isinstance(params, list) else params
        return objective.record_loss(draw, None, record, key)

    return loss


def _stages(release: GaussianSum, model: Model) -> dict[str, Callable[..., Tree]]:
    """Returns functions of a step, a key and (parameters, records, a batch)."""
    loss, sampling = _loss_of(model), release.sampling
    settings: Any = {"clipping": release.clipping, "clip_norm": release.clip_norm}

    def gathered(t: Array, key: Key, data: Any) -> tuple[Params, Tree, Key, Array]:
        # Other rows and, as far as the compiler can tell, other parameters at each step.
        params, _ = lax.optimization_barrier((data[0], t))
        table, batch = InMemory(data[1]), data[2]
        moved = Batch((batch.indices + t) % table.num_records, batch.mask)
        rows, own, _ = table.gather(moved, key, rate=sampling.rate)
        keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(own.indices)
        return params, rows, keys, own.mask

    def planned(params: Params, rows: Tree, keys: Key) -> NormPlan:
        plan = find_norm_plan(loss, params, _tree.row_shapes(rows), keys[0])
        assert isinstance(plan, NormPlan)
        return plan

    def gather(t: Array, key: Key, data: Any) -> Tree:
        return gathered(t, key, data)[1]

    def derivatives(t: Array, key: Key, data: Any) -> Tree:
        params, rows, keys, _ = gathered(t, key, data)
        plan = planned(params, rows, keys)
        work = _Batch(plan, jax.tree.leaves(params), [*jax.tree.leaves(rows), keys])
        return work.saved, work.cotangents

    def norms(t: Array, key: Key, data: Any) -> Tree:
        params, rows, keys, mask = gathered(t, key, data)
        return norms_and_sum(planned(params, rows, keys), params, rows, keys, mask, **settings)[0]

    def total(t: Array, key: Key, data: Any) -> Array:
        params, rows, keys, mask = gathered(t, key, data)
        shape = _tree.row_shapes(rows)
        summation = gradient_summation_of(loss, params, shape, keys[0]).counting(release.clipping)
        lattice = summation.lattice
        adding = Adding(
            units=2.0**lattice.exponent / release.clip_norm,
            num_limbs=lattice.num_limbs(sampling.capacity),
            heights=summation.heights,
        )
        clipped = summation.clipped_sum(rows, keys, mask, adding=adding, **settings)
        return summation.in_one(clipped, adding)

    functions = (gather, derivatives, norms, total)
    return dict(zip(_STAGES.values(), functions, strict=True))
