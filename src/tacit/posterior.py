"""A posterior: retained states, a way to draw parameters from them, and what they predict.

Everything here is post-processing of released values and has no privacy cost, as long as the inputs
are public or their owners have consented. Publishing a prediction for a private record is a release
of its own.
"""

import functools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from tacit import _artefact, _check, _display, _tree
from tacit.errors import InvalidArgumentError, TacitError
from tacit.intervals import CredibleInterval, IntervalFacts, equal_tailed
from tacit.metrics.uncertainty import (
    ClassificationUncertainty,
    DrawMoments,
    RegressionUncertainty,
    classification_moments,
    decompose_classification,
    decompose_regression,
    merge_moments,
    regression_moments,
)
from tacit.models import Model
from tacit.models.base import Moments
from tacit.models.bayesian import model_from_spec
from tacit.models.programs.model import ProgramPrior, constrained
from tacit.over_draws import Chosen, OfDraw, over_draws, states_at
from tacit.rng import seeded_key
from tacit.rounding import RoundingLoss
from tacit.samplers import Points, Sampler, sampler_from_spec, sampler_spec
from tacit.state_file import StateFile, state_file_of
from tacit.typing import Array, Input, Key, Params, Tree

__all__ = ["Posterior", "Predictions", "load_posterior", "predict"]

if TYPE_CHECKING:
    from rich.panel import Panel


_NUM_PREDICTED = 250
"""Corrected draws hardly depend on each other: so many predict as well as all, and faster."""

_NUM_FOR_QUANTILES, _MOST_NUMBERS = 1000, 10**8


