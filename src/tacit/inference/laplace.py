"""Private Laplace approximation: Newton's method on released gradients and curvatures."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from jax.flatten_util import ravel_pytree

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.inference.evidence import (
    MAX_PARAMETERS,
    Evidence,
    has_hidden_layers,
    no_evidence,
    norms_of,
    only_norms,
)
from tacit.inference.langevin import ScheduledNoise
from tacit.inference.method import (
    Kernel,
    Objective,
    OneRelease,
    TableSettings,
    declare,
    objective_of,
)
from tacit.inference.quadratic import TINY, Quadratic, triangle_of
from tacit.inference.schedules import Exponential, Schedule
from tacit.models import Model
from tacit.privacy.clipping import Flat
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.rng import seeded_key
from tacit.samplers import FullGaussian
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = ["Laplace"]

_LARGEST = 512
"""The most parameters: a record's curvature has 131 328 numbers then."""

_MOST_KEPT = 256
"""How many releases are kept; a longer run forgets its first ones. It is fewer where a curvature is
large: 32 at 512 parameters."""

_KEPT_NUMBERS = 2**22
"""How many numbers of curvatures are kept in all: 16 MB."""

_NUM_DIRECT = 4
"""How many releases are made at the point itself, before others explore around it."""

_CHUNK_NUMBERS = 2**22
"""How many numbers of per-record curvatures are held at once: 16 MB."""


class LaplaceState(NamedTuple):
    """The present point, and what was released on the way there."""

    params: Params
    releases: Evidence


class LaplaceInfo(NamedTuple):
    """How the step just made was made; from releases and public settings.

    Attributes:
      noise_multiplier: of its release.
      length: of the step that the releases suggested: the root of the average change of a record's
        loss, in units of which ``max_step`` is the longest. Near zero at the end of a run that has
        arrived.
    """

    noise_multiplier: Scalar
    length: Scalar


