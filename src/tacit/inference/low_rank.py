"""Curvature by a few directions and one number for all the others, for thousands of parameters."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit import _tree
from tacit.inference.evidence import Evidence
from tacit.inference.method import Objective
from tacit.inference.quadratic import (
    CHANGE,
    LEAST_INFORMATION,
    TINY,
    matrix_of,
    shares_of,
    triangle_of,
)
from tacit.rng import seeded_key
from tacit.samplers import ShrunkGaussian
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = ["LowRankCurvature", "LowRankQuadratic"]

_LAST_TURN = 8
"""The directions turn after 1, 2, 4 and 8 releases, each time towards the average of what was
released since: power iteration. Then they stay, so that what is said along them can be averaged."""

_NUM_FORESEEN = 4
"""How often directions turn towards those of public records."""

_KEPT_NUMBERS = 2**23
"""How many numbers of points and of gradients are kept: 32 MB each."""

_MOST_KEPT = 256


class LowRankReleases(NamedTuple):
    """What was released, and along which directions.

    Attributes:
      evidence: points, gradients and, as curvatures, what was released along the directions of its
        step: the upper triangle of a matrix as large as there are directions.
      levels: ``(num_kept,)``, the curvature along a random direction across these.
      directions: ``(rank, d)``, orthonormal; those of the last release.
      products: ``(rank, d)``, the sum of what the curvature made of them since they last turned.
      turned_at: the first release along them.
    """

    evidence: Evidence
    levels: Array
    directions: Array
    products: Array
    turned_at: Array

    @property
    def num_steps(self) -> Array:
        """How many releases there were."""
        return self.evidence.num_steps


class LowRankQuadratic(NamedTuple):
    """The posterior given the releases, as if the loss were quadratic.

    Attributes:
      mean: of the posterior, flat.
      diagonal: of its precision, across the directions.
      factors: ``(rank, d)``; the precision is the diagonal plus ``factors^T factors``.
      curvature: of the loss of one record, on average.
    """

    mean: Array
    diagonal: Array
    factors: Array
    curvature: "_Curvature"

    def length(self, offset: Array) -> Scalar:
        """The root of how much a record's loss changes, to second order."""
        return jnp.sqrt(jnp.maximum(offset @ self.curvature.times(offset), 0.0))


class _Curvature(NamedTuple):
    """``level I + directions^T diag(values - level) directions``, with orthonormal directions."""

    level: Scalar
    values: Array
    directions: Array

    def times(self, vectors: Array) -> Array:
        """The product with a vector, or with each row of a matrix."""
        along = vectors @ self.directions.T
        return self.level * vectors + (along * (self.values - self.level)) @ self.directions


class _Seen(NamedTuple):
    """An estimated curvature.

    Attributes:
      typical: level across the directions is the average there; what information is made of.
      safe: level is as high as any that was not seen, as far as anyone knows: for steps.
      raw_level: the level as released, of which noise can make a negative number.
      noise: the standard deviation of the noise of the level.
    """

    typical: _Curvature
    safe: _Curvature
    raw_level: Scalar
    noise: Scalar


