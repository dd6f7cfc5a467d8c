"""Private Laplace approximation: Newton's method on released gradients and curvatures."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

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
    norms_of,
    only_norms,
)
from tacit.inference.few_directions import LowRankReleases
from tacit.inference.langevin import ScheduledNoise
from tacit.inference.low_rank import LowRankCurvature
from tacit.inference.method import Kernel, OneRelease, TableSettings, declare, objective_of
from tacit.inference.quadratic import TINY, FullCurvature, in_order
from tacit.inference.schedules import Exponential, Schedule
from tacit.models import Model
from tacit.privacy.clipping import Flat
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.rng import seeded_key
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = ["Laplace"]

_LARGEST = 512
"""The most parameters whose curvature is released as a whole: 131 328 numbers of a record."""

_RANK = 4
"""How many directions stand for a larger one."""

_NUM_DIRECT = 4
"""How many releases are made at the point itself, before others explore around it."""

_CHUNK_NUMBERS = 2**22
"""How many numbers of records are held at once: 16 MB."""


class LaplaceState(NamedTuple):
    """The present point, and what was released on the way there."""

    params: Params
    releases: Evidence | LowRankReleases


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
    summary="a Gaussian with correlations, by private Newton steps",
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

    That is for up to 512 parameters. Beyond, a record gives the products of its Hessian with a few
    directions (``rank``), its trace and its steepest curvature, and the posterior has an average
    curvature but for these directions; outputs are taken to be alike and independent. Steps are
    then those of an accelerated gradient method, and more of them are needed: thirty. Use it for
    predictions: what single parameters are said to be is as wrong as their curvature is uneven.

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
        deviations. Without privacy, and with a curvature of low rank, they are not.
      rank: how many directions of curvature are released. None releases the whole curvature of up
        to 512 parameters, and four directions of more. Zero leaves a level alone. Directions that
        do not stand out of the noise are not counted, but take room inside the clip.

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
    rank: int | None = None

    def __post_init__(self) -> None:
        _check.positive(curvature_scale=self.curvature_scale)
        _check.positive(max_step=self.max_step, infinite=True)
        _check.non_negative(exploration=self.exploration)
        _check_rank(self.rank)
        if not isinstance(self.release.clipping, Flat):
            raise InvalidArgumentError(
                "release.clipping must be Flat(): gradient and curvature share one clip; got"
                f" {self.release.clipping!r}."
            )

    @classmethod
    def non_private(
        cls,
        *,
        sampling: Sampling,
        max_step: float = 1.0,
        rank: int | None = None,
        chunk_size: int | None = None,
    ) -> Self:
        """Returns the plain method: no clip, no noise, epsilon infinite."""
        release = GaussianSum.non_private(sampling=sampling, chunk_size=chunk_size)
        return cls(release=release, max_step=max_step, rank=rank)

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
        rank: int | None = None,
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
          rank: that of the method. Directions are the steepest ones of the synthetic records.
          seed: of the eight starts at which norms are taken.
        """
        _check.fraction(quantile=quantile, one=False)
        _check_rank(rank)
        num_records = _tree.num_records(synthetic)
        form = _form_of(model, rank, num_records=num_records, batch_noise=0.0)
        keys = jax.random.split(seeded_key(seed), num_records)
        chunk = max(1, _CHUNK_NUMBERS // form.num_numbers)

        @jax.jit
        def norms(start: Params) -> Array:
            releases = form.foreseen(start, synthetic, keys)

            def squares(each: tuple[Record, Key]) -> tuple[Array, Array]:
                gradient, curvature = form.numbers(start, releases, *each)
                return jnp.sum(gradient**2), _square(curvature)

            g, h = jax.lax.map(squares, (synthetic, keys), batch_size=chunk)
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
        rate = self.release.sampling.inclusion_rate
        form = _form_of(
            model,
            self.rank,
            num_records=self.release.sampling.public_records,
            batch_noise=(1 - rate) / rate,
        )

        def init(key: Key) -> LaplaceState:
            return LaplaceState(form.objective.init(key), form.nothing_yet())

        def step(
            key: Key, state: LaplaceState, records: Record
        ) -> tuple[LaplaceState, LaplaceInfo]:
            flat, unflat = ravel_pytree(_tree.at_least_float32(state.params))
            asked = flat + self._excursion(form, state)
            releases = form.prepared(state.releases, state.params)
            releases = self._released(key, form, unflat(asked), releases, records)
            quadratic = form.near(releases, state.params)
            offset = quadratic.mean - flat
            length = quadratic.length(offset)
            offset = offset * jnp.minimum(1.0, self.max_step / jnp.maximum(length, TINY))
            moved = jax.tree.map(
                lambda w, new: new.astype(w.dtype), state.params, unflat(flat + offset)
            )
            multiplier = self._noise.multiplier(state.releases.num_steps)
            return LaplaceState(moved, releases), LaplaceInfo(multiplier, length)

        is_quadratic = form.dim <= MAX_PARAMETERS and not has_hidden_layers(model)
        is_quadratic = is_quadratic and isinstance(form, FullCurvature)

        def evidence(state: LaplaceState) -> Evidence | None:
            if not self.release.is_private:
                return None
            found = in_order(form.evidence_in(state.releases))
            return found if is_quadratic else only_norms(found)

        return Kernel(
            init,
            step,
            lambda state: form.kept(state.releases, state.params),
            form.sampler,
            own_noise=form.own_noise,
            evidence=evidence,
            engine=self.release,
        )

    def _excursion(self, form: Any, state: LaplaceState) -> Array:
        """Returns how far from the present point a step asks; no record and no secret is in it."""
        flat, _ = ravel_pytree(_tree.at_least_float32(state.params))
        if isinstance(state.releases, LowRankReleases):
            return form.offset(state.releases, state.params)
        if not self.exploration or not self.release.is_private:
            return jnp.zeros_like(flat)
        step, quadratic = state.releases.num_steps, form.near(state.releases, state.params)
        normal = jax.random.normal(jax.random.fold_in(seeded_key(0), step // 2), flat.shape)
        offset = self.exploration * quadratic.draw(normal)
        offset = jnp.where(step % 2 == 0, offset, -offset)
        longest = self.max_step / jnp.maximum(quadratic.length(offset), TINY)
        # With few releases there is no posterior yet.
        return jnp.where(step < _NUM_DIRECT, 0.0, offset * jnp.minimum(1.0, longest))

    def _released(self, key: Key, form: Any, params: Params, releases: Any, records: Record) -> Any:
        """Makes one release and notes it."""
        noise = self._noise

        def query(record: Record, key: Key) -> tuple[Array, Tree]:
            gradient, curvature = form.numbers(params, releases, record, key)
            return gradient, jax.tree.map(lambda leaf: self.scale * leaf, curvature)

        chunk = self.release.chunk_size or max(1, _CHUNK_NUMBERS // form.num_numbers)
        release = replace(self.release, chunk_size=chunk)
        multiplier = noise.override(releases.num_steps)
        found = release.counted(key, query, records, noise_multiplier=multiplier)
        gradient, curvature = found.estimate
        norms, norm_variances = norms_of(found)
        variance = release.noise_variance(noise_multiplier=multiplier)
        evidence = form.evidence_in(releases)
        row = evidence.num_steps % len(evidence.counts)

        def noted(column: Array | None, value: Array | Scalar | float) -> Array:
            assert column is not None
            return column.at[row].set(value)

        evidence = evidence._replace(
            points=noted(evidence.points, ravel_pytree(_tree.at_least_float32(params))[0]),
            gradients=noted(evidence.gradients, gradient),
            variances=noted(evidence.variances, variance),
            norms=noted(evidence.norms, norms),
            norm_variances=noted(evidence.norm_variances, norm_variances),
            counts=noted(evidence.counts, 1.0),
            num_steps=evidence.num_steps + 1,
            curvature_variances=noted(evidence.curvature_variances, variance / self.scale**2),
        )
        curvature = jax.tree.map(lambda leaf: leaf / self.scale, curvature)
        return form.noted(releases, curvature, evidence, row)


def joint_norm(method: Laplace, model: Model, params: Params) -> Callable[[Record, Key], Scalar]:
    """Returns what is clipped of one record: the norm of gradient and scaled curvature together.

    Of a curvature of low rank it takes the directions of the first release, which are random.
    """
    form = _form_of(model, method.rank, num_records=1, batch_noise=0.0)
    releases = form.nothing_yet()

    def norm(record: Record, key: Key) -> Scalar:
        gradient, curvature = form.numbers(params, releases, record, key)
        return jnp.sqrt(jnp.sum(gradient**2) + method.scale**2 * _square(curvature))

    return norm


def _form_of(model: Model, rank: int | None, *, num_records: int, batch_noise: float) -> Any:
    """Returns what of the curvature is released, for a model of its size."""
    shapes = jax.eval_shape(model.init, seeded_key(0))
    dim = _tree.size(shapes)
    settings: dict[str, Any] = {
        "objective": objective_of(model),
        "dim": dim,
        "num_records": num_records,
        "batch_noise": batch_noise,
    }
    if rank is None and dim <= _LARGEST:
        return FullCurvature(**settings)
    rank = _RANK if rank is None else rank
    # A last layer has the outputs as the last axis of weights and biases.
    lasts = {leaf.shape[-1] if leaf.shape else 1 for leaf in jax.tree.leaves(shapes)}
    num_outputs = lasts.pop() if len(lasts) == 1 else 1
    if not rank * num_outputs < dim:
        raise InvalidArgumentError(
            f"rank must be less than the number of parameters of an output, {dim // num_outputs};"
            f" got {rank}. Leave it out, and the whole curvature of up to {_LARGEST} parameters is"
            " released."
        )
    return LowRankCurvature(rank=rank, num_outputs=num_outputs, **settings)


def _check_rank(rank: int | None) -> None:
    if rank is not None:
        _check.non_negative_integer(rank=rank)


def _square(tree: Tree) -> Array:
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))