@declare(
    name="laplace",
    summary="a Gaussian with all correlations, by private Newton steps",
    citations=("mackay1992practical", "bernstein2019differentially"),
)
@dataclass(frozen=True, kw_only=True)
class Laplace(OneRelease):
    """Newton's method on released gradients and curvatures, and the Gaussian at its end.

    Each step releases, in one clipped sum, the gradient ``g`` of the negative log likelihood at the
    present point ``w`` and its curvature ``H`` there. The next point is the mean of the posterior
    given all releases so far, as if the loss were quadratic:

        w' = (P + M)^-1 (P mu + A (A + S)^-1 (A w - g)),        M = A (A + S)^-1 A

    with the precision ``P`` and mean ``mu`` of the prior, averages ``A``, ``w`` and ``g`` of the
    releases, and the variance ``S`` of the noise of ``g``. Averages weigh a release by its noise
    and by its distance from the present point, because a loss is quadratic near a point only. What
    noise makes of ``A`` is taken away as far as it is known: ``A`` is shrunk towards a multiple of
    the identity and made positive definite at the level of its noise. A step is no longer than
    ``max_step``: on separated classes and on counts, undamped Newton steps diverge. Without noise
    this is Newton's method with a trust region.

    After the first four steps, releases are not made at ``w`` itself but at draws of the posterior
    so far, in antithetic pairs: how gradients differ between them tells about the curvature along
    directions in which the records say little, where the noise of ``H`` would hide it. The draws
    come from a public key.

    Made for generalised linear models (logistic, multinomial, Poisson, negative binomial) and for
    the last layer of a network on fixed or public features: their loss is convex. ``H`` is the
    Hessian, which for these equals the generalised Gauss-Newton matrix in expectation, and exactly
    where the link is canonical. With a Gaussian likelihood of known noise the loss *is* quadratic:
    one step with ``max_step=math.inf`` releases X'X and X'y, and is exact without noise. Under
    noise several are better, for what noise makes of X'X is multiplied by the distance of the start
    (d 10, n 5000, epsilon 1: one step ends 3.4 times as far away as possible, two 1.13, eight
    1.04).

    Guarantee:
      One release a step, nothing else. One record's gradient and curvature are clipped together.

    Args:
      release: the engine: sampling, clip and noise. The clip norm is that of gradient and curvature
        together (`clip_norm_for`). The noise multiplier belongs to the first step.
      curvature_scale: the curvature enters the release times ``curvature_scale / clip_norm``. A
        larger number gives it less noise and gradients less room. In a logistic regression whose
        inputs have norms up to ``clip_norm``, up to 3.33 takes no room at all: where a gradient is
        long, its curvature is small.
      max_step: the longest step, as the root mean square change of a record's loss to second order.
      noise_schedule: factor of the noise multiplier at each step. The first releases are made far
        from the mode, where they say less: they may be noisier. The default halves the noise in
        ten steps, which is a good length.
      exploration: how far from the present point later releases are made, in posterior standard
        deviations. Without privacy they are made at the point.

    Example:
      >>> import tacit
      >>> from tacit.models import FixedGaussian, GaussianPrior, MLP
      >>> x = np.random.default_rng(0).uniform(-1, 1, (500, 2)).astype(np.float32)
      >>> y = x @ np.float32([1.0, -2.0]) + 3.0
      >>> model = tacit.bayesian(MLP(num_inputs=2, num_outputs=1),
      ...     prior=GaussianPrior(std=10.0), likelihood=FixedGaussian(std=0.1))
      >>> method = Laplace.non_private(
      ...     sampling=tacit.FullBatch(num_records=500), max_step=math.inf)
      >>> fit = tacit.fit(tacit.Plan(method=method, num_steps=1), model, tacit.as_records(x, y),
      ...     budget=tacit.Budget.non_private())
      >>> mean = jax.tree.map(lambda leaf: leaf[0, 0], fit.posterior.kept["mean"])
      >>> np.round(mean["network"]["dense_0"]["kernel"][:, 0], 2)
      Array([ 1., -2.], dtype=float32)

    Reference:
      MacKay, "A practical Bayesian framework for backpropagation networks" (1992); Bernstein,
      Sheldon, "Differentially private Bayesian linear regression" (2019), for noise that is
      counted.
    """

    curvature_scale: float = 3.0
    max_step: float = 1.0
    noise_schedule: Schedule = field(default_factory=lambda: Exponential(half_life=10.0))
    exploration: float = 1.0

    def __post_init__(self) -> None:
        _check.positive(curvature_scale=self.curvature_scale)
        _check.positive(max_step=self.max_step, infinite=True)
        _check.non_negative(exploration=self.exploration)
        if not isinstance(self.release.clipping, Flat):
            raise InvalidArgumentError(
                "release.clipping must be Flat(): gradient and curvature share one clip; got"
                f" {self.release.clipping!r}."
            )

    @classmethod
    def non_private(
        cls, *, sampling: Sampling, max_step: float = 1.0, chunk_size: int | None = None
    ) -> Self:
        """Returns the plain method: no clip, no noise, epsilon infinite."""
        release = GaussianSum.non_private(sampling=sampling, chunk_size=chunk_size)
        return cls(release=release, max_step=max_step)

    @classmethod
    def for_table(cls, settings: TableSettings) -> Self:
        """Returns the method whose last release has a quarter of the noise of its first."""
        schedule = Exponential(half_life=settings.num_steps / 2)
        return cls(release=settings.release, noise_schedule=schedule)

    @staticmethod
    def clip_norm_for(
        model: Model,
        synthetic: Record,
        *,
        quantile: float = 0.99,
        curvature_scale: float = 3.0,
        seed: int = 1,
    ) -> float:
        """Returns the clip norm that leaves this share of synthetic records as they are.

        Clipped records move the mode, by many posterior standard deviations if there are many of
        them, and no correction knows by how much. So nearly all must fit.

        Guarantee:
          No private record is involved, so this is free.

        Args:
          model: what will be fitted.
          synthetic: made by `tacit.inference.synthetic_records`, or public.
          quantile: the share that is not clipped.
          curvature_scale: that of the method.
          seed: of the eight starts at which norms are taken.
        """
        _check.fraction(quantile=quantile, one=False)
        query = functools.partial(_gradient_and_curvature, objective_of(model))
        keys = jax.random.split(seeded_key(seed), _tree.num_records(synthetic))

        @jax.jit
        def norms(start: Params) -> Array:
            gradients, curvatures = jax.vmap(query, in_axes=(None, 0, 0))(start, synthetic, keys)
            g, h = jnp.sum(gradients**2, axis=1), jnp.sum(curvatures**2, axis=1)
            # The least C with  g + (curvature_scale / C)^2 h <= C^2.
            return jnp.sqrt((g + jnp.sqrt(g**2 + 4 * curvature_scale**2 * h)) / 2)

        starts = jax.random.split(seeded_key(seed + 1), 8)
        found = np.concatenate([norms(model.init(key)) for key in starts])
        found = found[np.isfinite(found)]
        if not found.size or not np.quantile(found, quantile) > 0:
            raise InvalidArgumentError(
                "synthetic must give finite, non-zero gradients at the model's start; none did."
                " Give inputs in the range of the schema."
            )
        return float(np.quantile(found, quantile))

    def cost(self, num_steps: int, *, start: int = 0) -> DpEvent:
        """One release a step, each with the multiplier of its step or slightly less."""
        return self._noise.cost(num_steps, start)

    @property
    def _noise(self) -> ScheduledNoise:
        return ScheduledNoise(release=self.release, schedule=self.noise_schedule, power=1.0)

    @property
    def scale(self) -> float:
        """What the curvature is multiplied with inside the clip."""
        clip_norm = self.release.clip_norm
        return 1.0 if math.isinf(clip_norm) else self.curvature_scale / clip_norm

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        objective = objective_of(model)
        dim = _size_of(model)
        rate = self.release.sampling.inclusion_rate
        fit = functools.partial(
            Quadratic.near,
            objective=objective,
            num_records=self.release.sampling.public_records,
            batch_noise=(1 - rate) / rate,
        )

        def init(key: Key) -> LaplaceState:
            return LaplaceState(objective.init(key), _no_releases(dim))

        def step(
            key: Key, state: LaplaceState, records: Record
        ) -> tuple[LaplaceState, LaplaceInfo]:
            flat, unflat = ravel_pytree(_tree.at_least_float32(state.params))
            asked = flat + self._excursion(state, fit)
            releases = self._released(key, objective, unflat(asked), state.releases, records)
            quadratic = fit(releases, state.params)
            offset = quadratic.mean - flat
            length = quadratic.length(offset)
            offset = offset * jnp.minimum(1.0, self.max_step / jnp.maximum(length, TINY))
            moved = jax.tree.map(
                lambda w, new: new.astype(w.dtype), state.params, unflat(flat + offset)
            )
            multiplier = self._noise.multiplier(state.releases.num_steps)
            return LaplaceState(moved, releases), LaplaceInfo(multiplier, length)

        def retain(state: LaplaceState) -> Tree:
            precision = fit(state.releases, state.params).precision
            unflat = ravel_pytree(_tree.at_least_float32(state.params))[1]
            # The inverse of the precision is root root^T; columns are the leading axis.
            whitening = jnp.linalg.cholesky(precision)
            columns = jax.scipy.linalg.solve_triangular(whitening, jnp.eye(dim), lower=True)
            root = jax.tree.map(
                lambda w, leaf: leaf.astype(w.dtype), state.params, jax.vmap(unflat)(columns)
            )
            return {"mean": state.params, "root": root}

        is_quadratic = dim <= MAX_PARAMETERS and not has_hidden_layers(model)

        def evidence(state: LaplaceState) -> Evidence | None:
            if not self.release.is_private:
                return None
            found = _in_order(state.releases)
            return found if is_quadratic else only_norms(found)

        return Kernel(init, step, retain, FullGaussian(), evidence=evidence, engine=self.release)

    def _excursion(self, state: LaplaceState, fit: Callable[..., Quadratic]) -> Array:
        """Returns how far from the present point a step asks; no record and no secret is in it."""
        flat, _ = ravel_pytree(_tree.at_least_float32(state.params))
        if not self.exploration or not self.release.is_private:
            return jnp.zeros_like(flat)
        step, quadratic = state.releases.num_steps, fit(state.releases, state.params)
        normal = jax.random.normal(jax.random.fold_in(seeded_key(0), step // 2), flat.shape)
        whitening = jnp.linalg.cholesky(quadratic.precision)
        offset = jax.scipy.linalg.solve_triangular(whitening.T, normal, lower=False)
        offset = self.exploration * jnp.where(step % 2 == 0, offset, -offset)
        longest = self.max_step / jnp.maximum(quadratic.length(offset), TINY)
        # With few releases there is no posterior yet.
        return jnp.where(step < _NUM_DIRECT, 0.0, offset * jnp.minimum(1.0, longest))

    def _released(
        self, key: Key, objective: Objective, params: Params, releases: Evidence, records: Record
    ) -> Evidence:
        """Makes one release and notes it."""
        noise = self._noise
        dim = releases.points.shape[1]

        def query(record: Record, key: Key) -> tuple[Array, Array]:
            gradient, curvature = _gradient_and_curvature(objective, params, record, key)
            return gradient, self.scale * curvature

        chunk = self.release.chunk_size or max(1, _CHUNK_NUMBERS // (dim * (dim + 1)))
        release = replace(self.release, chunk_size=chunk)
        multiplier = noise.override(releases.num_steps)
        found = release.counted(key, query, records, noise_multiplier=multiplier)
        gradient, curvature = found.estimate
        norms, norm_variances = norms_of(found)
        variance = release.noise_variance(noise_multiplier=multiplier)
        row = releases.num_steps % len(releases.counts)

        def noted(column: Array | None, value: Array | Scalar | float) -> Array:
            assert column is not None
            return column.at[row].set(value)

        return Evidence(
            noted(releases.points, ravel_pytree(_tree.at_least_float32(params))[0]),
            noted(releases.gradients, gradient),
            noted(releases.variances, variance),
            noted(releases.norms, norms),
            noted(releases.norm_variances, norm_variances),
            noted(releases.counts, 1.0),
            releases.num_steps + 1,
            noted(releases.curvatures, curvature / self.scale),
            noted(releases.curvature_variances, variance / self.scale**2),
        )


def joint_norm(method: Laplace, model: Model, params: Params) -> Callable[[Record, Key], Scalar]:
    """Returns what is clipped of one record: the norm of gradient and scaled curvature together."""
    objective = objective_of(model)

    def norm(record: Record, key: Key) -> Scalar:
        gradient, curvature = _gradient_and_curvature(objective, params, record, key)
        return jnp.sqrt(jnp.sum(gradient**2) + jnp.sum((method.scale * curvature) ** 2))

    return norm


def _size_of(model: Model) -> int:
    dim = _tree.size(jax.eval_shape(model.init, seeded_key(0)))
    if dim > _LARGEST:
        raise InvalidArgumentError(
            f"model must have at most {_LARGEST} parameters for Laplace, which releases the whole"
            f" curvature; got {dim}. Fit fewer features, fit only the last layer, on fixed"
            " features (tacit.models.extract_features), or use SGLD or VI."
        )
    return dim


def _no_releases(dim: int) -> Evidence:
    size = dim * (dim + 1) // 2
    num_kept = min(_MOST_KEPT, _KEPT_NUMBERS // size)
    return no_evidence(num_rows=num_kept, size=dim)._replace(
        curvatures=jnp.zeros((num_kept, size)), curvature_variances=jnp.zeros(num_kept)
    )


def _in_order(releases: Evidence) -> Evidence:
    """Returns the releases from first to last; a long run writes over its first ones."""
    num_steps, num_kept = releases.num_steps, len(releases.counts)
    first = jnp.where(num_steps > num_kept, num_steps % num_kept, 0)
    rows: Evidence = jax.tree.map(
        lambda leaf: jnp.roll(leaf, -first, axis=0) if leaf.ndim else leaf, releases
    )
    return rows


def _gradient_and_curvature(
    objective: Objective, params: Params, record: Record, key: Key
) -> tuple[Array, Array]:
    """Returns one record's gradient and Hessian, the latter as its isometric upper triangle."""
    flat, unflat = ravel_pytree(_tree.at_least_float32(params))

    def gradient(flat: Array) -> tuple[Array, Array]:
        def loss(flat: Array) -> Scalar:
            return objective.record_loss(unflat(flat), None, record, key)

        found = jax.grad(loss)(flat)
        return found, found

    hessian, found = jax.jacfwd(gradient, has_aux=True)(flat)
    return found, triangle_of((hessian + hessian.T) / 2)
