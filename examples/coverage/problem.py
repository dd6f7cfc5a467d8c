"""A problem of the coverage study: a model, and how nature draws truths and records from it."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import tacit
from tacit.typing import Array, Key, Params, Record

__all__ = ["CURVATURE_SCALE", "Problem", "flat", "measured"]

CURVATURE_SCALE = 3.0
"""Of `Laplace`: how curvatures are weighed inside the clip."""

NUM_CLIPPED = 5
"""How many records of a data set a clip norm is allowed to touch."""


def flat(params: Params) -> Array:
    """Returns all parameters in one vector: what intervals are about in most problems."""
    return ravel_pytree(params)[0]


class Problem(NamedTuple):
    """A model, and how nature draws its records.

    Attributes:
      model: four functions; its prior is the one that truths are drawn from.
      num_records: of one data set.
      truth: draws parameters from the prior.
      observe: draws the records of one data set, given the truth.
      precision: the largest posterior precision of any direction in a typical data set. Step sizes
        follow from it; it is public, because it is found without a data set.
      clip_norm: which hardly ever touches the gradient of a record at the truth.
      joint_clip_norm: the same for gradient and curvature together, as `Laplace` releases them.
      quantities: what intervals are about, of the model's parameters.
      is_function: whether the quantities are values of a function, not the parameters.
      true_quantities: the same of the truth, where the truth is not of the model.
      information: the curvature of the summed loss; None where it is the second derivative.
      program: a NumPyro program with the same parameters; None where there is none.
    """

    model: tacit.Model
    num_records: int
    truth: Callable[[Key], Params]
    observe: Callable[[Key, Params], Record]
    precision: float = math.nan
    clip_norm: float = math.nan
    joint_clip_norm: float = math.nan
    quantities: Callable[[Params], Array] = flat
    is_function: bool = False
    true_quantities: Callable[[Params], Array] | None = None
    information: Callable[[Params, Record], Array] | None = None
    program: Callable[..., None] | None = None

    def quantities_at(self, truth: Params) -> Array:
        """Returns what intervals should hold."""
        return (self.true_quantities or self.quantities)(truth)

    def near(self, truth: Params) -> Params:
        """Returns parameters of the model from which its mode can be found."""
        return truth if self.true_quantities is None else self.model.init(jax.random.key(0))


def measured(problem: Problem, *, num_sets: int = 64, seed: int = 99) -> Problem:
    """Returns the problem with its precision and clip norms, by simulation: no data set is read.

    Clip norms are quantiles over simulated records, at the truths that made them, such that about
    five records of a data set are clipped. What that moves the gradient by is then less than the
    noise for any number of records; a fixed share of the records would move it by more and more.
    """
    model = problem.model

    def one(key: Key) -> tuple[Array, Array, Array]:
        truth_key, records_key = jax.random.split(key)
        params = problem.truth(truth_key)
        records = problem.observe(records_key, params)
        vector, unflat = ravel_pytree(params)

        def loss(vector: Array, record: Record) -> Array:
            return -model.log_likelihood(unflat(vector), record, key)

        def total(vector: Array) -> Array:
            return jnp.sum(jax.vmap(loss, in_axes=(None, 0))(vector, records))

        def norms(record: Record) -> tuple[Array, Array]:
            gradient = jnp.sum(jax.grad(loss)(vector, record) ** 2)
            curvature = jnp.sum(jax.hessian(loss)(vector, record) ** 2)
            # The least C with  gradient + (scale / C)^2 curvature <= C^2.
            root = jnp.sqrt(gradient**2 + 4 * CURVATURE_SCALE**2 * curvature)
            return jnp.sqrt(gradient), jnp.sqrt((gradient + root) / 2)

        if problem.information is None:
            information = jax.hessian(total)(vector)
        else:
            information = problem.information(params, records)
        prior = -jax.hessian(lambda v: model.log_prior(unflat(v)))(vector)
        few = jax.tree.map(lambda leaf: leaf[:500], records)
        return jnp.linalg.eigvalsh(information + prior)[-1], *jax.vmap(norms)(few)

    keys = jax.random.split(jax.random.key(seed), num_sets)
    largest, *norms = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
    clip_norm, joint_clip_norm = (
        float(np.quantile(norm, 1 - NUM_CLIPPED / problem.num_records)) for norm in norms
    )
    return problem._replace(
        precision=float(np.median(largest)), clip_norm=clip_norm, joint_clip_norm=joint_clip_norm
    )
