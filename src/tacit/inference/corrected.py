"""Corrected posteriors: draws given all releases of a run, and what is known of their intervals."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.stats import chi2

from tacit import _tree
from tacit.inference.evidence import MAX_PARAMETERS, has_hidden_layers
from tacit.inference.method import Kernel, objective_of
from tacit.inference.noise_aware import (
    Matrix,
    NoiseAware,
    PriorSite,
    Vector,
    noise_aware,
    releases_in,
)
from tacit.intervals import IntervalFacts, Parts
from tacit.models import Model
from tacit.models.base import IntegrableLogPrior
from tacit.posterior import Posterior
from tacit.rng import seeded_key
from tacit.samplers import Points
from tacit.tables.base import as_table
from tacit.typing import Array, Key, Params, Scalar, Tree

__all__ = [
    "MOST_NEGATIVE",
    "FlatDraws",
    "caveats_of",
    "corrected",
    "flat_draws",
    "obstacle_in",
    "prior_site",
]

_DRAWS_A_COMPONENT = 10
_NUM_UPDATES = 60
"""Elliptical slices from draws that are nearly right: the reference is the posterior under a
Gaussian that stands for the prior."""

_LARGEST_DOUBT = 0.45
"""Of standard deviations. In simulated logistic regressions with doubts above this, 90 % intervals
held the truth in 60 to 80 % of cases; below, in 80 to 94 %."""

_UNLIKELY = 1e-3
_LEAST_SHARE = 0.98
MOST_NEGATIVE = 3
"""Directions in which the loss of one record bends down. Regressions have none; a scale that is
learnt has one or two; a network with hidden layers has about one for each active unit."""

# What runs a few times at most: compiling it well would take longer than that.
_compiled_once = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def corrected(posterior: Posterior, kernel: Kernel, states: Tree, records: Tree) -> Posterior:
    """Returns the posterior given all releases of a run; the one given, where that is not possible.

    Guarantee:
      Post-processing of states, which are made of releases. Of the records only shapes are read.

    Args:
      posterior: as the method made it.
      kernel: of the method; what it releases is private.
      states: of all chains, at the end of the run.
      records: the table, or its shapes.
    """
    evidence = None if kernel.evidence is None else jax.vmap(kernel.evidence)(states)
    obstacle = _obstacle(posterior.model, kernel, evidence is not None, records)
    if obstacle is not None or evidence is None or kernel.engine is None:
        return replace(posterior, intervals=IntervalFacts(caveats=(_uncorrected(obstacle),)))
    model = posterior.model
    start = jax.eval_shape(model.init, seeded_key(0))
    template = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), start)
    found = noise_aware(releases_in(evidence, kernel.engine), prior_site(model.log_prior, template))
    obstacle = obstacle_in(found)
    if obstacle is not None:
        caveats = (_uncorrected(obstacle), *caveats_of(found))
        return replace(posterior, intervals=IntervalFacts(caveats=caveats))
    draws = flat_draws(found, model.log_prior, template)
    _, unflat = ravel_pytree(_tree.at_least_float32(template))
    kept = jax.vmap(lambda draw: _like(template, unflat(draw)))(jnp.asarray(draws, jnp.float32))
    return replace(
        posterior,
        sampler=Points(),
        kept=jax.tree.map(lambda leaf: leaf[None], kept),
        intervals=IntervalFacts(
            parts=_parts(found, lambda std: unflat(jnp.asarray(std, jnp.float32))),
            caveats=caveats_of(found),
        ),
        raw=posterior,
    )


def _like(template: Params, params: Params) -> Params:
    return jax.tree.map(lambda leaf, new: new.astype(leaf.dtype), template, params)


def _uncorrected(obstacle: str | None) -> str:
    return (
        "Intervals are as the method made them; they do not include the privacy noise, because"
        f" {obstacle}. They may be far too narrow or too wide."
    )


def _obstacle(model: Model, kernel: Kernel, has_evidence: bool, records: Tree) -> str | None:
    """Returns why a posterior cannot be corrected; None where it can."""
    size = _tree.size(jax.eval_shape(model.init, seeded_key(0)))
    if size > MAX_PARAMETERS:
        return (
            f"the model has {size:,} parameters, and noise can be included for at most"
            f" {MAX_PARAMETERS} (for a network, fit the last layer on fixed features)"
        )
    if _is_network(model, records):
        return (
            "the likelihood of a network with hidden layers is not quadratic in its parameters"
            " (fit the last layer on fixed features instead)"
        )
    if not has_evidence or kernel.engine is None:
        return "it is not known how for this method"
    return None


def _is_network(model: Model, records: Tree) -> bool:
    """Whether a model has hidden layers, by its description or else by the loss of a record."""
    if model.spec is not None:
        return has_hidden_layers(model)
    return _most_negative(model, as_table(records).record) > MOST_NEGATIVE


def _most_negative(model: Model, record: Tree) -> int:
    """Returns in how many directions the loss of a made-up record bends down, at most."""
    template = jax.eval_shape(model.init, seeded_key(0))
    flat, unflat = ravel_pytree(
        _tree.at_least_float32(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), template))
    )
    loss = objective_of(model).record_loss

    @_compiled_once
    def num_negative(key: Key) -> Array:
        point_key, record_key, loss_key = jax.random.split(key, 3)
        made_up = _made_up(record, record_key)
        point = jax.random.normal(point_key, flat.shape)
        hessian = jax.hessian(lambda w: loss(unflat(w), None, made_up, loss_key))(point)
        values = jnp.linalg.eigvalsh((hessian + hessian.T) / 2)
        return jnp.sum(values < -1e-3 * jnp.max(jnp.abs(values)))

    return max(int(num_negative(key)) for key in jax.random.split(seeded_key(0), 3))


def _made_up(record: Tree, key: Key) -> Tree:
    def leaf(shape: jax.ShapeDtypeStruct, key: Key) -> Array:
        if jnp.issubdtype(shape.dtype, jnp.floating):
            return jax.random.normal(key, shape.shape).astype(shape.dtype)
        return jnp.ones(shape.shape, shape.dtype)

    leaves, treedef = jax.tree.flatten(record)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(treedef, [leaf(*each) for each in zip(leaves, keys, strict=True)])


def obstacle_in(found: NoiseAware) -> str | None:
    """Returns why the releases of a run do not determine a posterior; None where they do."""
    if not np.all(np.isfinite(found.components.covariances)):
        return "the releases are not finite"
    if found.drift > chi2.isf(_UNLIKELY, len(found.curvature)):
        return (
            "the second half of the run contradicts the first by more than noise explains: the"
            " posterior is not quadratic where the run has been, or the run had not arrived"
        )
    doubt = float(np.max(found.curvature_doubt))
    if doubt > _LARGEST_DOUBT and not found.has_curvatures:
        return (
            "the run was too short, or its steps were too small, to learn the curvature in every"
            f" direction ({doubt:.0%} of a width would be from not knowing it). Use more or larger"
            " steps, or Laplace"
        )
    return None


def caveats_of(found: NoiseAware) -> tuple[str, ...]:
    """Returns why corrected intervals are not to be trusted, as far as the releases tell."""
    share, error = found.share
    if not share + 2 * error < _LEAST_SHARE:
        return ()
    return (
        f"The clip shortens gradients by {100 * (1 - share):.0f} % on average, which moves the"
        " centres of intervals by an unknown amount. Use a larger clip_norm.",
    )


def _parts(found: NoiseAware, unflat: Callable[[Vector], Params]) -> Parts:
    def std(precision: Matrix) -> Params:
        values, basis = np.linalg.eigh(precision)
        with np.errstate(divide="ignore"):
            inverse = np.where(values > 1e-12 * max(values.max(), 1e-300), 1 / values, np.inf)
        weights = np.where(np.isinf(inverse), basis**2 > 1e-12, 0)
        variance = basis**2 @ np.where(np.isinf(inverse), 0, inverse)
        return unflat(np.where(weights.any(1), np.inf, np.sqrt(variance)))

    curvature = found.curvature
    inverse = np.linalg.inv(curvature)
    return Parts(
        total=unflat(np.sqrt(np.diag(found.covariance))),
        without_privacy=std(found.prior_precision + curvature),
        prior=std(found.prior_precision),
        data=std(curvature),
        privacy=unflat(np.sqrt(np.diag(inverse @ found.noise @ inverse))),
    )


class FlatDraws(NamedTuple):
    """Starting points of the slices, one for each draw.

    Attributes:
      draws: ``(num_draws, d)``.
      centres: ``(num_draws, d)``, of the component that a draw belongs to.
      roots: ``(num_draws, d, d)``, of its covariance.
    """

    draws: Array
    centres: Array
    roots: Array


def flat_draws(
    found: NoiseAware, log_prior: Callable[[Params], Scalar], template: Params
) -> Matrix:
    """Returns draws of the posterior, under the prior itself where it is not Gaussian.

    Each component is a Gaussian likelihood times the Gaussian that stands for the prior. Elliptical
    slices with that product as their reference, and the ratio of the prior to its stand-in as
    their likelihood, leave the product with the prior itself invariant.

    Args:
      found: the posterior.
      log_prior: of the model.
      template: parameters, for their shapes.

    Reference:
      Murray, Adams, MacKay, "Elliptical slice sampling" (2010).
    """
    generator = np.random.default_rng(1)
    roots = np.array([_root(covariance) for covariance in found.components.covariances])
    roots = np.repeat(roots, _DRAWS_A_COMPONENT, axis=0)
    centres = np.repeat(found.components.means, _DRAWS_A_COMPONENT, axis=0)
    draws = centres + np.einsum("kij,kj->ki", roots, generator.normal(size=centres.shape))
    if _is_gaussian(log_prior, template):
        return draws
    flat = FlatDraws(*(jnp.asarray(part, jnp.float32) for part in (draws, centres, roots)))
    precision = jnp.asarray(found.prior_precision, jnp.float32)
    linear = jnp.asarray(found.prior_linear, jnp.float32)
    _, unflat = ravel_pytree(_tree.at_least_float32(template))

    def log_ratio(w: Array) -> Scalar:
        return log_prior(unflat(w)) + 0.5 * w @ precision @ w - linear @ w

    return np.asarray(_sliced(log_ratio, flat), np.float64)


def _root(covariance: Matrix) -> Matrix:
    values, basis = np.linalg.eigh(covariance)
    root: Matrix = basis * np.sqrt(np.maximum(values, 0))
    return root


def _is_gaussian(log_prior: Callable[[Params], Scalar], template: Params) -> bool:
    """Whether a log prior is quadratic, flat ones included."""
    flat, unflat = ravel_pytree(_tree.at_least_float32(template))

    @_compiled_once
    def changes(key: Key) -> tuple[Array, Array]:
        gradient = jax.grad(lambda w: log_prior(unflat(w)))
        one, other = jax.random.normal(key, (2, flat.size))
        slope, predicted = jax.jvp(gradient, (one,), (other - one,))
        return gradient(other) - slope, predicted

    found, predicted = (np.asarray(part) for part in changes(seeded_key(0)))
    return bool(np.allclose(found, predicted, atol=1e-3 * np.max(np.abs(predicted)) + 1e-6))


def _sliced(log_ratio: Callable[[Array], Scalar], flat: FlatDraws) -> Array:
    """Returns the draws after some elliptical slices each."""

    def one(key: Key, start: FlatDraws) -> Array:
        def update(draw: Array, key: Key) -> tuple[Array, None]:
            normal_key, height_key, angle_key, shrink_key = jax.random.split(key, 4)
            offset = draw - start.centres
            other = start.roots @ jax.random.normal(normal_key, draw.shape)
            height = log_ratio(draw) + jnp.log(jax.random.uniform(height_key, minval=1e-30))
            angle = jax.random.uniform(angle_key, maxval=2 * jnp.pi)

            def at(angle: Array) -> Array:
                return start.centres + offset * jnp.cos(angle) + other * jnp.sin(angle)

            def is_outside(carry: tuple[Array, Array, Array, Key]) -> Array:
                return ~(log_ratio(at(carry[0])) >= height)

            def shrink(carry: tuple[Array, Array, Array, Key]) -> tuple[Array, Array, Array, Key]:
                angle, low, high, key = carry
                low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
                key, own = jax.random.split(key)
                return jax.random.uniform(own, minval=low, maxval=high), low, high, key

            found, *_ = jax.lax.while_loop(
                is_outside, shrink, (angle, angle - 2 * jnp.pi, angle, shrink_key)
            )
            return jnp.where(jnp.isfinite(height), at(found), draw), None

        return jax.lax.scan(update, start.draws, jax.random.split(key, _NUM_UPDATES))[0]

    keys = jax.random.split(seeded_key(2), len(flat.draws))
    result: Array = jax.jit(jax.vmap(one))(keys, flat)
    return result


def prior_site(log_prior: Callable[[Params], Scalar], template: Params) -> PriorSite:
    """Returns the Gaussian that stands for a prior at a posterior ``N(mean, covariance)``.

    Its precision is the expected curvature of the negative log prior, its slope at the mean the
    expected gradient: what variational inference takes of a prior. In closed form where the prior
    knows its expectation, exact for Gaussian priors; otherwise an average over 64 draws.

    Args:
      log_prior: of the model.
      template: parameters, for their shapes.
    """
    flat, unflat = ravel_pytree(_tree.at_least_float32(template))

    @jax.jit
    def integrated(mean: Array, std: Array) -> tuple[Array, Array]:
        def expected(mean: Array, std: Array) -> Scalar:
            assert isinstance(log_prior, IntegrableLogPrior)
            return log_prior.expected(unflat(mean), unflat(std))

        by_mean, by_std = jax.grad(expected, argnums=(0, 1))(mean, std)
        return by_mean, jnp.diag(-by_std / std)

    @jax.jit
    def averaged(mean: Array, root: Array) -> tuple[Array, Array]:
        def value(w: Array) -> Scalar:
            return log_prior(unflat(w))

        half = jax.random.normal(seeded_key(0), (32, flat.size))

        def at(offset: Array) -> tuple[Array, Array]:
            point = mean + root @ offset
            return jax.grad(value)(point), -jax.hessian(value)(point)

        gradients, curvatures = jax.lax.map(at, jnp.concatenate([half, -half]))
        return gradients.mean(0), curvatures.mean(0)

    def site(mean: Vector, covariance: Matrix) -> tuple[Matrix, Vector]:
        centre = jnp.asarray(mean, jnp.float32)
        if isinstance(log_prior, IntegrableLogPrior):
            found = integrated(centre, jnp.asarray(np.sqrt(np.diag(covariance)), jnp.float32))
        else:
            found = averaged(centre, jnp.asarray(_root(covariance), jnp.float32))
        gradient, precision = (np.asarray(part, np.float64) for part in found)
        values, basis = np.linalg.eigh((precision + precision.T) / 2)
        precision = (basis * np.maximum(values, 0)) @ basis.T
        return precision, precision @ mean + gradient

    return site
