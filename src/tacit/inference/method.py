"""What an inference method is: public configuration with a cost, and three pure functions.

A method declares itself (`declare`): its name, a summary, its sources, and how a recipe for a table
becomes the method. Recipes, the command line, the estimators and the bibliography of a report read
what is declared, so that a method is reachable as soon as its module is imported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from dp_accounting import DpEvent

from tacit import _check
from tacit._registry import Registry
from tacit.errors import InvalidArgumentError
from tacit.inference.evidence import Evidence, noted
from tacit.models import Model
from tacit.privacy.cost import repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.samplers import Sampler
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = [
    "Around",
    "Declaration",
    "Kernel",
    "Method",
    "Objective",
    "OneRelease",
    "TableSettings",
    "add_regulariser",
    "declarations",
    "declare",
    "describe_table_methods",
    "noted_gradient",
    "objective_of",
    "potential_gradient",
    "retained_params",
    "table_method",
    "table_methods",
]

State: TypeAlias = Any
Info: TypeAlias = Any
_Shared: TypeAlias = Any


class Kernel(NamedTuple):
    """The running part of a method.

    Attributes:
      init: makes the first state from a key; no data.
      step: one update; all it learns of the records comes through the engine.
      retain: the part of a state that a posterior keeps.
      sampler: turns what was kept into parameters.
      num_members: the length of the leading axis of what `retain` returns, where a state holds
        several members; in the posterior they are chains of their own. None where it holds one.
      evidence: what a state has noted of its releases; None where it notes nothing.
      engine: which made these releases.
      own_noise: how the posterior counts the privacy noise by itself; None where it does not.
    """

    init: Callable[[Key], State]
    step: Callable[[Key, State, Tree], tuple[State, Info]]
    retain: Callable[[State], Tree]
    sampler: Sampler
    num_members: int | None = None
    evidence: Callable[[State], Evidence | None] | None = None
    engine: GaussianSum | None = None
    own_noise: str | None = None


class Method(Protocol):
    """Public configuration of an inference method."""

    @property
    def num_records(self) -> int:
        """How many records the method was configured for."""
        ...

    @property
    def public_records(self) -> int:
        """The number of records that may be shown and computed with."""
        ...

    def cost(self, num_steps: int, *, start: int = 0) -> DpEvent:
        """The cost of steps ``start`` to ``start + num_steps``, exactly what they release."""
        ...

    def build(self, model: Model) -> Kernel:
        """Returns the three pure functions for a model."""
        ...

    def scale_noise(self, factor: float) -> Self:
        """Returns the method with all noise multipliers scaled; calibration searches over this."""
        ...


_Kind = TypeVar("_Kind", bound=type)


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What a recipe for a table says to a method; all of it public.

    Attributes:
      release: sampling and clip; the noise is calibrated afterwards, and is none without privacy.
      learning_rate: on the gradient of the mean loss.
      num_steps: updates.
    """

    release: GaussianSum
    learning_rate: float
    num_steps: int


