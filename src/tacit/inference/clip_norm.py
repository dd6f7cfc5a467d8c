"""Choosing the clip norm: from synthetic records at no privacy cost, or from private ones."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit import _check, _tree
from tacit.compiling import compiled_once
from tacit.errors import InvalidArgumentError
from tacit.inference.method import objective_of
from tacit.models import Model
from tacit.models.base import Moments
from tacit.models.programs.gradients import gradient_norms
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.charging import charged_key
from tacit.privacy.clipping.bounds import squared_norms
from tacit.privacy.cost import Cost
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import seeded_key
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = ["data_free_clip_norm", "gradient_norm", "private_clip_norm", "synthetic_records"]


_NUM_TRUTHS = 8
"""Of a program: gradients are long at some truths and short at others."""


def synthetic_records(model: Model, inputs: Input, *, seed: int = 0) -> Record:
    """Returns records with the given inputs and targets drawn from the model's own start.

    Args:
      model: gives the distribution of targets at a random start.
      inputs: synthetic or public inputs, one row for each; never private ones.
      seed: of start and targets.
    """
    num_inputs = _tree.num_records(inputs)

    @compiled_once
    def targets(inputs: Input, key: Key) -> Array:
        keys = jax.random.split(key, num_inputs + 1)
        params = model.init(keys[0])

        def target(x: Input, key: Key) -> Array:
            predict_key, target_key = jax.random.split(key)
            prediction = model.predict(params, x, predict_key)
            if isinstance(prediction, Moments):
                noise = jax.random.normal(target_key, prediction.mean.shape)
                return prediction.mean + jnp.sqrt(prediction.variance) * noise
            return jax.random.categorical(target_key, jnp.log(prediction))

        return jax.vmap(target)(inputs, keys[1:])

    return Record(inputs, targets(inputs, seeded_key(seed)), jnp.ones(num_inputs))


def data_free_clip_norm(
    model: Model | Callable[..., Any],
    synthetic: Record | Sequence[Any],
    *,
    quantile: float = 0.99,
    plate: str | None = None,
    seed: int = 1,
) -> float:
    """Returns a quantile of the gradient norms of synthetic records.

    Of a `Model` they are taken at a random start; of a NumPyro program at draws from its prior,
    which also make what the program observes. The default leaves nearly all records as they are, so
    that the clip does not move intervals off the truth. A median halves the noise, and biases.

    Guarantee:
      No private record is involved, so this is free.

    Args:
      model: what will be fitted, or a NumPyro program as `tacit.numpyro.DPSVI` takes it.
      synthetic: made by `synthetic_records`, or public. For a program, the arguments of a call, of
        made-up or public inputs, with None where the program shall draw targets.
      quantile: the share of records that is not clipped.
      plate: the name of a program's record plate, where there are several.
      seed: of the start, or of the draws.

    Example:
      >>> import numpyro
      >>> import numpyro.distributions as dist
      >>> def program(x, y):
      ...     slope = numpyro.sample("slope", dist.Normal(0, 1))
      ...     with numpyro.plate("people", len(x)):
      ...         numpyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)
      >>> norm = data_free_clip_norm(program, (jnp.linspace(-1, 1, 200), None))
      >>> 0.7 < norm < 1
      True
    """
    _check.fraction(quantile=quantile, one=False)
    if isinstance(model, Model):
        if not isinstance(synthetic, Record):
            raise InvalidArgumentError(
                f"synthetic must be a Record for a Model; got {type(synthetic).__name__}. Make one"
                " with tacit.inference.synthetic_records."
            )

        @compiled_once
        def norms_of(synthetic: Record, key: Key) -> Array:
            init_key, record_key = jax.random.split(key)
            keys = jax.random.split(record_key, _tree.num_records(synthetic))
            return jax.vmap(gradient_norm(model, model.init(init_key)))(synthetic, keys)

        norms = np.asarray(norms_of(synthetic, seeded_key(seed)))
    else:
        if isinstance(synthetic, Record) or not isinstance(synthetic, tuple | list):
            raise InvalidArgumentError(
                "synthetic must be a tuple of a program's arguments, such as (x, None); got"
                f" {type(synthetic).__name__}."
            )
        draws = jax.random.split(jax.random.key(seed), _NUM_TRUTHS)
        norms = np.concatenate(
            [gradient_norms(model, synthetic, key, plate=plate) for key in draws]
        )
    norms = norms[np.isfinite(norms)]
    if not norms.size or not np.quantile(norms, quantile) > 0:
        raise InvalidArgumentError(
            "synthetic must give finite, non-zero gradients at the model's start; none did. Give"
            " inputs in the range of the schema."
        )
    return float(np.quantile(norms, quantile))


def private_clip_norm(
    model: Model,
    records: Record,
    *,
    budget: Budget,
    noise_multiplier: float,
    quantile: float = 0.5,
    lowest: float = 1e-3,
    highest: float = 1e3,
    num_bins: int = 60,
    seed: int | None = None,
    ledger: Ledger | None = None,
) -> tuple[float, Cost]:
    """Returns a private quantile of the gradient norms at a random start, and what it cost.

    Each record falls into one of ``num_bins`` geometric bins of gradient norm; one noisy histogram
    is released and the quantile read off it.

    Guarantee:
      One full-batch Gaussian release of sensitivity one; its cost is returned and must be
      counted: ``Plan(spent=cost)``. Raises `BudgetExceededError` before reading a record when the
      budget does not allow it.

    Args:
      model: what will be fitted.
      records: the private table.
      budget: what may be spent, here and by the plan together.
      noise_multiplier: standard deviation of the noise on each bin's count.
      quantile: which.
      lowest: norms below are counted in the first bin; public.
      highest: norms above are counted in the last bin; public.
      num_bins: how fine.
      seed: for tests only; replaces the fresh key, INSECURE.
      ledger: is charged before any record is read; `fit` charges its own steps, not this.
    """
    _check.positive(lowest=lowest, highest=highest, noise_multiplier=noise_multiplier)
    _check.positive_integer(num_bins=num_bins)
    _check.fraction(quantile=quantile, one=False)
    if not lowest < highest:
        raise InvalidArgumentError(f"lowest must be below highest={highest}; got {lowest}.")
    num_records = _tree.num_records(records)
    release = GaussianSum(
        sampling=FullBatch(num_records=num_records),
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        chunk_size=256,
    )
    key, cost = charged_key(
        release.cost,
        budget=budget,
        ledger=ledger,
        seed=seed,
        purpose="private clip norm",
        records=records,
    )
    edges = np.geomspace(lowest, highest, num_bins)
    init_key, release_key = jax.random.split(key)

    # Start and edges are arguments, so that no width of theirs is taken for the table's length.
    @jax.jit
    def histogram(key: Key, params: Params, edges: Array, data: Record) -> Array:
        norm = gradient_norm(model, params)

        def bin_of(record: Record, key: Key) -> Array:
            position = jnp.searchsorted(edges, norm(record, key))
            return jax.nn.one_hot(jnp.minimum(position, num_bins - 1), num_bins)

        total: Array = release(key, bin_of, data)
        return total

    start = model.init(init_key)
    counts = np.asarray(histogram(release_key, start, jnp.asarray(edges, jnp.float32), records))
    # Post-processing: a running maximum makes the noisy distribution function monotone.
    cumulative = np.maximum.accumulate(np.cumsum(counts))
    at = min(int(np.searchsorted(cumulative, quantile * num_records)), num_bins - 1)
    return float(edges[at]), cost


def gradient_norm(model: Model, params: Params) -> Callable[[Record, Key], Scalar]:
    """Returns the gradient norm of one record as a function of it and its key."""
    objective = objective_of(model)

    def norm(record: Record, key: Key) -> Scalar:
        gradient = jax.grad(objective.record_loss)(params, None, record, key)
        return jnp.sqrt(sum(jax.tree.leaves(squared_norms(gradient))))

    return norm
