"""Running: a model and its guide on a few records, as NumPyro's evidence lower bound runs them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.handlers import replay, seed
from numpyro.infer.util import compute_log_probs

from tacit.models.programs.arguments import Call
from tacit.models.programs.facts import SiteTrace
from tacit.models.programs.rows import RecordRows, in_plate
from tacit.typing import Array, Key, Scalar

__all__ = ["Program", "Run"]


class Run(NamedTuple):
    """One run of guide and model.

    Attributes:
      guide: the guide's sites.
      model: the model's sites.
      log_guide: the log density at each of the guide's sites.
      log_model: the log density at each of the model's sites.
    """

    guide: SiteTrace
    model: SiteTrace
    log_guide: Mapping[str, Scalar]
    log_model: Mapping[str, Scalar]

    def difference(self, keep: Callable[[Any], bool]) -> Scalar:
        """Log model less log guide, over the sites to keep."""
        total = jnp.zeros(())
        for name, value in self.log_model.items():
            if keep(self.model[name]):
                total = total + value
        for name, value in self.log_guide.items():
            if keep(self.guide[name]):
                total = total - value
        return total


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A model and a guide that are called alike, and the plate in which their records are.

    Attributes:
      model: the model.
      guide: the guide.
      build: puts records into a call; holds no record.
      plate: the name of the record plate.
      size: the size that the model declares for it when it is called with all records.
      model_takes_key: whether the model's plate draws indices then.
      guide_takes_key: whether the guide's plate does.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    build: Callable[[Sequence[Array]], Call]
    plate: str
    size: int
    model_takes_key: bool
    guide_takes_key: bool

    def with_rows(
        self, num_rows: int, record_key: Key | None
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Returns guide and model for so many records."""
        keys = (None, None) if record_key is None else tuple(jax.random.split(record_key))
        guide, model = (
            RecordRows(fn, plate=self.plate, num_rows=num_rows, takes_key=takes_key, record_key=key)
            for fn, takes_key, key in (
                (self.guide, self.guide_takes_key, keys[0]),
                (self.model, self.model_takes_key, keys[1]),
            )
        )
        return guide, model

    def run(
        self,
        params: Mapping[str, Any],
        key: Key,
        records: Sequence[Array],
        record_key: Key | None = None,
    ) -> Run:
        """Draws latents from the guide and evaluates both densities, for one particle.

        Args:
          params: the constrained parameters, and values of latents that are not to be drawn.
          key: of this particle.
          records: arrays of equal numbers of rows.
          record_key: where draws inside the record plate come from.
        """
        args, kwargs = self.build(records)
        guide, model = self.with_rows(records[0].shape[0], record_key)
        # The stack of NumPyro's Trace_ELBO, so that the same key gives the same latents.
        model_seed, guide_seed = jax.random.split(key)
        log_guide, guide_sites = compute_log_probs(
            seed(guide, guide_seed), args, kwargs, dict(params)
        )
        log_model, model_sites = compute_log_probs(
            replay(seed(model, model_seed), guide_sites), args, kwargs, dict(params)
        )
        return Run(guide_sites, model_sites, log_guide, log_model)

    def is_of_records(self, site: Any) -> bool:
        """Whether a site is inside the record plate."""
        return in_plate(site, self.plate)