@runtime_checkable
class _ForTables(Protocol):
    def for_table(self, settings: TableSettings) -> Method: ...


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a method says of itself.

    A method serves every network in Python, through `Plan`. It serves tables, by name, where it
    has a class method ``for_table``, which makes it from `TableSettings`.

    Attributes:
      method: its class.
      name: in recipes, study files and on the command line.
      summary: what it gives, in a few words, for help texts.
      citations: its sources: keys of ``report/page/references.bib``, or whole BibTeX entries.
      relative_rate: the learning rate beside that of SGLD, where a recipe leaves it open.
      is_chain: whether all iterates are draws. A recipe then discards the first half of a run and
        retains states spread over the rest; otherwise it retains the last state only.
    """

    method: type
    name: str
    summary: str
    citations: tuple[str, ...] = ()
    relative_rate: float = 1.0
    is_chain: bool = False

    def __post_init__(self) -> None:
        _check.readable_text(name=self.name, summary=self.summary)
        _check.positive(relative_rate=self.relative_rate)

    @property
    def serves_tables(self) -> bool:
        """Whether a recipe can name it."""
        return isinstance(self.method, _ForTables)

    def for_table(self, settings: TableSettings) -> Method:
        """Returns the method for a table."""
        if not isinstance(self.method, _ForTables):
            raise InvalidArgumentError(
                f"method must have for_table to be run on tables by name; got {self.name!r}, which"
                f" has not. Make a tacit.Plan with {self.method.__name__}(...) instead."
            )
        return self.method.for_table(settings)


_DECLARED = Registry[Declaration]("method")


def declare(
    *,
    name: str,
    summary: str,
    citations: tuple[str, ...] = (),
    relative_rate: float = 1.0,
    is_chain: bool = False,
) -> Callable[[_Kind], _Kind]:
    """Declares a method, so that it is reachable by its name; the arguments are `Declaration`'s.

    Raises:
      InvalidArgumentError: if another class has the name.
    """

    def register(method: _Kind) -> _Kind:
        declaration = Declaration(
            method=method,
            name=name,
            summary=summary,
            citations=citations,
            relative_rate=relative_rate,
            is_chain=is_chain,
        )
        _DECLARED.add(name, method, declaration)
        return method

    return register


def declarations() -> Mapping[str, Declaration]:
    """Returns what is declared, by name: all methods whose modules have been imported."""
    return dict(_DECLARED)


def table_methods() -> Mapping[str, Declaration]:
    """Returns the methods that a recipe can name.

    Example:
      >>> table_methods()["sgld"].is_chain
      True
    """
    return {name: found for name, found in _DECLARED.items() if found.serves_tables}


def table_method(name: str) -> Declaration:
    """Returns the declaration of a method that a recipe names, or raises with those it can."""
    found = table_methods().get(name)
    if found is None:
        raise InvalidArgumentError(
            f"method must be one of {', '.join(table_methods())}; got {name!r}. A method of your"
            " own is known once the module that declares it is imported; others are run with a"
            " tacit.Plan."
        )
    return found


def describe_table_methods() -> str:
    """Returns one line on the methods that a recipe can name, for help texts.

    Example:
      >>> describe_table_methods()
      'ivon (a Gaussian, by natural-gradient variational inference), laplace (...), ...'
    """
    return ", ".join(f"{name} ({found.summary})" for name, found in table_methods().items())


@dataclass(frozen=True, kw_only=True)
class OneRelease:
    """What methods share that make one release a step, always with the same noise.

    Args:
      release: the engine: sampling, clip and noise.
    """

    release: GaussianSum

    @property
    def num_records(self) -> int:
        """How many records the method was configured for."""
        return self.release.sampling.num_records

    @property
    def public_records(self) -> int:
        """The number of records that may be shown and computed with."""
        return self.release.sampling.public_records

    def cost(self, num_steps: int, *, start: int = 0) -> DpEvent:
        """One release a step, the same for all steps."""
        del start
        return repeated(self.release.cost, num_steps)

    def scale_noise(self, factor: float) -> Self:
        """Scales the noise; nothing else changes."""
        multiplier = self.release.noise_multiplier * factor
        return replace(self, release=replace(self.release, noise_multiplier=multiplier))


@dataclass(frozen=True, kw_only=True)
class Around:
    """What methods share that run another one and release nothing beside it.

    Args:
      base: the method that is run.
    """

    base: Method

    @property
    def num_records(self) -> int:
        """How many records the base was configured for."""
        return self.base.num_records

    @property
    def public_records(self) -> int:
        """The number of records that may be shown and computed with."""
        return self.base.public_records

    def cost(self, num_steps: int, *, start: int = 0) -> DpEvent:
        """What the same steps of the base cost."""
        return self.base.cost(num_steps, start=start)

    def scale_noise(self, factor: float) -> Self:
        """Scales the noise of the base."""
        return replace(self, base=self.base.scale_noise(factor))


class Objective(NamedTuple):
    """What a gradient method minimises, split by what may see a record.

    Attributes:
      init: the optimised parameters.
      shared: one draw for the whole batch; no data.
      record_loss: the loss of one record; clipped.
      regulariser: prior, divergence, entropy; exact, outside the clip, no data.
    """

    init: Callable[[Key], Params]
    shared: Callable[[Key], _Shared]
    record_loss: Callable[[Params, _Shared, Tree, Key], Scalar]
    regulariser: Callable[[Params, _Shared], Scalar]


def objective_of(model: Model) -> Objective:
    """Returns the negative log posterior of a model as an objective.

    A record's weight multiplies its likelihood inside the clip. Where a record is a person with
    several rows, their log likelihoods add up, and the clip bounds the person.
    """

    def row_loss(params: Params, row: Record, key: Key) -> Scalar:
        return -row.weight * model.log_likelihood(params, row, key)

    def record_loss(params: Params, shared: None, record: Record, key: Key) -> Scalar:
        del shared
        if record.mask is None:
            return row_loss(params, record, key)
        rows = _padded_with_a_real_row(record, record.mask)
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(len(record.mask)))
        losses = jax.vmap(row_loss, in_axes=(None, 0, 0))(params, rows, keys)
        return jnp.sum(jnp.where(record.mask, losses, 0.0))

    def regulariser(params: Params, shared: None) -> Scalar:
        del shared
        return -model.log_prior(params)

    return Objective(model.init, lambda key: None, record_loss, regulariser)


def _padded_with_a_real_row(record: Record, mask: Array) -> Record:
    """Returns a person's rows with padding replaced by a row that is really theirs.

    A selection of losses afterwards is not enough: where a model has no derivative at the padding,
    as a norm has none at zero, it would turn the gradient of the whole person into NaN.
    """
    first = jnp.argmax(mask)

    def replaced(leaf: Array) -> Array:
        return jnp.where(mask.reshape(-1, *(1 for _ in leaf.shape[1:])), leaf, leaf[first])

    return jax.tree.map(replaced, record._replace(mask=None))


def potential_gradient(
    key: Key, release: GaussianSum, objective: Objective, params: Params, records: Record
) -> Tree:
    """Returns one release's estimate of the gradient of the full-data objective.

    The sum over records is clipped and noisy; the regulariser is added exactly, once.
    """
    return noted_gradient(key, release, objective, params, records, evidence=None)[0]


def noted_gradient(
    key: Key,
    release: GaussianSum,
    objective: Objective,
    params: Params,
    records: Record,
    *,
    evidence: Evidence | None,
    noise_multiplier: Scalar | float | None = None,
    clip_norm: Scalar | float | None = None,
) -> tuple[Tree, Evidence | None]:
    """Returns the same, and the evidence with this release.

    Args:
      key: of the step.
      release: the engine.
      objective: whose gradient.
      params: where.
      records: the table.
      evidence: what was noted so far; None stays None.
      noise_multiplier: replaces the configured one.
      clip_norm: likewise.
    """
    shared_key, release_key = jax.random.split(key)
    shared = objective.shared(shared_key)

    def loss(params: Params, record: Record, key: Key) -> Scalar:
        return objective.record_loss(params, shared, record, key)

    overrides: dict[str, Any] = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm}
    found = release.counted_gradient(release_key, loss, params, records, **overrides)
    variance = release.noise_variance(**overrides)
    evidence = noted(evidence, params, found.estimate, variance, found)
    return add_regulariser(found.estimate, objective, params, shared), evidence


def retained_params(state: State) -> Params:
    """Returns a state's parameters, for methods whose states are draws or points."""
    return state.params


def add_regulariser(estimate: Tree, objective: Objective, params: Params, shared: _Shared) -> Tree:
    """Adds the exact gradient of the data-independent part."""
    return jax.tree.map(jnp.add, estimate, jax.grad(objective.regulariser)(params, shared))
