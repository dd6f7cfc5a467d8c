"""Potential: a program's density in the unconstrained latents, split into prior and likelihood."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.distributions.transforms import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import _unconstrain_reparam, compute_log_probs, constrain_fn

from tacit.models.programs.arguments import Call
from tacit.models.programs.facts import Traced
from tacit.models.programs.rows import RecordRows, in_plate
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["ProgramPrior"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramPrior:
    """The log prior of a program's latents, unconstrained, with the Jacobians of their supports.

    Attributes:
      model: the program.
      build: puts records into a call; holds no record.
      plate: the record plate.
      blank: one made-up record, for programs that take shapes from records.
      modules: what modules with random weights keep beside them; no numbers.
      start: NumPyro's rule for initial values.
    """

    model: Callable[..., Any]
    build: Callable[[Sequence[Array]], Call]
    plate: str
    blank: Sequence[Array]
    modules: Mapping[str, Any]
    start: Callable[..., Any]

    def __call__(self, params: Params) -> Scalar:
        """Returns the log density of the latents; no record is in it."""

        # As an argument the blank record is traced: nobody can stumble over its values.
        @jax.jit
        def on_blank(params: Params, blank: Sequence[Array]) -> Scalar:
            sites, densities = self.run(params, blank, jax.random.key(0))
            return _total(densities, lambda name: not in_plate(sites[name], self.plate))

        return on_blank(params, self.blank)

    def log_likelihood(self, params: Params, rows: Sequence[Array], key: Key) -> Scalar:
        """Returns the log density of one record, whose arrays have one row each."""
        sites, densities = self.run(params, rows, key)
        return _total(densities, lambda name: in_plate(sites[name], self.plate))

    def init(self, key: Key) -> Params:
        """Returns latents to start from, by NumPyro's rule; no record is read."""
        args, kwargs = self.build(self.blank)
        started = substitute(seed(self._on_one(None), key), substitute_fn=self.start)
        with numpyro.validation_enabled(False):
            sites = trace(started).get_trace(*args, **kwargs)
        return {
            name: biject_to(site["fn"].support).inv(site["value"])
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }

    def constrained(self, draws: Params) -> dict[str, Array]:
        """Returns draws of the latents in their own spaces; draws have a leading axis."""
        args, kwargs = self.build(self.blank)
        model = seed(self._on_one(None), jax.random.key(0))
        found: dict[str, Array] = constrain_fn(model, args, kwargs, draws, batch_ndims=1)
        return found

    def run(self, params: Params, rows: Sequence[Array], key: Key) -> Traced:
        """Returns the sites and their densities, Jacobians among them, as NumPyro's potential."""
        args, kwargs = self.build(rows)
        model = seed(self._on_one(key), jax.random.key(0))
        model = substitute(model, substitute_fn=partial(_unconstrain_reparam, params))
        densities, sites = compute_log_probs(model, args, kwargs, {})
        return sites, densities

    def _on_one(self, record_key: Key | None) -> Callable[..., Any]:
        rows = RecordRows(
            self.model,
            plate=self.plate,
            num_rows=1,
            takes_key=False,
            record_key=record_key,
        )
        model: Callable[..., Any] = substitute(rows, data=dict(self.modules))
        return model


def _total(densities: Mapping[str, Scalar], keep: Callable[[str], bool]) -> Scalar:
    return sum((value for name, value in densities.items() if keep(name)), start=jnp.zeros(()))