@dataclass(frozen=True, kw_only=True)
class LowRankCurvature:
    """What `Laplace` releases of a curvature that is too large to be released as a whole.

    A record gives, beside its gradient, the products ``H_i v`` of its Hessian with ``rank``
    orthonormal directions, and one number, ``u' H_i u`` for a fresh random direction ``u`` across
    them. Directions and ``u`` are public before the release: they come from earlier releases and
    from a public key. Averages of the products turn the directions towards the steepest ones (power
    iteration), and the number tells the average curvature of all the others.

    A direction counts only where its curvature stands out from the noise; the budget decides how
    many do. All directions that do not are given one common level.

    What is approximated, beside the quadratic: directions that were not found are thought to be
    alike. Those along which records say less than the average are known less well than the
    covariance says; the prior bounds by how much. Steps do not rely on it: where all ``rank``
    directions stand out, they take the least of these curvatures for the others.

    Args:
      objective: of the model.
      dim: number of parameters.
      rank: number of directions.
      num_records: the public number of records.
      batch_noise: ``(1 - q) / q`` for batches of inclusion rate ``q``.
    """

    objective: Objective
    dim: int
    rank: int
    num_records: int
    batch_noise: float

    num_blind: ClassVar[int] = 4
    """Releases before the first step: until the steepest directions are found, any is too long."""

    explores: ClassVar[bool] = False

    @property
    def sampler(self) -> ShrunkGaussian:
        """Draws from the posterior."""
        return ShrunkGaussian(rank=self.rank)

    @property
    def num_numbers(self) -> int:
        """How many numbers a record is asked for."""
        return self.dim * (self.rank + 2)

    def nothing_yet(self) -> LowRankReleases:
        """Returns the state before the first release; its directions are random and public."""
        num_kept = max(16, min(_MOST_KEPT, _KEPT_NUMBERS // self.dim))
        vectors, row = jnp.zeros((num_kept, self.dim)), jnp.zeros(num_kept)
        triangles = jnp.zeros((num_kept, self.rank * (self.rank + 1) // 2))
        zero = jnp.zeros((), jnp.int32)
        evidence = Evidence(vectors, vectors, row, row, row, zero, triangles, row)
        start = jax.random.normal(seeded_key(0), (self.rank, self.dim))
        return LowRankReleases(
            evidence, row, orthonormal(start), jnp.zeros((self.rank, self.dim)), zero
        )

    def evidence_in(self, releases: LowRankReleases) -> Evidence:
        """Returns what all forms of curvature note."""
        return releases.evidence

    def foreseen(self, params: Params, records: Record, keys: Key) -> LowRankReleases:
        """Returns releases whose directions are the steepest ones of public records.

        Args:
          params: where.
          records: public ones.
          keys: one for each.
        """
        flat, unflat = ravel_pytree(_tree.at_least_float32(params))

        def loss(flat: Array) -> Scalar:
            return jnp.sum(
                jax.vmap(self.objective.record_loss, in_axes=(None, None, 0, 0))(
                    unflat(flat), None, records, keys
                )
            )

        _, product = jax.linearize(jax.grad(loss), flat)
        start = self.nothing_yet()
        directions = jax.lax.fori_loop(
            0,
            _NUM_FORESEEN,
            lambda _, directions: orthonormal(jax.vmap(product)(directions)),
            start.directions,
        )
        return start._replace(directions=directions)

    def prepared(self, releases: LowRankReleases) -> LowRankReleases:
        """Returns the releases with the directions of the next one."""
        step = releases.num_steps
        turns = jnp.any(step == jnp.array([2**power for power in range(_LAST_TURN.bit_length())]))
        turned = orthonormal(releases.products)
        is_sound = turns & jnp.all(jnp.isfinite(turned))
        return releases._replace(
            directions=jnp.where(is_sound, turned, releases.directions),
            products=jnp.where(turns, 0.0, releases.products),
            turned_at=jnp.where(turns, step, releases.turned_at),
        )

    def numbers(
        self, params: Params, releases: LowRankReleases, record: Record, key: Key
    ) -> tuple[Array, tuple[Array, Array]]:
        """Returns one record's gradient, its products with the directions, and its level."""
        flat, unflat = ravel_pytree(_tree.at_least_float32(params))

        def gradient(flat: Array) -> Array:
            return jax.grad(lambda w: self.objective.record_loss(unflat(w), None, record, key))(
                flat
            )

        across = self._across(releases)
        asked = jnp.concatenate([releases.directions, across[None]])
        found, product = jax.linearize(gradient, flat)
        products = jax.vmap(product)(asked)
        # In this scale its noise is that of the trace, as if the whole diagonal were released.
        level = math.sqrt(self.dim) * (products[-1] @ across)
        return found, (products[:-1], level)

    def _across(self, releases: LowRankReleases) -> Array:
        """Returns the public random direction of a step, across the others."""
        key = jax.random.fold_in(seeded_key(1), releases.num_steps)
        found = jax.random.normal(key, (self.dim,))
        found = found - (releases.directions @ found) @ releases.directions
        return found / jnp.linalg.norm(found)

    def noted(
        self, releases: LowRankReleases, curvature: tuple[Array, Array], evidence: Evidence, row: Array
    ) -> LowRankReleases:
        """Returns the releases with one more.

        Args:
          releases: so far, as prepared.
          curvature: what the engine returned for `numbers`, in the scale of all records.
          evidence: that of the releases, with what all forms of curvature note of the new one.
          row: that of the new one.
        """
        products, level = curvature
        along = products @ releases.directions.T
        assert evidence.curvatures is not None
        triangles = evidence.curvatures.at[row].set(triangle_of((along + along.T) / 2))
        return releases._replace(
            evidence=evidence._replace(curvatures=triangles),
            levels=releases.levels.at[row].set(level / math.sqrt(self.dim)),
            products=releases.products + products,
        )

    def near(self, releases: LowRankReleases, params: Params) -> LowRankQuadratic:
        """Returns what the releases say near a point; `Quadratic.near` explains the weights."""
        flat, unflat = ravel_pytree(_tree.at_least_float32(params))
        evidence = releases.evidence
        offsets = evidence.points - flat
        rough = self._seen(releases, jnp.zeros(len(offsets))).typical
        changes = rough.times(offsets)
        far = CHANGE**2 * jnp.maximum(jnp.sum(offsets * changes, axis=1), 0.0) / self.num_records
        seen = self._seen(releases, far)
        typical, safe = seen.typical, seen.safe
        # What is wrong with a slope: the curvature changed on the way, and is not the safe one.
        wrong = (safe.level - typical.level) ** 2 * jnp.mean(offsets**2, axis=1)
        slope_errors = far / 4 * jnp.mean(changes**2, axis=1) + wrong
        batches = self.batch_noise * typical.level
        shares = shares_of(evidence.variances + batches + slope_errors, evidence.counts)
        privacy = shares**2 @ evidence.variances
        sampled = self.batch_noise * shares @ shares

        def kept(values: Array) -> Array:
            return values / (values + privacy + sampled * values)

        message = safe.times(shares @ evidence.points) - shares @ evidence.gradients
        kept_curvature = _Curvature(kept(typical.level), kept(typical.values), typical.directions)
        prior, slope = self._prior(flat, unflat)
        mean = _solved(
            prior + kept_curvature.level * safe.level,
            _factors(kept_curvature.level * safe.level, kept_curvature.values * safe.values, safe),
            prior * flat - slope + kept_curvature.times(message),
        )
        known = jnp.maximum(seen.raw_level, LEAST_INFORMATION * seen.noise)
        known = jnp.maximum(known, TINY)
        level, values = known * kept(known), typical.values * kept(typical.values)
        return LowRankQuadratic(
            mean,
            prior + level,
            _factors(level, values, typical),
            self._longest(releases, seen),
        )

    def _seen(self, releases: LowRankReleases, far: Array) -> _Seen:
        """Returns the average curvature along the present directions, and across them."""
        evidence = releases.evidence
        assert evidence.curvatures is not None and evidence.curvature_variances is not None
        num_kept = len(evidence.counts)
        last = releases.num_steps - 1
        step_of_row = last - (last - jnp.arange(num_kept)) % num_kept
        used = evidence.counts * (step_of_row >= releases.turned_at)
        noise = evidence.curvature_variances
        size = jnp.mean(releases.levels, where=used > 0)
        shares = shares_of(noise + far * size**2, used)
        values, turn = jnp.linalg.eigh(matrix_of(shares @ evidence.curvatures, self.rank))
        variance = shares**2 @ noise
        raw_level = shares @ releases.levels
        level_noise = jnp.sqrt(variance / self.dim)
        rounding = jnp.maximum(1e-6 * jnp.max(jnp.abs(values)), TINY)
        level = jnp.maximum(jnp.maximum(raw_level, level_noise), rounding)
        # The largest eigenvalue of a symmetric matrix of noise.
        stands_out = values > level + jnp.sqrt(2 * self.rank * variance)
        values = jnp.where(stands_out, values, level)
        directions = turn.T @ releases.directions
        steepest = jnp.where(jnp.all(stands_out), jnp.min(values), level)
        return _Seen(
            _Curvature(level, values, directions),
            _Curvature(steepest, values, directions),
            raw_level,
            level_noise,
        )

    def _longest(self, releases: LowRankReleases, seen: _Seen) -> _Curvature:
        """Returns a record's average curvature where it was largest, which holds steps back.

        Where predictions are certain, the loss of a classifier is nearly flat, and a step that
        seems short there is long.
        """
        evidence = releases.evidence
        assert evidence.curvature_variances is not None
        errors = 2 * jnp.sqrt(evidence.curvature_variances / self.dim)
        errors = errors + 2 * math.sqrt(2 / self.dim) * jnp.abs(releases.levels)
        # The first two were made along directions that had not been found.
        is_told = (evidence.counts > 0) & (jnp.arange(len(errors)) >= 2)
        largest = jnp.max(jnp.where(is_told, releases.levels - errors, 0.0))
        ratio = jnp.maximum(largest / seen.typical.level, 1.0) / self.num_records
        safe = seen.safe
        return _Curvature(safe.level * ratio, safe.values * ratio, safe.directions)

    def _prior(self, flat: Array, unflat: Tree) -> tuple[Array, Array]:
        """Returns the diagonal of the prior's curvature, no element below zero, and its slope."""

        def slope(flat: Array) -> Array:
            return jax.grad(lambda w: self.objective.regulariser(unflat(w), None))(flat)

        # Priors of Bayesian networks are independent; of others this takes row sums.
        found, diagonal = jax.jvp(slope, (flat,), (jnp.ones_like(flat),))
        return jnp.maximum(diagonal, 0.0), found

    def kept(self, releases: LowRankReleases, params: Params) -> Tree:
        """Returns the posterior as its sampler takes it."""
        found = self.near(releases, params)
        unflat = ravel_pytree(_tree.at_least_float32(params))[1]
        std = 1 / jnp.sqrt(found.diagonal)
        # (I + B^T B)^(-1/2) = I - F^T F, with the same directions in F as in B.
        lengths, turn = jnp.linalg.eigh((found.factors * std) @ (found.factors * std).T)
        lengths = jnp.maximum(lengths, 0.0)
        unit = turn.T @ (found.factors * std) / jnp.sqrt(jnp.maximum(lengths, TINY))[:, None]
        factors = unit * jnp.sqrt(1 - 1 / jnp.sqrt(1 + lengths))[:, None]

        def shaped(vector: Array) -> Tree:
            return jax.tree.map(lambda w, leaf: leaf.astype(w.dtype), params, unflat(vector))

        return {"mean": params, "std": shaped(std), "factors": jax.vmap(shaped)(factors)}

    def evidence(self, releases: LowRankReleases) -> None:
        """Returns nothing: beyond 128 parameters no correction is made afterwards."""


def orthonormal(rows: Array) -> Array:
    """Returns orthonormal rows that span the same space."""
    found: Array = jnp.linalg.qr(rows.T)[0].T
    return found


def _factors(level: Scalar, values: Array, curvature: _Curvature) -> Array:
    """Returns ``F`` with ``F^T F`` equal to what values along directions exceed a level by."""
    return jnp.sqrt(jnp.maximum(values - level, 0.0))[:, None] * curvature.directions


def _solved(diagonal: Array, factors: Array, right: Array) -> Array:
    """Returns ``(diag(diagonal) + factors^T factors)^-1 right`` (Woodbury)."""
    scaled = factors / diagonal
    inner = jnp.eye(len(factors)) + scaled @ factors.T
    return right / diagonal - scaled.T @ jnp.linalg.solve(inner, factors @ (right / diagonal))
