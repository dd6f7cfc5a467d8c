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
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tacit import _artefact, _check, _display, _tree
from tacit.errors import InvalidArgumentError, TacitError
from tacit.intervals import CredibleInterval, IntervalFacts, equal_tailed
from tacit.metrics.uncertainty import (
    ClassificationUncertainty,
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
from tacit.rng import seeded_key
from tacit.samplers import Sampler, sampler_from_spec, sampler_spec
from tacit.typing import Array, Input, Key, Params, Tree

__all__ = ["Posterior", "Predictions", "load_posterior", "predict"]

if TYPE_CHECKING:
    from rich.panel import Panel


_NUM_PREDICTED = 250
"""Corrected draws hardly depend on each other: so many predict as well as all, and faster."""

_NUM_FOR_QUANTILES, _MOST_NUMBERS = 1000, 10**8


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Retained states of one or more chains, or draws that were corrected for privacy noise.

    Attributes:
      model: what the parameters mean.
      sampler: turns a retained state into parameters.
      kept: retained states; every leaf has shape ``(num_chains, num_kept, ...)``.
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

    def __repr__(self) -> str:
        size = _tree.size(self.kept) // (self.num_chains * self.num_kept)
        epsilon = self.statement.get("epsilon_text", "unknown")
        text = f"{self.num_chains} chains x {self.num_kept} states"
        if self.raw is not None:
            text = f"{self.num_chains * self.num_kept} draws corrected for privacy noise"
        text += f", {size} parameters each, epsilon {epsilon}"
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
        return _compiled_draw(self.sampler)(keys, _tree.take(self.flat(), indices))

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
        interval = equal_tailed(self._own_spaces(self.draws(num_draws, seed=seed)), level=level)
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

        Warns with `PrivacyWarning` when its statement promises nothing, or its noise was seeded.
        """
        document = {
            "model": None if self.model.spec is None else dict(self.model.spec),
            "sampler": sampler_spec(self.sampler),
            "statement": dict(self.statement),
            "intervals": self.intervals.to_json(),
        }
        arrays = _artefact.flatten(self.kept, prefix="kept") | self.intervals.arrays()
        if self.raw is not None:
            arrays |= _artefact.flatten(self.raw.kept, prefix="raw")
            document["raw"] = {
                "sampler": sampler_spec(self.raw.sampler),
                "intervals": self.raw.intervals.to_json(),
            }
        _artefact.write(directory, "posterior", arrays, document)
        _artefact.warn_before_publishing(self.statement)

    def flat(self) -> Tree:
        """States of all chains on one axis, chains interleaved so that a prefix has them all."""
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), self.kept)

    def indices(self, num_draws: int | None) -> Array:
        """Which states of `flat` so many predictions are made from; None for the default."""
        return self._indices(num_draws, most=None if self.raw is None else _NUM_PREDICTED)

    def _indices(self, num_draws: int | None, *, most: int | None) -> Array:
        total = self.num_chains * self.num_kept
        if num_draws is None:
            # Every state counts alike, so each gives the same number of draws.
            num_draws = total * math.ceil(self.sampler.min_draws / total)
            num_draws = num_draws if most is None else min(num_draws, most)
        _check.positive_integer(num_draws=num_draws)
        if num_draws < total:
            # The last state is always among them.
            return (jnp.arange(1, num_draws + 1) * total // num_draws) - 1
        return jnp.arange(num_draws) % total

    def _own_spaces(self, draws: Params) -> Tree:
        """Draws of a program's latents in their own spaces; those of other models as they are."""
        is_program = isinstance(self.model.log_prior, ProgramPrior)
        return constrained(self.model, draws) if is_program else draws


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
        template = sampler.template(own)
        return Posterior(
            model=own,
            sampler=sampler,
            kept=_artefact.unflatten(arrays, template, prefix=prefix, leading=(None, None)),
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

_INPUTS, _DRAWS = "inputs", "draws"


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

    Memory is bounded by ``batch_size`` inputs times one draw, however many draws and inputs there
    are. For classification the predictive is the mean of the draws' class probabilities.

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
    _check.positive_integer(batch_size=batch_size)
    shape = {} if mesh is None else dict(mesh.shape)
    if not set(shape) <= {_INPUTS, _DRAWS}:
        raise InvalidArgumentError(
            f'mesh must have axes "{_INPUTS}" or "{_DRAWS}" or both; got {tuple(shape)}.'
        )
    x = jax.tree.map(jnp.asarray, x)
    num_inputs = _tree.num_records(x)
    if num_inputs == 0:
        raise InvalidArgumentError("x must have at least one row; got none.")
    batch_size = _rounded_up(min(batch_size, num_inputs), shape.get(_INPUTS, 1))
    states = posterior.indices(num_draws)
    # Filled up, so that all devices have as many; what is beyond the last draw does not count.
    numbers = jnp.arange(_rounded_up(len(states), shape.get(_DRAWS, 1)))
    kept = _tree.take(posterior.flat(), states[numbers % len(states)])
    draws = (numbers, numbers < len(states), kept)
    run = _compiled_predict(posterior.model.predict, posterior.sampler, mesh)
    parts = []
    for start in range(0, num_inputs, batch_size):
        # The last batch reaches back, so that all have one shape and compile once.
        first = max(0, min(start, num_inputs - batch_size))
        rows = jnp.arange(first, first + batch_size) % num_inputs
        predictions = run(seeded_key(seed), draws, _tree.take(x, rows), rows)
        stop = min(first + batch_size, num_inputs) - first
        parts.append(
            jax.tree.map(lambda leaf, own=slice(start - first, stop): leaf[own], predictions)
        )
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


@functools.lru_cache(maxsize=64)
def _compiled_predict(
    predict_one: Callable[[Params, Input, Key], Array | Moments],
    sampler: Sampler,
    mesh: Mesh | None,
) -> Callable[[Key, Any, Input, Array], Predictions]:
    def moments_of(key: Key, draws: tuple[Array, Array, Tree], x: Input, index: Array) -> Any:
        def one_draw(number: Array, state: Tree) -> Any:
            draw_key, input_key = jax.random.split(jax.random.fold_in(key, number))
            params = sampler.draw(draw_key, state)
            keys = jax.vmap(lambda i: jax.random.fold_in(input_key, i))(index)
            output = jax.vmap(predict_one, in_axes=(None, 0, 0))(params, x, keys)
            if isinstance(output, Moments):
                return regression_moments(output.mean[None], output.variance[None])
            return classification_moments(output[None])

        def add(seen: Any, draw: tuple[Array, Array, Tree]) -> tuple[Any, None]:
            number, counts, state = draw
            both = merge_moments(seen, one_draw(number, state))
            return jax.tree.map(lambda new, old: jnp.where(counts, new, old), both, seen), None

        number, _, state = jax.tree.map(lambda leaf: leaf[0], draws)
        zero = _zeros(jax.eval_shape(one_draw, number, state))
        return lax.scan(add, zero, draws)[0]

    def merged(moments: Any) -> Any:
        """Merges what the devices have that share the draws."""
        all_of_them = lax.all_gather(moments, _DRAWS)
        return lax.scan(lambda a, b: (merge_moments(a, b), None), _zeros(moments), all_of_them)[0]

    def run(key: Key, draws: Any, x: Input, index: Array) -> Predictions:
        moments = moments_of(key, draws, x, index)
        if mesh is not None and _DRAWS in mesh.shape:
            moments = merged(moments)
        is_classification = moments.noise.ndim < moments.mean.ndim
        return (decompose_classification if is_classification else decompose_regression)(moments)

    if mesh is None:
        return jax.jit(run)
    mesh = Mesh(mesh.devices, mesh.axis_names)  # without axes whose cuts have to be spelt out
    inputs, of_draws = (P(axis) if axis in mesh.shape else P() for axis in (_INPUTS, _DRAWS))
    specs = (P(), of_draws, inputs, inputs)
    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=inputs, check_vma=False))


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
