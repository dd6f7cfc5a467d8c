"""Simulated data sets: a truth, records that it made, and others to score predictions with."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit import _tree
from tacit.data import Schema
from tacit.data.made_up import made_up_features
from tacit.errors import InvalidArgumentError
from tacit.inference.evidence import has_hidden_layers
from tacit.models import Model
from tacit.models.base import Moments
from tacit.rng import seeded_key
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = ["NUM_SCORED", "DataSet", "Nature", "drawn_records", "plausible_truths"]

NUM_SCORED = 1000
"""Records on which predictions are scored: a share has then an error of at most 1.6 %."""

_SPREAD_OF_LOG_ODDS, _SPREAD_OF_MEANS = (1.5, 6.0), (0.2, 0.6)
_NUM_DRAWN, _SHARE = 64, 0.02


class DataSet(NamedTuple):
    """What nature made in one repeat.

    Attributes:
      truth: the parameters that made the records.
      records: what the run sees.
      scored: other records of the same truth.
    """

    truth: Params
    records: Record
    scored: Record


def drawn_records(
    target: Callable[[Params, Input, Key], Array],
    key: Key,
    truth: Params,
    pool: Input,
    number: int,
) -> Record:
    """Returns records with inputs of a pool, drawn with replacement, and targets of a truth."""
    pick_key, target_key = jax.random.split(key)
    x = _tree.take(pool, jax.random.randint(pick_key, (number,), 0, _tree.num_records(pool)))
    keys = jax.random.split(target_key, number)
    y = jax.vmap(target, in_axes=(None, 0, 0))(truth, x, keys)
    return Record(x, y, jnp.ones(number))


def plausible_truths(model: Model, inputs: Input | Schema) -> Callable[[Key], Params] | None:
    """Returns a narrower prior for the truths of a table; None where the model's own will do.

    A prior for inference may be wide at little cost: it only has to leave the records room. Truths
    drawn from it are then extreme. With a standard deviation of 3 and twenty columns in [-1, 1],
    log odds spread by 8, so that simulated classes are nearly separable, and simulated numbers lie
    far beyond the range of their target. So each draw is multiplied with a factor, of at most one,
    with which the log odds of truths spread over the records by 1.5 to 6, log-uniformly: the best
    possible accuracy is then between 0.7 and 0.9. The means of a target in [-1, 1] spread by 0.2
    to 0.6. Models with hidden layers keep their prior.

    Guarantee:
      No private record is involved.

    Args:
      model: of `tacit.bayesian` or alike, whose network has its parameters at ``"network"``.
      inputs: public or made-up ones, or a schema, as in `rehearse`.
    """
    if model.simulator is None or model.spec is None or has_hidden_layers(model):
        return None
    if isinstance(inputs, Schema):
        inputs = made_up_features(inputs, num_rows=NUM_SCORED)
    draw = model.simulator.params

    def narrowed(key: Key, factor: float | Array) -> Params:
        found = draw(key)
        return {**found, "network": jax.tree.map(lambda leaf: factor * leaf, found["network"])}

    def squared(key: Key) -> Scalar:
        # Outputs are linear in the parameters; so small a share keeps probabilities off 0 and 1.
        params = narrowed(key, _SHARE)
        found = jax.vmap(lambda x: model.predict(params, x, key))(inputs)
        if isinstance(found, Moments):
            return jnp.mean((found.mean / _SHARE) ** 2)
        return jnp.mean(((jnp.log(found[:, 1:]) - jnp.log(found[:, :1])) / _SHARE) ** 2)

    keys = jax.random.split(seeded_key(0), _NUM_DRAWN)
    try:
        prior_spread = math.sqrt(float(jnp.mean(jax.jit(jax.vmap(squared))(keys))))
        first = jax.tree.map(lambda leaf: leaf[0], inputs)
        outputs = jax.eval_shape(model.predict, draw(keys[0]), first, keys[0])
    except (InvalidArgumentError, NotImplementedError):  # an improper prior: `Nature` tells of it
        return None
    low, high = _SPREAD_OF_MEANS if isinstance(outputs, Moments) else _SPREAD_OF_LOG_ODDS

    def truths(key: Key) -> Params:
        draw_key, spread_key = jax.random.split(key)
        spread = low * (high / low) ** jax.random.uniform(spread_key)
        return narrowed(draw_key, jnp.minimum(spread / prior_spread, 1.0))

    return truths


class Nature:
    """Draws data sets from a model; compiled once."""

    def __init__(
        self,
        model: Model,
        inputs: Input | Schema,
        *,
        num_records: int,
        truths: Callable[[Key], Params] | None = None,
    ) -> None:
        """Checks what is needed.

        Args:
          model: whose simulator draws parameters and targets.
          inputs: public or made-up inputs, from which those of records are drawn with replacement;
            a schema stands for inputs that are spread evenly over it.
          num_records: of one data set.
          truths: draws parameters, in place of the model's prior.
        """
        if model.simulator is None:
            raise InvalidArgumentError(
                "model must say how parameters and targets are drawn; got one without a simulator."
                " Models of tacit.bayesian and tacit.from_program have one; to others give"
                " model._replace(simulator=tacit.models.base.Simulator(params, target))."
            )
        if isinstance(inputs, Schema):
            inputs = made_up_features(inputs, num_rows=max(num_records, NUM_SCORED))
        draw_params, draw_target = truths or model.simulator.params, model.simulator.target
        self.inputs = jax.tree.map(jnp.asarray, inputs)
        try:
            drawn, wanted = (
                jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(draw, seeded_key(0)))
                for draw in (draw_params, model.init)
            )
        except NotImplementedError:  # as NumPyro has it for improper priors
            raise InvalidArgumentError(
                "the prior of the model must be a distribution for truths to be drawn from it. Use"
                " a proper one, or give truths=."
            ) from None
        if drawn != wanted:
            raise InvalidArgumentError(
                f"truths must draw parameters like the model's, of shapes {wanted}; got {drawn}."
            )

        @jax.jit
        def data_set(key: Key, pool: Input) -> DataSet:
            truth_key, key, scored_key = jax.random.split(key, 3)
            truth = draw_params(truth_key)
            return DataSet(
                truth,
                drawn_records(draw_target, key, truth, pool, num_records),
                drawn_records(draw_target, scored_key, truth, pool, NUM_SCORED),
            )

        self._data_set = data_set

    def data_set(self, seed: int) -> DataSet:
        """Returns the data set of a seed; the same for all candidates."""
        found = self._data_set(jax.random.key(seed), self.inputs)
        leaves: list[Array] = jax.tree.leaves(found)
        if not all(np.all(np.isfinite(leaf)) for leaf in leaves):
            raise InvalidArgumentError(
                "the prior of the model must give finite targets; one of its draws did not. A"
                " narrower prior says better what is known beforehand; or give truths=."
            )
        return found
