"""Corrected posteriors: draws given all releases of a run, and what is known of their intervals."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.stats import chi2

from tacit import _tree
from tacit.compiling import compiled_once
from tacit.inference.evidence import (
    MAX_PARAMETERS,
    SLOPE_CHANGE,
    Evidence,
    Matrix,
    Vector,
    has_hidden_layers,
    releases_in,
)
from tacit.inference.method import Kernel, objective_of
from tacit.inference.noise_aware import NoiseAware, noise_aware
from tacit.inference.stand_in import is_quadratic, prior_site, root_of, sliced
from tacit.intervals import IntervalFacts, Parts
from tacit.models import Model
from tacit.posterior import Posterior
from tacit.privacy.mechanism import GaussianSum
from tacit.rng import seeded_key
from tacit.samplers import Points
from tacit.tables.base import as_table
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = [
    "MOST_NEGATIVE",
    "ModelPosterior",
    "caveats_of",
    "corrected",
    "groups_of",
    "obstacle_in",
    "slope_change_of",
    "typical_shift",
]

_DRAWS_A_COMPONENT = 10
_LARGEST_DOUBT = 0.45
"""Of standard deviations. In simulated logistic regressions with doubts above this, 90 % intervals
held the truth in 60 to 80 % of cases; below, in 80 to 94 %."""

_UNLIKELY = 1e-3
_LARGEST_SHIFT = 0.3
"""Of the centres of intervals by the clip, in standard deviations: of 90 % intervals 88 % then hold
the truth."""

MOST_NEGATIVE = 3
"""Directions in which the loss of one record bends down. Regressions have none; a scale that is
learnt has one or two; a network with hidden layers has about one for each active unit."""


def corrected(
    posterior: Posterior,
    kernel: Kernel,
    states: Tree,
    records: Tree,
    *,
    exact_of: Callable[[Model, Record], "ModelPosterior"] | None = None,
) -> Posterior:
    """Returns the posterior given all releases of a run; the one given, where that is not possible.

    Guarantee:
      Post-processing of states, which are made of releases. Of the records only shapes are read.

    Args:
      posterior: as the method made it.
      kernel: of the method; what it releases is private.
      states: of all chains, at the end of the run.
      records: the table, or its shapes.
      exact_of: makes a `ModelPosterior`, or finds one that was made before.
    """
    model, record = posterior.model, as_table(records).record
    evidence = None if kernel.evidence is None else jax.vmap(kernel.evidence)(states)
    has_evidence = evidence is not None and evidence.points.shape[-1] > 0
    obstacle = _obstacle(model, has_evidence and kernel.engine is not None, record)
    if obstacle is not None or evidence is None or kernel.engine is None:
        return replace(
            posterior, intervals=IntervalFacts(caveats=(_uncorrected(obstacle, kernel.own_noise),))
        )
    # The records were read and paid for: whatever the releases are, the run keeps its posterior.
    try:
        with np.errstate(all="ignore"):
            exact = (exact_of or ModelPosterior)(model, record)
            return _with_releases(posterior, exact, evidence, kernel)
    except np.linalg.LinAlgError:
        caveat = _uncorrected("the releases do not determine a posterior", kernel.own_noise)
        return replace(posterior, intervals=IntervalFacts(caveats=(caveat,)))


def _with_releases(
    posterior: Posterior, exact: "ModelPosterior", evidence: Evidence, kernel: Kernel
) -> Posterior:
    assert kernel.engine is not None
    found = exact.seen(evidence, kernel.engine)
    obstacle = obstacle_in(found)
    if obstacle is not None:
        caveats = (_uncorrected(obstacle, kernel.own_noise), *caveats_of(found))
        return replace(posterior, intervals=IntervalFacts(caveats=caveats))
    draws = jnp.asarray(exact.draws(found), jnp.float32)
    kept = jax.vmap(lambda draw: _like(exact.template, exact.unflat(draw)))(draws)
    return replace(
        posterior,
        sampler=Points(),
        kept=jax.tree.map(lambda leaf: leaf[None], kept),
        intervals=IntervalFacts(
            parts=_parts(found, lambda std: exact.unflat(jnp.asarray(std, jnp.float32))),
            caveats=caveats_of(found),
        ),
        raw=posterior,
    )


class ModelPosterior:
    """The prior of a model times what a run's releases say of its parameters.

    Attributes:
      template: the model's parameters, all at zero.
      unflat: from a flat vector to parameters.
    """

    def __init__(self, model: Model, record: Record) -> None:
        """Compiles what depends on the model alone.

        Args:
          model: which was fitted.
          record: the shapes of one record.
        """
        shapes = jax.eval_shape(model.init, seeded_key(0))
        self.template = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        _, self.unflat = ravel_pytree(_tree.at_least_float32(self.template))
        self._site = prior_site(model.log_prior, self.template)
        self._slope_change = slope_change_of(model, record)
        self._is_gaussian = is_quadratic(model.log_prior, self.template)

        def log_ratio(w: Array, precision: Array, linear: Array) -> Scalar:
            return model.log_prior(self.unflat(w)) + 0.5 * w @ precision @ w - linear @ w

        self._sliced = jax.jit(functools.partial(sliced, log_ratio))

    def seen(self, evidence: Evidence, engine: GaussianSum) -> NoiseAware:
        """Returns the posterior given the releases.

        Args:
          evidence: of the run; every leaf has a leading chain axis.
          engine: which made the releases.
        """
        releases = releases_in(
            evidence, engine, groups_of(self.template), slope_change=self._slope_change
        )
        return noise_aware(releases, self._site)

    def draws(self, found: NoiseAware) -> Matrix:
        """Returns draws, ``(num_draws, d)``, under the prior itself where it is not Gaussian.

        Each component is a Gaussian likelihood times the Gaussian that stands for the prior.
        Elliptical slices with that product as their reference, and the ratio of the prior to its
        stand-in as their likelihood, leave the product with the prior itself invariant.

        Reference:
          Murray, Adams, MacKay, "Elliptical slice sampling" (2010).
        """
        generator = np.random.default_rng(1)
        roots = np.array([root_of(covariance) for covariance in found.components.covariances])
        shape = (len(roots), _DRAWS_A_COMPONENT, roots.shape[1])
        centres = np.broadcast_to(found.components.means[:, None], shape)
        draws = centres + generator.normal(size=shape) @ roots.swapaxes(1, 2)
        if not self._is_gaussian:
            start = (jnp.asarray(part, jnp.float32) for part in (draws, centres, roots))
            draws = np.asarray(
                self._sliced(
                    *start,
                    precision=jnp.asarray(found.prior_precision, jnp.float32),
                    linear=jnp.asarray(found.prior_linear, jnp.float32),
                )
            )
        return draws.reshape(-1, shape[-1]).astype(np.float64)


def groups_of(params: Params) -> NDArray[np.int64]:
    """Returns the number of its leaf for each parameter, in flat order."""
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    return np.repeat(np.arange(len(sizes)), sizes)


def _like(template: Params, params: Params) -> Params:
    return jax.tree.map(lambda leaf, new: new.astype(leaf.dtype), template, params)


def _uncorrected(obstacle: str | None, own_noise: str | None = None) -> str:
    if own_noise is not None:
        return (
            f"Intervals are as the method made them: {own_noise}. They are not corrected"
            f" afterwards, because {obstacle}. They may be too narrow or too wide."
        )
    return (
        "Intervals are as the method made them; they do not include the privacy noise, because"
        f" {obstacle}. They may be far too narrow or too wide."
    )


def _obstacle(model: Model, has_evidence: bool, record: Record) -> str | None:
    """Returns why a posterior cannot be corrected; None where it can."""
    size = _tree.size(jax.eval_shape(model.init, seeded_key(0)))
    if size > MAX_PARAMETERS:
        return (
            f"the model has {size:,} parameters, and intervals can be corrected for at most"
            f" {MAX_PARAMETERS} (for a network, fit the last layer on fixed features)"
        )
    if _is_network(model, record):
        return (
            "the likelihood of a network with hidden layers is not quadratic in its parameters"
            " (fit the last layer on fixed features instead)"
        )
    if not has_evidence:
        return "it is not known how for this method"
    return None


def _is_network(model: Model, record: Record) -> bool:
    """Whether a model has hidden layers, by its description or else by the loss of a record."""
    if model.spec is not None:
        return has_hidden_layers(model)
    return _most_negative(model, record) > MOST_NEGATIVE


def _most_negative(model: Model, record: Record) -> int:
    """Returns in how many directions the loss of a made-up record bends down, at most."""
    template = jax.eval_shape(model.init, seeded_key(0))
    flat, unflat = ravel_pytree(
        _tree.at_least_float32(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), template))
    )
    loss = objective_of(model).record_loss

    @compiled_once
    def num_negative(key: Key) -> Array:
        point_key, record_key, loss_key = jax.random.split(key, 3)
        made_up = _made_up(record, record_key)
        point = jax.random.normal(point_key, flat.shape)
        hessian = jax.hessian(lambda w: loss(unflat(w), None, made_up, loss_key))(point)
        values = jnp.linalg.eigvalsh((hessian + hessian.T) / 2)
        return jnp.sum(values < -1e-3 * jnp.max(jnp.abs(values)))

    return max(int(num_negative(key)) for key in jax.random.split(seeded_key(0), 3))


def slope_change_of(model: Model, record: Record) -> float:
    """Returns how fast the curvature of a model changes: not at all where it is quadratic.

    Args:
      model: whose likelihood.
      record: the shapes of one.
    """
    loss = objective_of(model).record_loss
    made_up = _made_up(record, seeded_key(1))
    template = jax.eval_shape(model.init, seeded_key(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), template)

    def of_params(params: Params) -> Scalar:
        return loss(params, None, made_up, seeded_key(2))

    # A target outside of the support has no gradient at all, and says nothing.
    slopes = jax.tree.leaves(jax.grad(of_params)(zeros))
    says_something = any(bool(jnp.any(slope != 0)) for slope in slopes)
    return 0.0 if says_something and is_quadratic(of_params, zeros) else SLOPE_CHANGE


def _made_up(record: Record, key: Key) -> Record:
    def leaf(shape: jax.ShapeDtypeStruct, key: Key) -> Array:
        if jnp.issubdtype(shape.dtype, jnp.floating):
            return jax.random.normal(key, shape.shape).astype(shape.dtype)
        return jnp.ones(shape.shape, shape.dtype)

    leaves, treedef = jax.tree.flatten(record)
    keys = jax.random.split(key, len(leaves))
    found = jax.tree.unflatten(treedef, [leaf(*each) for each in zip(leaves, keys, strict=True)])
    # One is a class, a count and a number.
    ones = jax.tree.map(jnp.ones_like, found.y)
    return found._replace(y=ones, weight=jnp.ones_like(found.weight))


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
    shift = _shift_by_clip(found)
    if not shift > _LARGEST_SHIFT:
        return ()
    return (
        f"The clip shortens the gradients of about {100 * found.norms.clipped:.0f} % of the"
        " records. In a logistic regression that moves the centres of intervals by about"
        f" {shift:.1f} standard deviations. Use a larger clip_norm.",
    )


def _shift_by_clip(found: NoiseAware) -> float:
    """Returns by how many of their standard deviations a clip is likely to have moved centres.

    Of the clipped share only what is certain counts, so noise alone raises no alarm; and privacy
    noise makes intervals wider, so that the same shift matters less.
    """
    without_privacy = np.linalg.inv(found.prior_precision + found.curvature)
    ratio = np.sqrt(np.median(np.diag(without_privacy) / np.diag(found.covariance)))
    return typical_shift(found.norms.at_least, found.num_records) * float(ratio)


def typical_shift(clipped: float, num_records: int) -> float:
    """Returns how far a clip moves the optimum of a logistic regression, as a rule of thumb.

    In standard deviations of the posterior without privacy, root mean square over coefficients. It
    describes simulated regressions with 3 to 30 features and 1000 to 20 000 records to within a
    factor of two (``python -m examples.clip_bias``).

    Args:
      clipped: the share of records that are clipped.
      num_records: how many there are.

    Example:
      >>> [f"{typical_shift(share, 5000):.2f}" for share in (0.01, 0.1)]
      ['0.08', '1.77']
    """
    return min(0.1 + 1.5 * clipped, 0.35) * clipped * math.sqrt(num_records)


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
