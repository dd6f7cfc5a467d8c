"""Runs of one plan on many simulated data sets side by side, and what could be known of them."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

import tacit
from examples.coverage.problem import Problem
from tacit.inference.method import Kernel
from tacit.typing import Array, Key, Params, Record, Tree

__all__ = [
    "NUM_DRAWS",
    "Reference",
    "Simulated",
    "optimum",
    "privacy_noise",
    "reference",
    "simulate",
    "spread",
]

NUM_DRAWS = 400
"""Of a posterior that is not a chain."""

_NUMBERS_AT_ONCE = 400_000
"""Records times parameters that are in memory for one step of several data sets: more of them leave
the cache of the processor."""


class Simulated(NamedTuple):
    """Independent data sets, each with a truth, records and a run of its own.

    Attributes:
      truth: the quantities at each set's truth, ``(num_sets, num_quantities)``.
      draws: parameters of each set's posterior, as the method made them, flat:
        ``(num_draws, num_sets, num_parameters)``.
      evidence: what the runs noted of their releases; each leaf has the axis of sets in front.
    """

    truth: NDArray[np.float64]
    draws: NDArray[np.float64]
    evidence: Tree


def simulate(
    plan: tacit.Plan,
    problem: Problem,
    *,
    num_sets: int,
    seed: int = 0,
    kernel: Kernel | None = None,
    records_of: Callable[[Record], Tree] = lambda records: records,
) -> Simulated:
    """Runs a plan on data sets side by side; one seed means the same data sets for every plan.

    JAX's own generator is faster than the secure one, and no secret is kept here.

    Args:
      plan: what is run; its noise is that of a real run.
      problem: which draws truths and records.
      num_sets: how many.
      seed: of truths, records and runs.
      kernel: of the plan's method; None builds it on the problem's model.
      records_of: how the kernel wants the records.
    """
    kernel = kernel or plan.method.build(problem.model)
    kept_steps = np.asarray(plan.kept_steps)

    def one_set(keys: tuple[Key, Key]) -> tuple[Array, Array, Tree]:
        truth_key, records_key = jax.random.split(keys[0])
        init_key, step_key, draw_key = jax.random.split(keys[1], 3)
        truth = problem.truth(truth_key)
        records = records_of(problem.observe(records_key, truth))

        def step(state: Any, key: Key) -> tuple[Any, Any]:
            state, _ = kernel.step(key, state, records)
            return state, kernel.retain(state) if len(kept_steps) > 1 else None

        step_keys = jax.random.split(step_key, plan.kept_steps[-1])
        last, retained = jax.lax.scan(step, kernel.init(init_key), step_keys)
        noted = kernel.evidence(last) if kernel.evidence else None
        if len(kept_steps) > 1:
            states = jax.tree.map(lambda leaf: leaf[kept_steps - 1], retained)
            draw_keys = jax.random.split(draw_key, len(kept_steps))
            draws = jax.vmap(kernel.sampler.draw)(draw_keys, states)
        else:
            draw = jax.vmap(kernel.sampler.draw, in_axes=(0, None))
            draws = draw(jax.random.split(draw_key, NUM_DRAWS), kernel.retain(last))
        return problem.quantities_at(truth), jax.vmap(_flat)(draws), noted

    data_key, run_key = jax.random.split(jax.random.key(seed))
    keys = (jax.random.split(data_key, num_sets), jax.random.split(run_key, num_sets))
    truth, draws, noted = _mapped(one_set, keys, problem)
    draws = np.moveaxis(draws, 1, 0)
    return Simulated(np.asarray(truth, np.float64), np.asarray(draws, np.float64), noted)


def _flat(params: Params) -> Array:
    return ravel_pytree(params)[0]


def _size(problem: Problem) -> int:
    return int(jax.eval_shape(lambda: _flat(problem.model.init(jax.random.key(0)))).shape[0])


def _mapped(one_set: Callable[[Any], Any], keys: Any, problem: Problem) -> Any:
    """Returns a function's results for all data sets, as many at once as fit in the cache."""
    batch = max(1, _NUMBERS_AT_ONCE // (problem.num_records * _size(problem)))
    found = jax.jit(lambda keys: jax.lax.map(one_set, keys, batch_size=batch))(keys)
    return jax.tree.map(np.asarray, found)


class Reference(NamedTuple):
    """What only who sees records and truths can compute; axis of sets first.

    Attributes:
      truth: the quantities at each set's truth, ``(num_sets, num_quantities)``.
      mode: of the posterior, ``(num_sets, num_parameters)``.
      information: the curvature of the summed loss at the mode.
      prior: the curvature of the negative log prior at the mode.
      quantities: at the mode, ``(num_sets, num_quantities)``.
      jacobian: of the quantities at the mode.
    """

    truth: NDArray[np.float64]
    mode: NDArray[np.float64]
    information: NDArray[np.float64]
    prior: NDArray[np.float64]
    quantities: NDArray[np.float64]
    jacobian: NDArray[np.float64]

    @property
    def precision(self) -> NDArray[np.float64]:
        """Of the posterior without privacy, by Laplace's method."""
        return self.information + self.prior


def reference(problem: Problem, *, num_sets: int, seed: int = 0) -> Reference:
    """Returns the modes of the data sets that `simulate` makes, found from their truths."""
    model = problem.model
    key = jax.random.key(0)  # models here are not random

    def one_set(data_key: Key) -> Reference:
        truth_key, records_key = jax.random.split(data_key)
        truth = problem.truth(truth_key)
        records = problem.observe(records_key, truth)
        start, unflat = ravel_pytree(problem.near(truth))

        def loss(vector: Array) -> Array:
            one = partial(model.log_likelihood, unflat(vector))
            return -jnp.sum(jax.vmap(one, in_axes=(0, None))(records, key))

        def negative_log_prior(vector: Array) -> Array:
            return -model.log_prior(unflat(vector))

        def curvature(vector: Array) -> Array:
            if problem.information is None:
                return jax.hessian(loss)(vector)
            return problem.information(unflat(vector), records)

        def objective(vector: Array) -> Array:
            return loss(vector) + negative_log_prior(vector)

        def newton(vector: Array, _: None) -> tuple[Array, None]:
            hessian = curvature(vector) + jax.hessian(negative_log_prior)(vector)
            values, vectors = jnp.linalg.eigh(hessian)
            slope = vectors.T @ jax.grad(objective)(vector)
            direction = vectors @ (slope / jnp.maximum(jnp.abs(values), 1e-3))
            candidates = vector - jnp.array([1.0, 0.5, 0.1, 0.01, 0.0])[:, None] * direction
            return candidates[jnp.argmin(jax.vmap(objective)(candidates))], None

        mode, _ = jax.lax.scan(newton, start, length=30)
        return Reference(
            problem.quantities_at(truth),
            mode,
            curvature(mode),
            jax.hessian(negative_log_prior)(mode),
            problem.quantities(unflat(mode)),
            jax.jacfwd(lambda vector: problem.quantities(unflat(vector)))(mode),
        )

    data_key, _ = jax.random.split(jax.random.key(seed))
    found = _mapped(one_set, jax.random.split(data_key, num_sets), problem)
    return Reference(*(np.asarray(leaf, np.float64) for leaf in found))


def gdp_of(epsilon: float, delta: float) -> float:
    """Returns the mu of the Gaussian mechanism that spends a budget to the last bit."""

    def excess(mu: float) -> float:
        tail = epsilon + log_ndtr(-epsilon / mu - mu / 2)
        return math.exp(log_ndtr(-epsilon / mu + mu / 2)) - math.exp(tail) - delta

    return float(brentq(excess, 1e-5, 100.0))


def privacy_noise(clip_norm: float, budget: tacit.Budget) -> float:
    """Returns the variance of one release of the gradient that spends the whole budget."""
    return (clip_norm / gdp_of(budget.epsilon, budget.delta)) ** 2


def optimum(found: Reference, noise: float) -> NDArray[np.float64]:
    """Returns the standard deviations of the noise-aware optimum, ``(num_sets, num_quantities)``.

    That is the posterior of who is told the true curvature and spends the whole budget on one
    release of the gradient at the mode: precision ``P + A (A + S)^-1 A``.

    Args:
      found: the curvatures.
      noise: the variance of that release.
    """
    information = found.information
    eye = np.eye(information.shape[-1])
    seen = information @ np.linalg.solve(information + noise * eye, information)
    return spread(found, found.prior + seen)


def spread(found: Reference, precision: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the standard deviations of the quantities under a precision of the parameters."""
    covariance = np.linalg.inv(precision)
    variance = np.einsum("sqi,sij,sqj->sq", found.jacobian, covariance, found.jacobian)
    return np.sqrt(variance)
