"""Sampling: which records a release looks at, and what that costs.

A batch is drawn as global indices and a mask of one static shape, whatever its realised size, so
that neither the compile cache nor the running time tells how many records were drawn. Drawing
costs O(batch) work however many records there are, and is exact to 64 random bits
(`tacit.privacy.drawing`). Nothing is ever cut from a batch.

Drawn records lie in the slots of the batch by a uniformly random injection. Restricted to the
others it is the same whether one record is drawn or not: nobody moves, so a record changes only the
block of slots that it lies in.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import dp_accounting
import jax
import jax.numpy as jnp
from dp_accounting import DpEvent

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.cost import ConditionedPoissonDpEvent
from tacit.privacy.drawing import distinct_indices, shuffled, size_table
from tacit.tables.base import Batch
from tacit.typing import Array, Key

__all__ = ["FixedBatch", "FullBatch", "PoissonBatch", "Sampling", "StatedBatch", "UnstatedBatch"]

_MAX_RECORDS = 2**31 - 1


class Sampling(Protocol):
    """How a release draws its records. Every field is public, but see `PoissonBatch`."""

    @property
    def num_records(self) -> int:
        """How many records there are; only to draw them, and to check a table."""

    @property
    def public_records(self) -> int:
        """The number of records that may be shown and computed with."""

    @property
    def rate(self) -> float:
        """The sampling rate of the cost: given the others in a batch, a record's chance at most."""

    @property
    def inclusion_rate(self) -> float:
        """The chance that a given record is drawn: the public denominator of estimates.

        A sum over a batch divided by it is an unbiased estimate of the sum over all records.
        """

    @property
    def capacity(self) -> int:
        """The static length of a batch."""

    def draw(self, key: Key) -> Batch:
        """Draws a batch; a pure function of the key, never of any record."""

    def cost(self, noise_multiplier: float) -> DpEvent:
        """What one Gaussian release on such a batch costs."""


def _gaussian(noise_multiplier: float) -> DpEvent:
    _check.positive(noise_multiplier=noise_multiplier)
    return dp_accounting.GaussianDpEvent(float(noise_multiplier))


def _check_num_records(num_records: int) -> None:
    _check.positive_integer(num_records=num_records)
    if num_records > _MAX_RECORDS:
        raise InvalidArgumentError(
            f"num_records must be at most {_MAX_RECORDS}; got {num_records}. Indices are 32-bit."
        )


def _check_batch_size(batch_size: float, num_records: int) -> None:
    if batch_size > num_records:
        raise InvalidArgumentError(
            f"batch_size must be at most num_records={num_records}; got {batch_size}. Use"
            " FullBatch to look at every record."
        )


@dataclass(frozen=True, kw_only=True)
class _OfPublicNumber:
    """What samplings share that draw from a public number of records."""

    num_records: int

    def __post_init__(self) -> None:
        _check_num_records(self.num_records)

    @property
    def public_records(self) -> int:
        """The number of records."""
        return self.num_records


@dataclass(frozen=True, kw_only=True)
class _OfSize(_OfPublicNumber):
    """What samplings share whose batches hold a public share of the records."""

    batch_size: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.positive(batch_size=self.batch_size)
        _check_batch_size(self.batch_size, self.num_records)

    @property
    def rate(self) -> float:
        """The share of records in a batch."""
        return self.batch_size / self.num_records

    @property
    def inclusion_rate(self) -> float:
        """The same: the public denominator of estimates."""
        return self.rate


