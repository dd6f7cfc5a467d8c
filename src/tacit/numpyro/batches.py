"""Batches that somebody else has drawn: what the engine must know of them, and what they cost."""

from dataclasses import dataclass

import dp_accounting
import jax.numpy as jnp
from dp_accounting import DpEvent

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.sampling import Batch, Sampling
from tacit.typing import Array, Key

__all__ = ["GivenBatch", "UnstatedBatch"]


@dataclass(frozen=True, kw_only=True)
class UnstatedBatch:
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

    num_records: int
    batch_size: float

    def __post_init__(self) -> None:
        _check.positive_integer(num_records=self.num_records)
        _check.positive(batch_size=self.batch_size)
        if self.batch_size > self.num_records:
            raise InvalidArgumentError(
                f"batch_size must be at most num_records={self.num_records}; got {self.batch_size}."
            )

    @property
    def public_records(self) -> int:
        """The number of records."""
        return self.num_records

    @property
    def rate(self) -> float:
        """The share of records in a batch."""
        return self.batch_size / self.num_records

    @property
    def inclusion_rate(self) -> float:
        """The same: the public denominator of estimates."""
        return self.rate

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
        _check.positive(noise_multiplier=noise_multiplier)
        return dp_accounting.GaussianDpEvent(float(noise_multiplier))


@dataclass(frozen=True, kw_only=True)
class GivenBatch:
    """One batch that was drawn elsewhere, as the engine sees it.

    The rows that the engine is shown are the batch itself, all of them; which of them are padding
    says the mask. Rate and cost are those of the sampling that is stated for it, and are as true
    as that statement is.

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
