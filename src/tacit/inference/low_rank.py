"""Curvature by its average and a few directions, for thousands of parameters."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit import _tree
from tacit.inference.evidence import Evidence, no_evidence
from tacit.inference.few_directions import (
    FewDirections,
    LowRankQuadratic,
    LowRankReleases,
    orthonormal,
    prior_near,
    shrinkage,
    solved,
    weighed,
)
from tacit.inference.method import Objective
from tacit.inference.quadratic import CHANGE, TINY, matrix_of, shares_of, triangle_of
from tacit.rng import seeded_key
from tacit.samplers import DiagonalGaussian, ShrunkGaussian
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = ["LowRankCurvature"]

_NUM_TURNS = 4
"""Directions turn after 1, 2, 4 and 8 releases, each time towards the average of what was released
since: power iteration. Then they stay, so that what is said along them can be averaged."""

_NUM_FORESEEN = 4
"""How often directions turn towards those of public records."""

_NUM_PROBES = 4
"""How many random directions a trace is estimated with, in each release."""

_NUM_POWERS = 2
"""Power iterations for the steepest curvature of a record, after a first one that starts anywhere:
the curvature of one record has as many directions as the network has outputs, or fewer."""

_TRACE_SHARE = 1 / 8
"""What the trace is multiplied with beside the rest of the curvature. A record has one trace, as
long as everything else of its curvature together: so it hardly takes room."""

_PRODUCT_SHARE = 1 / 2
_STEEPEST_SHARE = 1 / 2
"""Likewise for a record's steepest curvature."""

_KEPT_NUMBERS = 2**23
"""How many numbers of points and of gradients are kept: 32 MB each."""

_MOST_KEPT = 256


class _Seen(NamedTuple):
    """An estimated curvature.

    Attributes:
      typical: the averages over outputs, and across the directions.
      steepest: as steep as any output, and any direction across, as far as the releases tell.
    """

    typical: FewDirections
    steepest: FewDirections


