"""A posterior: retained states, and a way to draw parameters from them.

Everything here is post-processing of released values and costs nothing, as long as the inputs it is
asked about are public or consented to; on private records a prediction that leaves the house is a
release of its own.
"""

import functools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tacit import _artefact, _check, _display, _tree
from tacit.errors import InvalidArgumentError
from tacit.models import Model, model_from_spec
from tacit.rng import seeded_key
from tacit.samplers import Sampler, sampler_from_spec, sampler_spec
from tacit.typing import Array, Key, Params, Tree

if TYPE_CHECKING:
    from rich.panel import Panel

__all__ = ["Posterior", "load_posterior"]


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Retained states of one or more chains.

    Attributes:
      model: what the parameters mean.
      sampler: turns a retained state into parameters.
      kept: retained states; every leaf has shape ``(num_chains, num_kept, ...)``.
      statement: the privacy statement of the run that made it, as JSON-able data.
    """

    model: Model
    sampler: Sampler
    kept: Tree
    statement: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_chains(self) -> int:
        """How many chains."""
        return int(jax.tree.leaves(self.kept)[0].shape[0])

    @property
    def num_kept(self) -> int:
        """How many states each chain retained."""
        return int(jax.tree.leaves(self.kept)[0].shape[1])

    def __repr__(self) -> str:
        size = _tree.size(self.kept) // (self.num_chains * self.num_kept)
        epsilon = self.statement.get("epsilon_text", "unknown")
        return (
            f"Posterior({self.num_chains} chains x {self.num_kept} states,"
            f" {size} parameters each, epsilon {epsilon})"
        )

    def __rich__(self) -> "Panel":
        return _display.panel(self._sheet())

    def _repr_html_(self) -> str:
        return _display.html(self._sheet())

    def _sheet(self) -> _display.Sheet:
        size = _tree.size(self.kept) // (self.num_chains * self.num_kept)
        promise = self.statement
        rows = [
            ("states", f"{self.num_chains} x {self.num_kept} (chains x states)"),
            ("parameters", f"{size:,} in each state"),
            ("drawn by", type(self.sampler).__name__),
            ("epsilon", str(promise.get("epsilon_text", "unknown"))),
        ]
        rows += [
            (name, f"{promise[key]}")
            for name, key in (("delta", "delta"), ("unit", "unit"), ("adjacency", "adjacency"))
            if key in promise
        ]
        warning = _display.warning_of(
            epsilon=promise.get("epsilon"),
            is_secure=promise.get("is_secure", True),
            is_bound=promise.get("is_bound", True),
        )
        return _display.Sheet(
            title="Posterior", rows=rows, warning=warning if promise else "no privacy statement"
        )

    def draws(self, num_draws: int | None = None, *, seed: int = 0) -> Params:
        """Returns parameter trees stacked along a leading axis.

        Args:
          num_draws: how many; by default one for each retained state, and as many from each as
            the sampler wants at least (a Gaussian: 100 in all). Fewer than there are states are
            taken evenly along the chains; more go round again, with fresh keys.
          seed: of the sampler; nothing private hangs on it.
        """
        indices = self.indices(num_draws)
        keys = jax.random.split(seeded_key(seed), len(indices))
        return _compiled_draw(self.sampler)(keys, _tree.take(self.flat(), indices))

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes ``posterior.safetensors`` and ``posterior.json``; no record is in either.

        Warns with `PrivacyWarning` when its statement promises nothing, or its noise was seeded.
        """
        document = {
            "model": None if self.model.spec is None else dict(self.model.spec),
            "sampler": sampler_spec(self.sampler),
            "statement": dict(self.statement),
        }
        arrays = _artefact.flatten(self.kept, prefix="kept")
        _artefact.write(directory, "posterior", arrays, document)
        _artefact.warn_before_publishing(self.statement)

    def flat(self) -> Tree:
        """States of all chains on one axis, chains interleaved so that a prefix has them all."""
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), self.kept)

    def indices(self, num_draws: int | None) -> Array:
        """Which states of `flat` so many draws are made from; None for the default."""
        total = self.num_chains * self.num_kept
        if num_draws is None:
            # Every state counts alike, so each gives the same number of draws.
            num_draws = total * math.ceil(self.sampler.min_draws / total)
        _check.positive_integer(num_draws=num_draws)
        if num_draws < total:
            # The last state is always among them.
            return (jnp.arange(1, num_draws + 1) * total // num_draws) - 1
        return jnp.arange(num_draws) % total


def load_posterior(directory: str | os.PathLike[str], *, model: Model | None = None) -> Posterior:
    """Returns a saved posterior; no training data is needed.

    Args:
      directory: where `Posterior.save` wrote it.
      model: only for models made of plain functions, which a file cannot hold.
    """
    arrays, document = _artefact.read(directory, "posterior")
    if model is None:
        if document["model"] is None:
            raise InvalidArgumentError(
                "model must be given: this posterior's model is made of functions, which are not"
                " saved. Pass the same model to load_posterior(..., model=...)."
            )
        model = model_from_spec(document["model"])
    sampler = sampler_from_spec(document["sampler"])
    kept = _artefact.unflatten(arrays, sampler.template(model), prefix="kept", leading=(None, None))
    return Posterior(model=model, sampler=sampler, kept=kept, statement=document["statement"])


@functools.lru_cache(maxsize=64)
def _compiled_draw(sampler: Sampler) -> Callable[[Key, Tree], Params]:
    return jax.jit(jax.vmap(sampler.draw))