_Saved: TypeAlias = tuple[dict[str, NDArray[Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Retained states of one or more chains, or draws that were corrected for privacy noise.

    Attributes:
      model: what the parameters mean.
      sampler: turns a retained state into parameters.
      kept: retained states; every leaf has shape ``(num_chains, num_kept, ...)``. Where they are on
        disk, a leaf reads what it is indexed with, and all of it as ``np.asarray(leaf)``.
      statement: the privacy statement of the run that made it, as JSON-able data.
      intervals: what the widths of its intervals are made of, and why they may not hold.
      raw: where it was corrected, the posterior as the method made it.
    """

    model: Model
    sampler: Sampler
    kept: Tree
    statement: Mapping[str, Any] = field(default_factory=dict)
    intervals: IntervalFacts = IntervalFacts()  # noqa: RUF009 (frozen)
    raw: "Posterior | None" = None

    @property
    def num_chains(self) -> int:
        """How many chains."""
        return int(jax.tree.leaves(self.kept)[0].shape[0])

    @property
    def num_kept(self) -> int:
        """How many states each chain retained."""
        return int(jax.tree.leaves(self.kept)[0].shape[1])

    @property
    def chains(self) -> Tree:
        """The states that the method's own chains retained, which is what diagnostics look at.

        Corrected draws are drawn anew, and say nothing about convergence.
        """
        return self.kept if self.raw is None else self.raw.kept

    @property
    def rounding(self) -> RoundingLoss | None:
        """What half precision changed, as it was measured; None for states as they were made."""
        file = state_file_of(self.chains)
        return None if file is None or file.rounding is None else file.rounding.loss

    def __repr__(self) -> str:
        size = _tree.size(self.kept) // (self.num_chains * self.num_kept)
        epsilon = self.statement.get("epsilon_text", "unknown")
        text = f"{self.num_chains} chains x {self.num_kept} states"
        if self.raw is not None:
            text = f"{self.num_chains * self.num_kept} draws corrected for privacy noise"
        text += f", {size} parameters each, epsilon {epsilon}"
        if self.rounding is not None:
            text += ", in half precision"
        if self.intervals.caveats:
            text += ", intervals with caveats"
        return f"Posterior({text})"

    def __rich__(self) -> "Panel":
        return _display.panel(self._sheet())

    def _repr_html_(self) -> str:
        return _display.html(self._sheet())

    def _sheet(self) -> _display.Sheet:
        size = _tree.size(self.kept) // (self.num_chains * self.num_kept)
        promise = self.statement
        made = self if self.raw is None else self.raw
        rows = [
            ("states", f"{made.num_chains} x {made.num_kept} (chains x states)"),
            ("parameters", f"{size:,} in each state"),
            ("drawn by", type(made.sampler).__name__),
            ("epsilon", str(promise.get("epsilon_text", "unknown"))),
        ]
        rows += [
            (name, f"{promise[key]}")
            for name, key in (("delta", "delta"), ("unit", "unit"), ("adjacency", "adjacency"))
            if key in promise
        ]
        if self.raw is not None:
            rows.insert(
                1, ("draws", f"{self.num_chains * self.num_kept:,}, corrected for privacy noise")
            )
        if self.rounding is not None:
            rows.append(("kept", self.rounding.text))
        rows += self.intervals.rows
        warning = _display.warning_of(
            epsilon=promise.get("epsilon"),
            is_secure=promise.get("is_secure", True),
            is_bound=promise.get("is_bound", True),
        )
        return _display.Sheet(
            title="Posterior",
            rows=rows,
            warning=warning if promise else "no privacy statement",
            table=self.intervals.table,
        )

    def draws(self, num_draws: int | None = None, *, seed: int = 0) -> Params:
        """Returns parameter trees stacked along a leading axis.

        Args:
          num_draws: how many; by default one for each retained state, and as many from each as
            the sampler wants at least (a Gaussian: 100 in all). Fewer than there are states are
            taken evenly along the chains; more go round again, with fresh keys.
          seed: of the sampler; nothing private hangs on it.
        """
        indices = self._indices(num_draws, most=None)
        keys = jax.random.split(seeded_key(seed), len(indices))
        return _compiled_draw(self.sampler)(keys, states_at(self.kept, indices))

    def credible(
        self, level: float = 0.9, *, num_draws: int | None = None, seed: int = 0
    ) -> CredibleInterval:
        """Returns equal-tailed intervals that hold each parameter with posterior probability.

        The latents of a program (`from_program`) are in their own spaces. Warns with
        `IntervalWarning` for every reason not to trust the intervals.

        Args:
          level: the posterior probability of each interval.
          num_draws: from how many draws; by default one for each retained state, and 1000 where
            states are Gaussians that fit into memory so often.
          seed: as in `draws`.
        """
        _check.fraction(one=False, level=level)
        if num_draws is None and self.sampler.min_draws > 1:
            size = _tree.size(jax.eval_shape(self.model.init, seeded_key(0)))
            num_draws = _NUM_FOR_QUANTILES if size * _NUM_FOR_QUANTILES <= _MOST_NUMBERS else None
        if num_draws is None and isinstance(self.sampler, Points) and not self._is_program:
            interval = equal_tailed(self.kept, level=level, num_axes=2)
        else:
            draws = self._own_spaces(self.draws(num_draws, seed=seed))
            interval = equal_tailed(draws, level=level)
        self.intervals.warn()
        return interval

    def to_arviz(self, *, num_draws: int | None = None, seed: int = 0) -> Any:
        """Returns draws of the parameters as ArviZ's ``InferenceData``.

        They are corrected where the posterior is; ``raw`` exports the chains as they were made.

        Guarantee:
          Its one group, ``posterior``, is made of released values; no group holds a record.

        Args:
          num_draws: makes one chain of so many draws, as Gaussians do; by default all chains.
          seed: as in `draws`.
        """
        try:
            import arviz  # noqa: PLC0415, an extra
        except ImportError:
            raise TacitError(
                "to_arviz needs ArviZ, which is not installed: pip install tacit[arviz]."
            ) from None
        is_by_chain = num_draws is None and self.sampler.min_draws == 1
        num_chains = self.num_chains if is_by_chain else 1
        draws = self._own_spaces(self.draws(num_draws, seed=seed))
        paths = jax.tree_util.tree_leaves_with_path(_tree.at_least_float32(draws))
        return arviz.from_dict(
            posterior={
                # From one axis of draws, on which chains take turns.
                jax.tree_util.keystr(path, simple=True, separator=".") or "params": np.asarray(
                    leaf.reshape(-1, num_chains, *leaf.shape[1:]).swapaxes(0, 1)
                )
                for path, leaf in paths
            },
            attrs={
                "epsilon": str(self.statement.get("epsilon_text", "unknown")),
                "intervals": "; ".join(text for _, text in self.intervals.rows),
            },
        )

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes ``posterior.safetensors`` and ``posterior.json``; no record is in either.

        States that are in half precision on disk are copied as ``retained.states``, unless they are
        in the folder already.

        Warns with `PrivacyWarning` when its statement promises nothing, or its noise was seeded.
        """
        arrays, document = self._saved(directory, prefix="kept")
        arrays |= self.intervals.arrays()
        document |= {
            "model": None if self.model.spec is None else dict(self.model.spec),
            "statement": dict(self.statement),
        }
        if self.raw is not None:
            others, document["raw"] = self.raw._saved(directory, prefix="raw")
            arrays |= others
        _artefact.write(directory, "posterior", arrays, document)
        _artefact.warn_before_publishing(self.statement)

    def chosen(self, num_draws: int | None) -> Chosen:
        """The states that so many predictions are made from, chains in turn; None for the default.

        A prefix of them has states of all chains.
        """
        most = None if self.raw is None else _NUM_PREDICTED
        return Chosen(self.kept, self.sampler, self._indices(num_draws, most=most))

    def _indices(self, num_draws: int | None, *, most: int | None) -> NDArray[np.int64]:
        total = self.num_chains * self.num_kept
        if num_draws is None:
            # Every state counts alike, so each gives the same number of draws.
            num_draws = total * math.ceil(self.sampler.min_draws / total)
            num_draws = num_draws if most is None else min(num_draws, most)
        _check.positive_integer(num_draws=num_draws)
        if num_draws < total:
            # The last state is always among them.
            return (np.arange(1, num_draws + 1) * total // num_draws) - 1
        return np.arange(num_draws) % total

    @property
    def _is_program(self) -> bool:
        return isinstance(self.model.log_prior, ProgramPrior)

    def _own_spaces(self, draws: Params) -> Tree:
        """Draws of a program's latents in their own spaces; those of other models as they are."""
        return constrained(self.model, draws) if self._is_program else draws

    def _saved(self, directory: str | os.PathLike[str], *, prefix: str) -> _Saved:
        """Returns arrays and a description of the states, and copies the file they are in."""
        document = {
            "sampler": sampler_spec(self.sampler),
            "intervals": self.intervals.to_json(),
        }
        file = state_file_of(self.kept)
        if file is None:
            return _artefact.flatten(self.kept, prefix=prefix), document
        file.save(directory)
        return file.arrays(), document | {"on_disk": file.to_json()}


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
    own, shapes = model, jax.eval_shape(model.init, seeded_key(0))

    def part(description: Mapping[str, Any], prefix: str, raw: Posterior | None) -> Posterior:
        sampler = sampler_from_spec(description["sampler"])
        template, stored = sampler.template(own), description.get("on_disk")
        if stored is None:
            kept = _artefact.unflatten(arrays, template, prefix=prefix, leading=(None, None))
        else:
            kept = StateFile.open(directory, stored, template, arrays).states
        return Posterior(
            model=own,
            sampler=sampler,
            kept=kept,
            statement=document["statement"],
            intervals=IntervalFacts.from_json(description.get("intervals", {}), arrays, shapes),
            raw=raw,
        )

    raw = document.get("raw")
    return part(document, "kept", None if raw is None else part(raw, "raw", None))


@functools.lru_cache(maxsize=64)
def _compiled_draw(sampler: Sampler) -> Callable[[Key, Tree], Params]:
    return jax.jit(jax.vmap(sampler.draw))


Predictions: TypeAlias = ClassificationUncertainty[Array] | RegressionUncertainty[Array]


def predict(
    posterior: Posterior,
    x: Input,
    *,
    num_draws: int | None = None,
    seed: int = 0,
    batch_size: int = 1024,
    mesh: Mesh | None = None,
) -> Predictions:
    """Returns the posterior predictive of each input, with its uncertainty taken apart.

    Memory is bounded by ``batch_size`` inputs times one draw, and 32 MB of states or one, however
    many draws and inputs there are. For classification the predictive is the mean of the draws'
    class probabilities.

    Args:
      posterior: what to predict with.
      x: inputs; every leaf has one row for each.
      num_draws: by default one for each retained state, 100 in all where the states are
        Gaussians, and 250 where they were corrected for privacy noise; models with dropout want
        more than one a state (100), each with fresh masks.
      seed: of masks and samplers; nothing private hangs on it.
      batch_size: how many inputs are looked at together.
      mesh: devices of this process that share the work: the inputs of a batch along an axis
        "inputs", draws along an axis "draws", such as ``jax.make_mesh((4, 2), ("inputs",
        "draws"))``. By default one device does it all. Results agree up to rounding.
    """
    moments = over_draws(
        _moments_of(posterior.model.predict),
        merge_moments,
        posterior.chosen(num_draws),
        jax.tree.map(jnp.asarray, x),
        seed=seed,
        batch_size=batch_size,
        mesh=mesh,
    )
    is_classification = moments.noise.ndim < moments.mean.ndim
    return _decomposed(decompose_classification if is_classification else decompose_regression)(
        moments
    )


@functools.lru_cache(maxsize=64)
def _moments_of(predict_one: Callable[[Params, Input, Key], Array | Moments]) -> OfDraw:
    def moments_of(params: Params, x: Input, key: Key) -> DrawMoments[Array]:
        output = predict_one(params, x, key)
        if isinstance(output, Moments):
            return regression_moments(output.mean[None], output.variance[None])
        return classification_moments(output[None])

    return moments_of


_decomposed = functools.lru_cache(maxsize=2)(lambda decompose: jax.jit(jax.vmap(decompose)))