@dataclass(frozen=True, kw_only=True)
class LowRankCurvature:
    """What `Laplace` releases of a curvature that is too large to be released as a whole.

    Curvature is taken to be the same for all outputs: an average level, and other values along
    ``rank`` directions of the parameters of an output. Beside its gradient, a record gives

    * the products of its Hessian with the directions, summed over outputs (Hutchinson). Averages
      of them turn the directions towards the steepest ones (power iteration);
    * the trace of its Hessian across the directions, and the steepest curvature there. The sum of
      the latter bounds how steep the loss of all records is.

    All directions are public before the release: they come from earlier releases and from public
    keys. A direction counts only where its curvature stands out from the noise.

    With noise of variance ``s^2`` on all gradients together, a direction of curvature ``a`` keeps
    the share ``a / (a + s^2)`` of its information. Steps descend the potential whose gradients are
    multiplied with these shares, as fast as the steepest curvature allows, with the momentum for
    that (Nesterov). Across the directions the share is that of the steepest curvature, because
    records lie along steep directions: flatter ones get more noise than single parameters should
    have, and predictions hardly see it. The covariance takes the average there.

    Args:
      objective: of the model.
      dim: number of parameters.
      num_outputs: the last axis of all parameters; one where they have none in common.
      rank: number of directions; zero is allowed.
      num_records: the public number of records.
      batch_noise: ``(1 - q) / q`` for batches of inclusion rate ``q``.
    """

    objective: Objective
    dim: int
    num_outputs: int
    rank: int
    num_records: int
    batch_noise: float

    @property
    def sampler(self) -> ShrunkGaussian | DiagonalGaussian:
        """Draws from the posterior."""
        if not self.rank:
            return DiagonalGaussian()
        return ShrunkGaussian(rank=self.rank, num_outputs=self.num_outputs)

    @property
    def own_noise(self) -> str:
        """How its Gaussian counts the privacy noise."""
        return (
            "its Gaussian counts the privacy noise, but gives all parameters the same curvature"
            f" outside of {self.rank} directions. Trust predictions more than single parameters"
        )

    @property
    def num_rows(self) -> int:
        """How many parameters an output has."""
        return self.dim // self.num_outputs

    @property
    def product_share(self) -> float:
        """What products are multiplied with: sums over outputs are longer than their parts."""
        return _PRODUCT_SHARE * self.num_outputs**-0.5

    @property
    def num_numbers(self) -> int:
        """How many numbers a record is asked for, or makes on the way."""
        return self.dim * (self.rank + _NUM_PROBES + 1)

    def nothing_yet(self) -> LowRankReleases:
        """Returns the state before the first release; its directions are random and public."""
        num_kept = max(16, min(_MOST_KEPT, _KEPT_NUMBERS // self.dim))
        row, zero = jnp.zeros(num_kept), jnp.zeros((), jnp.int32)
        evidence = no_evidence(num_rows=num_kept, size=self.dim)._replace(
            curvatures=jnp.zeros((num_kept, self.rank * (self.rank + 1) // 2)),
            curvature_variances=row,
        )
        products = jnp.zeros((self.rank, self.num_rows))
        start = orthonormal(jax.random.normal(seeded_key(0), products.shape))
        return LowRankReleases(evidence, row, row, start, products, zero, jnp.zeros(self.dim))

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
        signs = self._signs(start)

        def turned(_: int, directions: Array) -> Array:
            return orthonormal(self._over_outputs(product, directions, signs))

        directions = start.directions
        if self.rank:
            directions = jax.lax.fori_loop(0, _NUM_FORESEEN, turned, directions)
        return start._replace(directions=directions)

    def offset(self, releases: LowRankReleases, params: Params) -> Array:
        """Returns how far from the present point the next release is made: the momentum."""
        flat, _ = ravel_pytree(_tree.at_least_float32(params))
        momentum = self.near(releases, params).momentum
        return jnp.where(releases.num_steps > 0, momentum * (flat - releases.here), 0.0)

    def prepared(self, releases: LowRankReleases, params: Params) -> LowRankReleases:
        """Returns the releases with the directions of the next one."""
        flat, _ = ravel_pytree(_tree.at_least_float32(params))
        releases = releases._replace(here=flat)
        if not self.rank:
            return releases
        step = releases.num_steps
        turns = jnp.any(step == 2 ** jnp.arange(_NUM_TURNS))
        turned = orthonormal(releases.products)
        is_sound = turns & jnp.all(jnp.isfinite(turned))
        return releases._replace(
            directions=jnp.where(is_sound, turned, releases.directions),
            products=jnp.where(turns, 0.0, releases.products),
            turned_at=jnp.where(turns, step, releases.turned_at),
        )

    def numbers(
        self, params: Params, releases: LowRankReleases, record: Record, key: Key
    ) -> tuple[Array, tuple[Array, Array, Array]]:
        """Returns one record's gradient; its products, its trace and its steepest curvature."""
        flat, unflat = ravel_pytree(_tree.at_least_float32(params))

        def gradient(flat: Array) -> Array:
            def loss(flat: Array) -> Scalar:
                return self.objective.record_loss(unflat(flat), None, record, key)

            return jax.grad(loss)(flat)

        probes = self._probes(releases)
        found, product = jax.linearize(gradient, flat)
        products = self._over_outputs(product, releases.directions, self._signs(releases))
        across = jax.vmap(product)(probes)
        trace = jnp.sum(across * probes) / _NUM_PROBES
        steepest = self._across(releases, across[-1])
        for _ in range(_NUM_POWERS):
            unit = steepest / jnp.maximum(jnp.linalg.norm(steepest), TINY)
            steepest = self._across(releases, product(unit))
        return found, (
            self.product_share * products,
            _TRACE_SHARE * trace,
            _STEEPEST_SHARE * jnp.linalg.norm(steepest),
        )

    def _over_outputs(
        self, product: Callable[[Array], Array], directions: Array, signs: Array
    ) -> Array:
        """Returns estimates of the products with directions, summed over outputs (Hutchinson)."""

        def one(direction: Array) -> Array:
            found = product((direction[:, None] * signs).ravel())
            return found.reshape(-1, self.num_outputs) @ signs

        return jax.vmap(one)(directions)

    def _signs(self, releases: LowRankReleases) -> Array:
        """Returns the public random sign of each output in a step."""
        key = jax.random.fold_in(seeded_key(2), releases.num_steps)
        return jax.random.rademacher(key, (self.num_outputs,), jnp.float32)

    def _probes(self, releases: LowRankReleases) -> Array:
        """Returns the public random signs of a step, without what is along the directions."""
        key = jax.random.fold_in(seeded_key(1), releases.num_steps)
        signs = jax.random.rademacher(key, (_NUM_PROBES, self.dim), jnp.float32)
        return jax.vmap(functools.partial(self._across, releases))(signs)

    def _across(self, releases: LowRankReleases, vector: Array) -> Array:
        """Returns a vector without what is along the directions."""
        rows = vector.reshape(self.num_rows, self.num_outputs)
        return (rows - releases.directions.T @ (releases.directions @ rows)).ravel()

    def noted(
        self,
        releases: LowRankReleases,
        curvature: tuple[Array, Array, Array],
        evidence: Evidence,
        row: Array,
    ) -> LowRankReleases:
        """Returns the releases with one more.

        Args:
          releases: so far, as prepared.
          curvature: what the engine returned for `numbers`, in the scale of all records.
          evidence: that of the releases, with what all forms of curvature note of the new one.
          row: that of the new one.
        """
        products, trace, steepest = curvature
        products = products / self.product_share
        along = products @ releases.directions.T
        assert evidence.curvatures is not None
        triangles = evidence.curvatures.at[row].set(triangle_of((along + along.T) / 2))
        return releases._replace(
            evidence=evidence._replace(curvatures=triangles),
            traces=releases.traces.at[row].set(trace / _TRACE_SHARE),
            steepest=releases.steepest.at[row].set(steepest / _STEEPEST_SHARE),
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
        typical, steepest = self._seen(releases, far)
        slope_errors = far / 4 * jnp.mean(changes**2, axis=1)
        batches = self.batch_noise * typical.level
        shares = shares_of(evidence.variances + batches + slope_errors, evidence.counts)
        privacy = shares**2 @ evidence.variances
        sampled = self.batch_noise * shares @ shares

        def kept(values: Array) -> Array:
            return values / (values + privacy + sampled * values)

        # Records lie along the steep directions: what is known there decides predictions.
        is_found = typical.values > typical.level
        values = jnp.where(is_found, typical.values, steepest.level)
        share = FewDirections(kept(steepest.level), kept(values), typical.directions)
        last = (releases.num_steps - 1) % len(evidence.counts)
        point = evidence.points[last]
        prior, slope = prior_near(self.objective, point, unflat, self.num_outputs)
        stiff = weighed(share, steepest)
        step = solved(prior, stiff, slope + share.times(evidence.gradients[last]))
        weakest = jnp.mean(prior) + share.level * typical.level
        ratio = jnp.sqrt((jnp.mean(prior) + stiff.level) / jnp.maximum(weakest, TINY))
        shown = FewDirections(kept(typical.level), kept(typical.values), typical.directions)
        return LowRankQuadratic(
            point - step,
            prior,
            weighed(shown, typical),
            self._largest(releases, typical),
            (ratio - 1) / (ratio + 1),
        )

    def _seen(self, releases: LowRankReleases, far: Array) -> _Seen:
        """Returns the average curvature along the present directions, and across them."""
        evidence, outputs = releases.evidence, self.num_outputs
        assert evidence.curvatures is not None
        assert evidence.curvature_variances is not None
        used = evidence.counts * self._is_across(releases)
        noise = evidence.curvature_variances
        trace_noise = noise / _TRACE_SHARE**2
        size = jnp.sum(used * releases.traces) / jnp.sum(used)
        shares = shares_of(trace_noise + far * size**2, used)
        trace = jnp.maximum(shares @ releases.traces, jnp.sqrt(shares**2 @ trace_noise))
        level = jnp.maximum(trace / (self.dim - self.rank * outputs), TINY)
        error = jnp.sqrt(shares**2 @ noise) / _STEEPEST_SHARE
        steepest = jnp.maximum(shares @ releases.steepest, 0.0) + error
        if not self.rank:
            none = jnp.zeros(0)
            return _Seen(
                FewDirections(level, none, releases.directions),
                FewDirections(steepest, none, releases.directions),
            )
        noise = noise / self.product_share**2
        sums = matrix_of(shares @ evidence.curvatures, self.rank)
        values, turn = jnp.linalg.eigh(sums / outputs)
        # The largest eigenvalue of a symmetric matrix of noise.
        noise_level = jnp.sqrt(2 * self.rank * (shares**2 @ noise)) / outputs
        stands_out = values > level + noise_level
        values = jnp.where(stands_out, values, level)
        # How much steeper the steepest output is than the average.
        uneven = jnp.clip(outputs * steepest / trace, 1.0, outputs)
        hidden = jnp.maximum(steepest, level + noise_level)
        directions = turn.T @ releases.directions
        return _Seen(
            FewDirections(level, values, directions),
            FewDirections(steepest, jnp.where(stands_out, uneven * values, hidden), directions),
        )

    def _is_across(self, releases: LowRankReleases) -> Array:
        """Whether a release was made with the present directions."""
        num_kept = len(releases.evidence.counts)
        last = releases.num_steps - 1
        step_of_row = last - (last - jnp.arange(num_kept)) % num_kept
        return step_of_row >= releases.turned_at

    def _largest(self, releases: LowRankReleases, seen: FewDirections) -> FewDirections:
        """Returns a record's average curvature where it was largest, which holds steps back.

        Where predictions are certain, the loss of a classifier is nearly flat, and a step that
        seems short there is long.
        """
        evidence = releases.evidence
        assert evidence.curvature_variances is not None
        errors = 2 * jnp.sqrt(evidence.curvature_variances) / _TRACE_SHARE
        is_told = evidence.counts * self._is_across(releases) > 0
        largest = jnp.max(jnp.where(is_told, releases.traces - errors, 0.0))
        largest = largest / (self.dim - self.rank * self.num_outputs)
        ratio = jnp.maximum(largest / seen.level, 1.0) / self.num_records
        return FewDirections(seen.level * ratio, seen.values * ratio, seen.directions)

    def kept(self, releases: LowRankReleases, params: Params) -> Tree:
        """Returns the posterior as its sampler takes it."""
        found = self.near(releases, params)
        unflat = ravel_pytree(_tree.at_least_float32(params))[1]
        std = 1 / jnp.sqrt(found.prior + found.known.level)
        stds = jax.tree.map(
            lambda w, leaf: leaf.astype(w.dtype),
            params,
            unflat(jnp.repeat(std, self.num_outputs)),
        )
        if not self.rank:
            return {"mean": params, "std": stds}
        factors = shrinkage(found.known.factors * std)
        ends = np.cumsum([leaf.size // self.num_outputs for leaf in jax.tree.leaves(params)])
        leaves = jnp.split(factors, ends[:-1], axis=1)
        shaped = jax.tree.unflatten(jax.tree.structure(params), leaves)
        return {"mean": params, "std": stds, "factors": shaped}