@dataclass(frozen=True, kw_only=True)
class FullBatch(_OfPublicNumber):
    """Every record, every time: no amplification, exact Gaussian accounting.

    Example:
      >>> FullBatch(num_records=3).draw(jax.random.key(0)).indices
      Array([0, 1, 2], dtype=int32)
    """

    @property
    def rate(self) -> float:
        """One."""
        return 1.0

    @property
    def inclusion_rate(self) -> float:
        """One."""
        return 1.0

    @property
    def capacity(self) -> int:
        """The number of records."""
        return self.num_records

    def draw(self, key: Key) -> Batch:
        """Returns all indices in order; the key is not used."""
        del key
        return Batch(jnp.arange(self.num_records, dtype=jnp.int32), jnp.ones(self.capacity, bool))

    def cost(self, noise_multiplier: float) -> DpEvent:
        """A Gaussian mechanism, not amplified."""
        return _gaussian(noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class PoissonBatch:
    """Each record with one public probability, given that all that are drawn have room.

    The probability, ``rate``, is ``batch_size / num_records``, or ``batch_size / declared_records``
    where the number of records is private, as under add-remove adjacency. The size of a batch is
    drawn from Binomial(number of records, rate) *conditioned on being at most the capacity*, and
    then that many distinct records, uniformly.

    Guarantee:
      A release on such a batch costs at most as much as on a Poisson batch of the same rate and
      without a capacity, step by step, for every capacity and under every adjacency
      (`tacit.privacy.cost.ConditionedPoissonDpEvent` has the proof). No batch is ever cut, and
      its size stays secret. With ``declared_records`` a batch is drawn from that many rows, of
      which only ``num_records`` hold a record: a record that comes or goes is a row that counts or
      is vacant, and rates, capacity and cost are those of the declared number.

    Args:
      num_records: how many records (units of privacy) there are; public, unless
        ``declared_records`` is given.
      batch_size: ``rate`` times the number of records, or of declared ones; public. A batch has
        slightly fewer records on average, as ``inclusion_rate`` says: 1.7 % fewer for 256 of 60 000
        by default.
      max_batch_size: the capacity, which is the static length of a batch; at least ``batch_size``.
        The default is one standard deviation above it. A smaller one saves time, and batches have
        fewer records on average; no choice makes a step cost more than that of a Poisson batch.
      declared_records: a public upper bound on the number of records, declared by their owner
        without looking at them. Add-remove adjacency needs it, and the others refuse it.

    Example:
      >>> sampling = PoissonBatch(num_records=60_000, batch_size=256)
      >>> sampling.rate, sampling.capacity
      (0.004266666666666667, 272)
      >>> f"{60_000 * sampling.inclusion_rate:.1f}"
      '251.6'
      >>> declared = PoissonBatch(num_records=58_123, batch_size=256, declared_records=60_000)
      >>> (declared.rate, declared.capacity) == (sampling.rate, sampling.capacity)
      True
    """

    num_records: int
    batch_size: float
    max_batch_size: int | None = None
    declared_records: int | None = None

    def __post_init__(self) -> None:
        _check_num_records(self.num_records)
        _check.positive(batch_size=self.batch_size)
        if self.declared_records is not None:
            _check_num_records(self.declared_records)
            if self.num_records > self.declared_records:
                raise InvalidArgumentError(
                    f"declared_records must be at least the number of records; got"
                    f" {self.declared_records}, and there are more. Declare an upper bound that"
                    " does not come from the records."
                )
        _check_batch_size(self.batch_size, self.public_records)
        if self.max_batch_size is not None:
            _check.positive_integer(max_batch_size=self.max_batch_size)
            if self.max_batch_size < self.batch_size:
                raise InvalidArgumentError(
                    f"max_batch_size must be at least batch_size={self.batch_size}; got"
                    f" {self.max_batch_size}. Leave it out for the default, or ask for a smaller"
                    " batch_size: batches of the same average size then cost less."
                )

    def __repr__(self) -> str:
        # Statements and errors show it; the true number is not in it where one is declared.
        count = "num_records" if self.declared_records is None else "declared_records"
        return (
            f"PoissonBatch({count}={self.public_records}, batch_size={self.batch_size!r},"
            f" max_batch_size={self.max_batch_size!r})"
        )

    @property
    def public_records(self) -> int:
        """``declared_records`` if it is given, or ``num_records``."""
        return self.num_records if self.declared_records is None else self.declared_records

    @property
    def rate(self) -> float:
        """The sampling probability, before the size is conditioned on the capacity."""
        return self.batch_size / self.public_records

    @property
    def inclusion_rate(self) -> float:
        """The mean size of a batch, given that it is at most the capacity, over that of the table.

        With ``declared_records`` that is the chance of each row, and so of each record, however
        many of the rows hold one.
        """
        return size_table(self.public_records, self.rate, self.capacity).mean / self.public_records

    @property
    def capacity(self) -> int:
        """``max_batch_size``, or one standard deviation above ``batch_size``."""
        num_rows = self.public_records
        if self.max_batch_size is not None:
            return min(self.max_batch_size, num_rows)
        mean, deviation = self.batch_size, math.sqrt(self.batch_size * (1 - self.rate))
        return min(num_rows, max(math.ceil(mean + deviation), math.floor(mean) + 1))

    def draw(self, key: Key) -> Batch:
        """Draws the size, then that many distinct indices, into uniformly random slots."""
        size_key, index_key = jax.random.split(key)
        # One draw for size and slots: a second one would compile the generator once more.
        words = jax.random.bits(size_key, (2, 1 + self.capacity), jnp.uint32)
        size = size_table(self.public_records, self.rate, self.capacity).invert(words[:, 0])
        indices = distinct_indices(index_key, self.capacity, self.public_records)
        slots = shuffled(words[:, 1:])
        indices, mask = indices[slots], slots < size
        if self.num_records == self.public_records:
            return Batch(indices, mask)
        is_held = indices < self.num_records
        return Batch(jnp.where(is_held, indices, 0), mask & is_held)

    def cost(self, noise_multiplier: float) -> DpEvent:
        """A Poisson-sampled Gaussian, conditioned on the capacity."""
        event = _gaussian(noise_multiplier)
        if self.capacity >= self.public_records:
            return dp_accounting.PoissonSampledDpEvent(self.rate, event)
        return ConditionedPoissonDpEvent(self.rate, self.public_records, self.capacity, event)


@dataclass(frozen=True, kw_only=True)
class FixedBatch(_OfSize):
    """Exactly ``batch_size`` distinct records, uniformly at random.

    One record more or less also moves another one in or out, so a fixed-size batch costs much
    more than a Poisson batch of the same expected size; prefer `PoissonBatch`.

    Example:
      >>> FixedBatch(num_records=100, batch_size=10).rate
      0.1
    """

    batch_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.positive_integer(batch_size=self.batch_size)

    @property
    def capacity(self) -> int:
        """The batch size."""
        return self.batch_size

    def draw(self, key: Key) -> Batch:
        """Draws distinct indices in uniform order."""
        indices = distinct_indices(key, self.batch_size, self.num_records)
        return Batch(indices, jnp.ones(self.batch_size, bool))

    def cost(self, noise_multiplier: float) -> DpEvent:
        """A Gaussian on a sample without replacement."""
        return dp_accounting.SampledWithoutReplacementDpEvent(
            self.num_records, self.batch_size, _gaussian(noise_multiplier)
        )


@dataclass(frozen=True, kw_only=True)
class UnstatedBatch(_OfSize):
    """Batches of which nothing is stated but their size: no amplification.

    Guarantee:
      The cost holds for every way of choosing batches that does not look at the values of records,
      even for one that shows some record in every batch, as long as a batch holds a record once.

    Args:
      num_records: how many records there are; public.
      batch_size: how many of them a batch holds on average; public.

    Example:
      >>> UnstatedBatch(num_records=1000, batch_size=100).cost(2.0)
      GaussianDpEvent(noise_multiplier=2.0)
    """

    @property
    def capacity(self) -> int:
        """At most all records."""
        return self.num_records

    def draw(self, key: Key) -> Batch:
        """Raises: nobody but the user can draw these batches."""
        raise InvalidArgumentError(
            "sampling must say how batches are drawn for them to be drawn here; got"
            f" {self!r}. Give a PoissonBatch, FixedBatch or FullBatch."
        )

    def cost(self, noise_multiplier: float) -> DpEvent:
        """A Gaussian mechanism, not amplified."""
        return _gaussian(noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class StatedBatch:
    """One batch that was drawn elsewhere, as stated.

    The rows that the engine is shown are the batch itself; the mask says which of them are padding.
    Rate and cost are those of the sampling that is stated for it, and as true as that statement.

    Args:
      stated: how the batch was drawn, as the user says.
      mask: one value for each row; False where it is padding.
    """

    stated: Sampling
    mask: Array

    @property
    def num_records(self) -> int:
        """How many rows the engine is shown."""
        return int(self.mask.shape[0])

    @property
    def public_records(self) -> int:
        """As stated."""
        return self.stated.public_records

    @property
    def rate(self) -> float:
        """The stated rate of the cost."""
        return self.stated.rate

    @property
    def inclusion_rate(self) -> float:
        """The stated chance that a given record is in the batch."""
        return self.stated.inclusion_rate

    @property
    def capacity(self) -> int:
        """All rows."""
        return self.num_records

    def draw(self, key: Key) -> Batch:
        """Returns all rows in order; the key is not used."""
        del key
        return Batch(jnp.arange(self.num_records, dtype=jnp.int32), self.mask)

    def cost(self, noise_multiplier: float) -> DpEvent:
        """What a release on a batch drawn as stated costs."""
        return self.stated.cost(noise_multiplier)
