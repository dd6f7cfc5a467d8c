"""The one way in for records: a clipped, noisy sum that knows its own cost.

The whole privacy argument of tacit is on this page. A release

    sum over drawn records of clip(query(record)) + N(0, (noise_multiplier * clip_norm)**2)

is a Gaussian mechanism on a sampled batch: the sampler draws by a public rule, the clip bounds what
one record can add to ``clip_norm`` (sensitivity), and the noise is scaled to that bound. The
estimate divides by the public sampling rate, never by the realised batch size, so an empty batch
is an ordinary release: noise, counted. What is computed from releases alone is free. Before the
noisy sum leaves it is rounded to a grid a little finer than the noise, because the last bits of
floating-point sums tell more than their values.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
from dp_accounting import DpEvent

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.privacy import clipping
from tacit.privacy.clipping import Clipping, Flat
from tacit.privacy.noise import with_noise
from tacit.privacy.sampling import Sampling
from tacit.tables import ClippedSum, Distributed, Scattered, as_summing, as_table, on_table
from tacit.typing import Array, Key, Params, Query, RecordLoss, Scalar, Tree

__all__ = ["GaussianSum"]

_SMALLEST_CLIP_NORM = 1e-10
"""Coordinates below 1e-19 have no square in float32. Against norms from here on, a million million
of them are less than the margin by which clipping inflates a norm."""


@dataclass(frozen=True, kw_only=True)
class GaussianSum:
    """Estimates a sum over all records privately. Fields are public, arguments are sensitive.

    Guarantee:
      With ``noise_multiplier > 0`` each call is one release with privacy cost ``cost`` (or, when a
      multiplier is passed to the call, ``sampling.cost`` of that one), under the adjacencies that
      the accounting table admits for the sampling. The result depends on the records only through
      that release. With ``noise_multiplier == 0`` nothing is promised and ``cost`` says so. The
      two do not mix: a release without noise takes no multiplier, and one with noise takes only a
      positive one. (A traced multiplier that is not positive makes the result NaN.)

    Args:
      sampling: how the batch is drawn.
      clip_norm: the largest l2 norm that one record contributes; ``inf`` only without noise.
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
        if self.clip_norm < _SMALLEST_CLIP_NORM:
            raise InvalidArgumentError(
                f"clip_norm must be at least {_SMALLEST_CLIP_NORM}; got {self.clip_norm}."
                " Scale the loss up instead."
            )
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
        return self.noise_multiplier * self.clip_norm / self.sampling.rate

    def __call__(
        self,
        key: Key,
        query: Query,
        data: Tree,
        *,
        noise_multiplier: Scalar | float | None = None,
        record_key: Key | None = None,
    ) -> Tree:
        """Returns a private estimate of the sum of ``query(record, key)`` over all records.

        Args:
          key: fresh for every call; noise, batch and per-record keys all come from it.
          query: a function of one record and that record's key.
          data: the records: a tree in which every leaf has one row for each, or a table of
            `tacit.tables`, wherever it is.
          noise_multiplier: replaces the configured one, for schedules; positive, may be traced.
          record_key: replaces the key from which the records' keys come, so that several calls
            can show a record the same dropout mask. The clip bounds a record whatever its mask is,
            so this key may be known and used again. Batch and noise still come from ``key``,
            which must not be derived from it.
        """
        self._require_isolated(lambda _, record, key: query(record, key), None, data, key)

        def clipped_sum(records: Tree, keys: Key, mask: Array) -> Tree:
            return clipping.clipped_sum(
                query,
                records,
                keys,
                mask,
                clipping=self.clipping,
                clip_norm=self.clip_norm,
                chunk_size=self.chunk_size,
            )

        return self._release_on(data, key, clipped_sum, noise_multiplier, record_key)

    def gradient(
        self,
        key: Key,
        loss: RecordLoss,
        params: Params,
        data: Tree,
        *,
        noise_multiplier: Scalar | float | None = None,
        record_key: Key | None = None,
    ) -> Tree:
        """Returns a private estimate of the gradient of the summed ``loss(params, record, key)``.

        Equals calling the release with the gradient as its query; it is a method of its own
        because clipped gradients can be summed without forming them.
        """
        self._require_isolated(loss, params, data, key)

        def clipped_sum(records: Tree, keys: Key, mask: Array) -> Tree:
            return clipping.clipped_gradient_sum(
                loss,
                params,
                records,
                keys,
                mask,
                clipping=self.clipping,
                clip_norm=self.clip_norm,
                chunk_size=self.chunk_size,
            )

        return self._release_on(data, key, clipped_sum, noise_multiplier, record_key)

    def _release_on(
        self,
        data: Tree,
        key: Key,
        clipped_sum: ClippedSum,
        noise_multiplier: Scalar | float | None,
        record_key: Key | None,
    ) -> Tree:
        """Makes one release; where devices share the table, all of them make it together."""

        def release(table: Tree, key: Key, *others: Any) -> Tree:
            return self._release(key, clipped_sum, table, *others)

        return on_table(release, data, key, noise_multiplier, record_key)

    def _release(
        self,
        key: Key,
        clipped_sum: ClippedSum,
        data: Tree,
        noise_multiplier: Scalar | float | None,
        record_key: Key | None,
    ) -> Tree:
        """Draws, clips, sums, adds noise, rounds and divides by the public rate."""
        std = self._std(noise_multiplier)
        batch_key, own_key, noise_key = jax.random.split(key, 3)
        batch = self.sampling.draw(batch_key)
        source = own_key if record_key is None else record_key
        table = as_summing(data)
        total = table.clipped_sum(batch, source, clipped_sum, rate=self.sampling.rate)
        if std is not None:
            total = with_noise(noise_key, total, std=std)
        released = total.gathered() if isinstance(total, Scattered) else total
        return jax.tree.map(lambda value: value / self.sampling.rate, released)

    def _std(self, noise_multiplier: Scalar | float | None) -> Scalar | float | None:
        """The standard deviation of a call's noise on the sum; None where there is none."""
        if not self.is_private:
            if noise_multiplier is not None:
                raise InvalidArgumentError(
                    f"noise_multiplier must be left out here; got {noise_multiplier!r}. The release"
                    " was configured without noise: configure it with noise_multiplier > 0."
                )
            return None
        if noise_multiplier is None:
            return self.noise_multiplier * self.clip_norm
        if isinstance(noise_multiplier, jax.core.Tracer):
            # Nothing can be raised for a traced value; NaN is the one answer that tells nothing.
            std = noise_multiplier * self.clip_norm
            return jnp.where(noise_multiplier > 0, std, jnp.nan)
        multiplier = float(noise_multiplier)
        _check.positive(noise_multiplier=multiplier)
        return multiplier * self.clip_norm

    def _require_isolated(self, loss: RecordLoss, params: Params, data: Tree, key: Key) -> None:
        num_records = self.sampling.num_records
        try:
            found = as_table(data).num_records
        except ValueError as error:
            raise InvalidArgumentError(f"data must have one row for each record: {error}") from None
        if found != num_records:
            raise InvalidArgumentError(
                f"data has {found} records but the sampling was configured with"
                f" num_records={num_records}. The rate, and so the cost, would be wrong."
            )
        record = as_table(data).record
        num_rows = _tree.num_records(data) if isinstance(data, Distributed) else None
        clipping.require_isolated(
            loss, params, record, key, num_records=num_records, num_rows=num_rows
        )
