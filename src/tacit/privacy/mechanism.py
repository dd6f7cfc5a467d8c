"""The one way in for records: a clipped, noisy sum that knows its own cost.

The whole privacy argument of tacit is on this page, and it is about the numbers that the machine
computes. A release is

    clip_norm * g / inclusion_rate * (f(D) + K),

where ``g`` is the spacing of a public lattice in clip norms, ``f(D)`` are integers, the sum over
the drawn records of clipped contributions as computed and rounded to the lattice, and the ``K`` are
independent integers, each a Gaussian of standard deviation ``noise_multiplier / g`` rounded to the
nearest integer.

1. *Sensitivity.* One record moves ``f`` by at most ``1 / g`` in l2 norm: records are clipped by
   proven upper bounds on their norms to a little less than the clip norm, and the rest covers every
   rounding on the way (`tacit.privacy.lattice`); norms and sums read numbers that are computed once
   (`tacit.privacy.lattice`). Records lie in the slots of a batch by a uniformly
   random injection, so that all others lie in the same slots whether a record is drawn or not.
2. *Noise.* For integers ``f``, ``f + round(N) = round(f + N)``. So a release is a function of
   ``f(D) + N`` with real Gaussian ``N``: exactly the Gaussian mechanism of the literature on a
   sampled batch, and post-processing of it. Every theorem about that mechanism holds word for word.
   The ``K`` are sampled exactly (`tacit.privacy.noise`).
3. *Cost.* It depends on the sampling and the noise multiplier. The estimate divides by the public
   inclusion rate, never by the realised batch size, so an empty batch is an ordinary release:
   noise, counted. What is computed from releases alone is post-processing and costs nothing.

Integers that pass the 32 or 64 bits they are kept in wrap around. That is post-processing, too: it
could cost accuracy, never privacy.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
from dp_accounting import DpEvent

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.clipping import Flat
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.bounds import Clipping
from tacit.privacy.clipping.gradient import Summation, gradient_summation_of, summation_of
from tacit.privacy.clipping.isolation import require_isolated
from tacit.privacy.clipping.slack import Counted
from tacit.privacy.lattice import LARGEST_EXPONENT
from tacit.privacy.noise import noisy
from tacit.privacy.refinement import LARGEST_RATIO
from tacit.privacy.sampling import Sampling
from tacit.tables.base import Table, drawn_batch, sum_over_devices, table_of
from tacit.tables.distributed import on_table
from tacit.typing import Array, Key, Params, Query, RecordLoss, Scalar, Tree

__all__ = ["GaussianSum"]

_SMALLEST_CLIP_NORM = 1e-10
"""Coordinates below 1e-19 have no square in float32. Beside norms from here on, a million million
of them do not matter."""

_LARGEST_NOISE_MULTIPLIER = LARGEST_RATIO / 2**LARGEST_EXPONENT
"""With more, the noise of the finest lattice would not fit in the integers that it is drawn in."""

_ROUNDED_UP = 1 + 2.0**-22
"""A traced multiplier is a float32, which may be the rounded-down one of the cost's."""


