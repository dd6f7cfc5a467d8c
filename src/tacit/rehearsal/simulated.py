"""Simulated data sets: a truth, records that it made, and others to score predictions with."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit import _tree
from tacit.data import Schema
from tacit.data.made_up import made_up_features
from tacit.errors import InvalidArgumentError
from tacit.models import Model
from tacit.rng import seeded_key
from tacit.typing import Array, Input, Key, Params, Record

__all__ = ["NUM_SCORED", "DataSet", "Nature", "drawn_records"]

NUM_SCORED = 1000
"""Records on which predictions are scored: a share has then an error of at most 1.6 %."""


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
