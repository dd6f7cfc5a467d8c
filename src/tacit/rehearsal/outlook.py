"""The outlook of a run: a cheap estimate of whether its budget can work at all."""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit import _tree
from tacit.compiling import compiled_once
from tacit.data import Schema
from tacit.data.made_up import made_up_features
from tacit.errors import InvalidArgumentError, UtilityWarning
from tacit.inference import Plan
from tacit.inference.method import objective_of
from tacit.models import Model
from tacit.privacy.clipping import Flat
from tacit.privacy.clipping.bounds import reference_gradient_sum
from tacit.privacy.mechanism import GaussianSum
from tacit.rehearsal.simulated import drawn_records
from tacit.rng import seeded_key
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = ["LEAST_SIGNAL", "engine_of", "signal_to_noise", "simulated_signal", "warn_if_hopeless"]

LEAST_SIGNAL = 1.5
"""Below, a run hardly learns more than chance: docs/rehearsal.md has accuracies beside it."""

_NUM_TRUTHS = 8
_NUM_RECORDS = 128


def engine_of(method: object) -> GaussianSum | None:
    """Returns the engine of a method's gradients; None where it has none of its own."""
    method = getattr(method, "base", method)
    engine = getattr(method, "release", getattr(method, "gradient", None))
    return engine if isinstance(engine, GaussianSum) else None


def simulated_signal(model: Model, params: Params, records: Record, clip_norm: float) -> Array:
    """Returns the sum of clipped gradients, flat, without noise.

    Args:
      model: whose loss.
      params: where.
      records: simulated ones.
      clip_norm: of each gradient.
    """
    record_loss = objective_of(model).record_loss
    num_records = _tree.num_records(records)

    def loss(params: Params, record: Record, key: Key) -> Scalar:
        return record_loss(params, None, record, key)

    total = reference_gradient_sum(
        loss,
        params,
        records,
        jax.random.split(seeded_key(0), num_records),
        jnp.ones(num_records, bool),
        clipping=Flat(),
        clip_norm=clip_norm,
    )
    return ravel_pytree(total)[0]


def signal_to_noise(plan: Plan, total: Array, num_summed: int) -> float:
    """Returns how far a gradient at a start stands out of the noise of all releases together.

    As if all were made there, their average is the gradient ``g`` and noise of some standard
    deviation ``s`` in each of ``d`` coordinates. The squared length of noise alone fluctuates by
    ``s**2 sqrt(2 d)``, and ``|g|**2`` over that is the square of what is returned: below one,
    nothing can tell that there is a gradient at all. NaN where a plan has no noise of this kind.

    Args:
      plan: calibrated.
      total: what `simulated_signal` found.
      num_summed: over how many records.
    """
    engine = engine_of(plan.method)
    if engine is None or not engine.is_private:
        return math.nan
    scale = engine.sampling.public_records / num_summed
    releases = max(1, plan.num_steps or 1)
    noise = engine.noise_std / math.sqrt(releases) * (2 * len(total)) ** 0.25
    return float(np.linalg.norm(total)) * scale / noise


def warn_if_hopeless(
    plan: Plan, model: Model, inputs: Input | Schema, *, epsilon: float, stacklevel: int = 2
) -> None:
    """Warns with `UtilityWarning` where the noise of a run hides what records have to say.

    Guarantee:
      No private record is involved.

    Args:
      plan: calibrated.
      model: of one that cannot draw, or has an improper prior, nothing is known.
      inputs: public or made-up ones, or a schema.
      epsilon: of the budget, for the message.
      stacklevel: whose line the warning names.
    """
    engine = engine_of(plan.method)
    if model.simulator is None or engine is None or not engine.is_private:
        return
    if isinstance(inputs, Schema):
        inputs = made_up_features(inputs, num_rows=_NUM_RECORDS)
    try:
        compiled = _compiled_totals(*model[:4], model.simulator)
        totals = np.asarray(compiled(inputs, engine.clip_norm))
    except (InvalidArgumentError, NotImplementedError):
        return  # no truth can be drawn from an improper prior, which is no reason to refuse a fit
    mean = float(np.mean([signal_to_noise(plan, total, _NUM_RECORDS) for total in totals]))
    if mean >= LEAST_SIGNAL:
        return
    warnings.warn(
        f"this budget can hardly work: at epsilon {epsilon:g} what"
        f" {engine.sampling.public_records:,} records have to say is lost in the noise of the run"
        f" (signal-to-noise {mean:.2g}, where {LEAST_SIGNAL:g} is little). Use a larger epsilon,"
        " more records or fewer parameters; a rehearsal shows what to expect, at no privacy cost.",
        UtilityWarning,
        stacklevel=stacklevel,
    )


@functools.lru_cache(maxsize=16)
def _compiled_totals(*functions: Any) -> Callable[[Input, float], Array]:
    """Returns the clipped sums at a start of the records of several truths."""
    init, log_prior, log_likelihood, predict, simulator = functions
    model = Model(init, log_prior, log_likelihood, predict, None, simulator)

    @compiled_once
    def totals(inputs: Input, clip_norm: float) -> Array:
        start = model.init(seeded_key(0))

        def one(key: Key) -> Array:
            truth_key, records_key = jax.random.split(key)
            truth = simulator.params(truth_key)
            records = drawn_records(simulator.target, records_key, truth, inputs, _NUM_RECORDS)
            return simulated_signal(model, start, records, clip_norm)

        return jax.vmap(one)(jax.random.split(jax.random.key(0), _NUM_TRUTHS))

    return totals