@dataclass(frozen=True, kw_only=True)
class GaussianSum:
    """Estimates a sum over all records privately. Fields are public, arguments are sensitive.

    Guarantee:
      With ``noise_multiplier > 0`` each call is one release with privacy cost ``cost`` (or, when a
      multiplier is passed to the call, ``sampling.cost`` of that one), under the adjacencies that
      the accounting table admits for the sampling, in the arithmetic that the machine executes. The
      result depends on the records only through that release. With ``noise_multiplier == 0``
      nothing is promised and ``cost`` says so. The two do not mix: a release without noise takes no
      multiplier, and one with noise takes only a positive one. (A traced multiplier or clip norm
      that is not positive makes the result NaN.)

    Args:
      sampling: how the batch is drawn.
      clip_norm: by how much one record can move the sum at most, in l2 norm; ``inf`` only without
        noise. Records are clipped to a little less (`headroom`).
      noise_multiplier: noise standard deviation of the sum divided by ``clip_norm``.
      clipping: the rule that enforces the bound.
      chunk_size: how many per-record contributions are held in memory at once; never part of
        the cost.

    Example:
      >>> from tacit.privacy.sampling import FullBatch
      >>> from tacit.rng import seeded_key
      >>> ages = jax.numpy.array([23.0, 35.0, 61.0, 350.0])
      >>> total = GaussianSum(
      ...     sampling=FullBatch(num_records=4), clip_norm=100.0, noise_multiplier=0.1)
      >>> total.noise_std
      10.0
      >>> noisy = total(seeded_key(0), lambda age, key: age, ages)
      >>> bool(abs(noisy - (23 + 35 + 61 + 100)) < 50)
      True
    """

    sampling: Sampling
    clip_norm: float
    noise_multiplier: float
    clipping: Clipping = field(default_factory=Flat)
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        _check.positive(clip_norm=self.clip_norm, infinite=True)
        _check.non_negative(noise_multiplier=self.noise_multiplier)
        _require_clip_norm(self.clip_norm)
        _require_noise_multiplier(self.noise_multiplier)
        if math.isinf(self.clip_norm) and self.noise_multiplier > 0:
            raise InvalidArgumentError(
                "clip_norm must be finite when noise_multiplier > 0; got inf. Without a clip no"
                " amount of noise is private: give a clip_norm, or noise_multiplier=0 for a"
                " non-private run."
            )
        if self.chunk_size is not None:
            _check.positive_integer(chunk_size=self.chunk_size)

    @classmethod
    def non_private(cls, *, sampling: Sampling, chunk_size: int | None = None) -> "GaussianSum":
        """Returns the plain sum: no clip, no noise, nothing promised."""
        return cls(
            sampling=sampling, clip_norm=math.inf, noise_multiplier=0.0, chunk_size=chunk_size
        )

    @property
    def is_private(self) -> bool:
        """Whether the release has noise."""
        return self.noise_multiplier > 0

    @property
    def cost(self) -> DpEvent:
        """What one call costs."""
        return self.cost_of(self.noise_multiplier)

    def cost_of(self, noise_multiplier: float) -> DpEvent:
        """What one call with this multiplier costs."""
        if noise_multiplier == 0 or not self.is_private:
            return dp_accounting.NonPrivateDpEvent()
        return self.sampling.cost(noise_multiplier)

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on the returned estimate, before rounding."""
        if not self.is_private:
            return 0.0
        return self.noise_multiplier * self.clip_norm / self.sampling.inclusion_rate

    def noise_variance(
        self,
        *,
        noise_multiplier: Scalar | float | None = None,
        clip_norm: Scalar | float | None = None,
    ) -> Scalar | float:
        """The variance of that noise, where a call replaces the configuration."""
        if not self.is_private:
            return 0.0
        multiplier = self.noise_multiplier if noise_multiplier is None else noise_multiplier
        norm = self.clip_norm if clip_norm is None else clip_norm
        return (multiplier * norm / self.sampling.inclusion_rate) ** 2

    def __call__(
        self,
        key: Key,
        query: Query,
        data: Tree,
        *,
        noise_multiplier: Scalar | float | None = None,
        clip_norm: Scalar | float | None = None,
        record_key: Key | None = None,
    ) -> Tree:
        """Returns a private estimate of the sum of ``query(record, key)`` over all records.

        Args:
          key: fresh for every call; noise, batch and per-record keys all come from it.
          query: a function of one record and that record's key.
          data: the records: a tree in which every leaf has one row for each, or a table of
            `tacit.tables`, wherever it is.
          noise_multiplier: replaces the configured one, for schedules; positive, may be traced.
          clip_norm: likewise. It must not depend on the records but through releases.
          record_key: replaces the key from which the records' keys come, so that several calls
            can show a record the same dropout mask. The clip bounds a record whatever its mask is,
            so this key may be known and used again. Batch and noise still come from ``key``,
            which must not be derived from it.
        """
        call = _Call(noise_multiplier, clip_norm, record_key)
        return self._of_query(key, query, data, call).estimate

    def counted(
        self,
        key: Key,
        query: Query,
        data: Tree,
        *,
        noise_multiplier: Scalar | float | None = None,
        clip_norm: Scalar | float | None = None,
        record_key: Key | None = None,
    ) -> Counted:
        """Returns the same, and a histogram of norms (`tacit.privacy.clipping.slack`)."""
        call = _Call(noise_multiplier, clip_norm, record_key)
        return self._of_query(key, query, data, call, is_counted=True)

    def gradient(
        self,
        key: Key,
        loss: RecordLoss,
        params: Params,
        data: Tree,
        *,
        noise_multiplier: Scalar | float | None = None,
        clip_norm: Scalar | float | None = None,
        record_key: Key | None = None,
    ) -> Tree:
        """Returns a private estimate of the gradient of the summed ``loss(params, record, key)``.

        Equals calling the release with the gradient as its query, up to rounding; it is a method of
        its own because clipped gradients can be summed without forming them.
        """
        call = _Call(noise_multiplier, clip_norm, record_key)
        summing = functools.partial(gradient_summation_of, loss, params)
        return self._estimate(key, loss, params, data, summing=summing, call=call).estimate

    def counted_gradient(
        self,
        key: Key,
        loss: RecordLoss,
        params: Params,
        data: Tree,
        *,
        noise_multiplier: Scalar | float | None = None,
        clip_norm: Scalar | float | None = None,
    ) -> Counted:
        """Returns the same, and a histogram of norms from the same release, as `counted` does."""
        call = _Call(noise_multiplier, clip_norm)
        summing = functools.partial(gradient_summation_of, loss, params)
        return self._estimate(key, loss, params, data, summing=summing, call=call, is_counted=True)

    def _of_query(
        self, key: Key, query: Query, data: Tree, call: "_Call", *, is_counted: bool = False
    ) -> Counted:
        """Makes a release of a query, which is a loss that has no parameters."""

        def loss(params: None, record: Tree, key: Key) -> Tree:
            del params
            return query(record, key)

        summing = functools.partial(summation_of, query)
        return self._estimate(
            key, loss, None, data, summing=summing, call=call, is_counted=is_counted
        )

    def headroom(self, loss: RecordLoss, params: Params, record: Tree) -> float:
        """Returns the share of the clip norm that is kept for rounding, for gradients of a loss.

        Args:
          loss: a function of parameters, one record and its key.
          params: the parameters, or their shapes.
          record: one record, or its shapes.

        Example:
          >>> from tacit.privacy.sampling import FullBatch
          >>> release = GaussianSum(
          ...     sampling=FullBatch(num_records=9), clip_norm=1.0, noise_multiplier=1.0)
          >>> kept = release.headroom(lambda w, x, key: jnp.tanh(x @ w).sum(), jnp.ones((8, 4)),
          ...                         jnp.ones(8))
          >>> f"{kept:.2%}"
          '1.01%'
        """
        key = jax.eval_shape(jax.random.key, 0)
        return 1 - gradient_summation_of(loss, params, record, key).lattice.share

    def _estimate(
        self,
        key: Key,
        loss: RecordLoss,
        params: Params,
        data: Tree,
        *,
        summing: Callable[[Tree, Key], Summation],
        call: "_Call",
        is_counted: bool = False,
    ) -> Counted:
        """Makes one release; where devices share the table, all of them make it together.

        ``summing`` tells from shapes how the loss is summed. Sums without noise count no norms.
        """
        table = table_of(data, num_records=self.sampling.num_records)
        require_isolated(loss, params, table.record, key, records=data)
        summation = summing(table.record, key)
        if is_counted and self.is_private:
            summation = summation.counting(self.clipping)

        def release(table: Table, key: Key, call: _Call) -> Counted:
            return self._release(key, summation, table, call)

        return on_table(release, table, key, call)

    def _release(self, key: Key, summation: Summation, table: Table, call: "_Call") -> Counted:
        """Draws, gathers, clips, sums, adds noise and divides by the public inclusion rate."""
        multiplier, bound = self._multiplier(call.noise_multiplier), self._bound(call.clip_norm)
        batch_key, own_key, slots_key, noise_key = jax.random.split(key, 4)
        lattice = summation.lattice
        spacing = 2.0**-lattice.exponent
        adding, inner = Adding(), bound
        if multiplier is not None:
            num_limbs = lattice.num_limbs(self.sampling.capacity)
            adding = Adding(
                units=1 / (bound * spacing), num_limbs=num_limbs, heights=summation.heights
            )
            inner = bound * lattice.share
        batch = drawn_batch(self.sampling, batch_key, table.division)
        rows, own, is_known = table.gather(batch, slots_key, rate=self.sampling.rate)
        clipped = summation.clipped_sum(
            rows,
            _keys_of(own.indices, own_key if call.record_key is None else call.record_key),
            own.mask,
            clipping=self.clipping,
            clip_norm=inner,
            chunk_size=self.chunk_size,
            adding=adding,
        )
        total = sum_over_devices(summation.in_one(clipped, adding), table.mesh)
        scale = jnp.where(is_known, 1 / self.sampling.inclusion_rate, jnp.nan)
        if multiplier is not None:
            # Where the sum lies in slices, each device makes the noise of its own slice only.
            released = noisy(
                noise_key,
                total.own,
                ratio=multiplier / spacing,
                scale=scale * bound * spacing,
                num_columns=total.num_columns,
                first_column=total.first_column,
                dtype=summation.dtype,
            )
            total = total.with_own(released[None])
            scale = jnp.ones(())
        whole = total.gathered()[0]
        found = summation.apart(whole * scale.astype(whole.dtype))
        # All records in one bin would add up to this.
        most = bound * spacing * self.sampling.public_records * jnp.asarray(summation.heights)
        variance = self.noise_variance(noise_multiplier=multiplier, clip_norm=bound)
        return Counted(found.total, found.counters / most, variance / most**2)

    def _multiplier(self, noise_multiplier: Scalar | float | None) -> Scalar | float | None:
        """The noise multiplier of a call; None where there is no noise."""
        if not self.is_private:
            if noise_multiplier is not None:
                raise InvalidArgumentError(
                    f"noise_multiplier must be left out here; got {noise_multiplier!r}. The release"
                    " was configured without noise: configure it with noise_multiplier > 0."
                )
            return None
        if noise_multiplier is None:
            return self.noise_multiplier
        if isinstance(noise_multiplier, jax.core.Tracer):
            # Nothing can be raised for a traced value; NaN is the one answer that tells nothing.
            return jnp.where(noise_multiplier > 0, noise_multiplier * _ROUNDED_UP, jnp.nan)
        multiplier = float(noise_multiplier)
        _check.positive(noise_multiplier=multiplier)
        _require_noise_multiplier(multiplier)
        return multiplier

    def _bound(self, clip_norm: Scalar | float | None) -> Scalar | float:
        """The clip norm of a call."""
        if clip_norm is None:
            return self.clip_norm
        if isinstance(clip_norm, jax.core.Tracer):
            is_usable = (clip_norm >= _SMALLEST_CLIP_NORM) & jnp.isfinite(clip_norm)
            return jnp.where(is_usable, clip_norm, jnp.nan)
        norm = float(clip_norm)
        _check.positive(clip_norm=norm, infinite=not self.is_private)
        _require_clip_norm(norm)
        return norm


class _Call(NamedTuple):
    """What one call replaces of the configuration; None where it is meant."""

    noise_multiplier: Scalar | float | None = None
    clip_norm: Scalar | float | None = None
    record_key: Key | None = None


def _require_noise_multiplier(noise_multiplier: float) -> None:
    if noise_multiplier > _LARGEST_NOISE_MULTIPLIER:
        raise InvalidArgumentError(
            f"noise_multiplier must be at most {_LARGEST_NOISE_MULTIPLIER:g}; got"
            f" {noise_multiplier:g}. Nothing can be learnt under so much noise: use fewer steps or"
            " a larger budget."
        )


def _require_clip_norm(clip_norm: float) -> None:
    if clip_norm < _SMALLEST_CLIP_NORM:
        raise InvalidArgumentError(
            f"clip_norm must be at least {_SMALLEST_CLIP_NORM}; got {clip_norm}."
            " Scale the loss up instead."
        )


def _keys_of(indices: Array, key: Key) -> Key:
    """Returns the keys of records; they follow the index, whatever batch or shard it is in."""
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)
