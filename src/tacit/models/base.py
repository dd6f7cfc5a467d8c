"""What a model is: four functions, of which only the likelihood sees a record; and its parts.

A part (a network, a prior, a likelihood, a front end, a sampler) is plain configuration. Registered
with `part`, it is saved by its name and its fields. What a file names is looked up among the
registered parts; nothing that a file names is ever imported or run.
"""

import dataclasses
import enum
import typing
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from tacit._registry import Registry
from tacit.errors import InvalidArgumentError
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = [
    "BoundedLikelihood",
    "DrawableLikelihood",
    "DrawablePrior",
    "FrontEnd",
    "IntegrableLikelihood",
    "IntegrableLogPrior",
    "IntegrablePrior",
    "Likelihood",
    "LogitLikelihood",
    "Model",
    "Moments",
    "Network",
    "Prediction",
    "Prior",
    "Simulator",
    "from_spec",
    "is_part",
    "part",
    "part_names",
    "spec_of",
]


class Moments(NamedTuple):
    """What one draw of the parameters says about a real target.

    Attributes:
      mean: the expected target.
      variance: the aleatoric variance, i.e. of the target when the parameters are known.
    """

    mean: Array
    variance: Array


Prediction: TypeAlias = Array | Moments
"""Class probabilities of shape ``(num_classes,)``, or the moments of a real target."""


class Simulator(NamedTuple):
    """How to draw what a model describes; two pure functions that see no record.

    Attributes:
      params: ``params(key)`` draws parameters from the prior.
      target: ``target(params, x, key)`` draws the target of ONE input.
    """

    params: Callable[[Key], Params]
    target: Callable[[Params, Input, Key], Array]


class Model(NamedTuple):
    """Four pure functions; any of them may be mapped, differentiated and compiled.

    Attributes:
      init: ``init(key)`` draws a starting point that depends on nothing but the key.
      log_prior: ``log_prior(params)`` is the log density of the parameters. It receives no
        data, so it needs no clip and no noise. Where it is an `IntegrableLogPrior`, variational
        methods take its expectation in closed form, otherwise by Monte Carlo.
      log_likelihood: ``log_likelihood(params, record, key)`` is the log density of ONE target
        given its input. The record's own key serves dropout. The record's ``weight`` and
        ``mask`` are ignored here: inference applies them.
      predict: ``predict(params, x, key)`` for ONE input, what these parameters say of its target.
      spec: a JSON-able description from which ``model_from_spec`` rebuilds the model; None
        when the model is made of functions that a description cannot hold.
      simulator: draws parameters and targets, for rehearsals; None where nobody said how.
    """

    init: Callable[[Key], Params]
    log_prior: Callable[[Params], Scalar]
    log_likelihood: Callable[[Params, Record, Key], Scalar]
    predict: Callable[[Params, Input, Key], Prediction]
    spec: Mapping[str, Any] | None = None
    simulator: Simulator | None = None


class Network(Protocol):
    """A function of one input with parameters."""

    @property
    def num_outputs(self) -> int | None:
        """The length of the output; None when it is known only once the network is traced."""

    def init(self, key: Key) -> Params:
        """Draws initial parameters."""

    def apply(self, params: Params, x: Input, key: Key) -> Array:
        """Maps one input to an array of shape ``(num_outputs,)``; the key serves dropout."""


class Prior(Protocol):
    """A density over a network's parameters."""

    def log_prob(self, params: Params) -> Scalar:
        """Returns the normalised log density, summed over all leaves."""


class Likelihood(Protocol):
    """How a network's outputs become a distribution of the target."""

    @property
    def num_outputs(self) -> int:
        """How many network outputs the distribution needs."""

    def init(self) -> dict[str, Array]:
        """Returns the likelihood's own parameters; most have none."""

    def log_prior(self, params: Mapping[str, Any]) -> Scalar:
        """Returns the log density of the likelihood's own parameters, found by name."""

    def log_prob(self, params: Mapping[str, Any], outputs: Array, y: Array) -> Scalar:
        """Returns the normalised log density of one target."""

    def predict(self, params: Mapping[str, Any], outputs: Array) -> Prediction:
        """Returns class probabilities or moments for one input."""


@runtime_checkable
class IntegrableLogPrior(Protocol):
    """A ``Model.log_prior`` that knows its expectation under normal parameters.

    The expectation belongs to the function and not to the model, so that a model whose
    ``log_prior`` is replaced cannot keep the expectation of the old one.
    """

    def __call__(self, params: Params) -> Scalar:
        """Returns the log density of the parameters."""

    def expected(self, mean: Params, std: Params) -> Scalar:
        """Returns its expectation when every parameter is normal with these marginals.

        Only offered where the log density is a sum of functions of one parameter each: then
        correlations between parameters do not matter.
        """


@runtime_checkable
class IntegrablePrior(Prior, Protocol):
    """A prior that knows the expectation of its log density under normal parameters."""

    def expected_log_prob(self, mean: Params, std: Params) -> Scalar:
        """Returns the expected log density for these marginals, as `IntegrableLogPrior` says."""


@runtime_checkable
class IntegrableLikelihood(Likelihood, Protocol):
    """A likelihood that knows the same of the log prior of its own parameters."""

    def expected_log_prior(self, mean: Mapping[str, Any], std: Mapping[str, Any]) -> Scalar:
        """Returns the expected log density of its own parameters, found by name."""


@runtime_checkable
class DrawablePrior(Prior, Protocol):
    """A prior from which parameters can be drawn."""

    def draw(self, key: Key, template: Params) -> Params:
        """Returns a draw with the shapes and dtypes of the template."""


@runtime_checkable
class DrawableLikelihood(Likelihood, Protocol):
    """A likelihood from which targets can be drawn."""

    def draw_own(self, key: Key) -> dict[str, Array]:
        """Returns a draw of the likelihood's own parameters from their prior."""

    def draw(self, params: Mapping[str, Any], outputs: Array, key: Key) -> Array:
        """Returns a draw of one target."""


@runtime_checkable
class BoundedLikelihood(Likelihood, Protocol):
    """A likelihood that knows its worst case, so that models can be trained with certificates."""

    def worst_log_prob(
        self, params: Mapping[str, Any], lower: Array, upper: Array, y: Array
    ) -> Scalar:
        """Returns a lower bound of ``log_prob`` for all outputs between ``lower`` and ``upper``."""


@runtime_checkable
class LogitLikelihood(Likelihood, Protocol):
    """A likelihood of classes, so that predictions can be certified."""

    def logits(self, outputs: Array) -> Array:
        """Returns a logit for each class, LINEAR in the outputs; ``predict`` is their softmax."""


@runtime_checkable
class FrontEnd(Protocol):
    """Fixed features of one image, which depend on no data."""

    def __hash__(self) -> int: ...

    @property
    def image_shape(self) -> tuple[int, int]:
        """Height and width of an image."""
        ...

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the features."""
        ...

    @property
    def num_features(self) -> int:
        """How many numbers the features are."""
        ...

    def __call__(self, x: Input) -> Array:
        """Returns the features of ONE image."""
        ...


_Kind = TypeVar("_Kind", bound=type)


class _Part(NamedTuple):
    kind: type
    role: object


_PARTS = Registry[_Part]("part")


def part(role: object = None) -> Callable[[_Kind], _Kind]:
    """Registers a frozen dataclass of plain values, so that models made of it can be saved.

    Fields may hold numbers, text, None, members of an enumeration, tuples of these, and other
    parts. Posteriors are loaded where the module that defines the part has been imported.

    Args:
      role: `Network`, `Prior`, `Likelihood`, `FrontEnd` or `tacit.samplers.Sampler`; None for a
        part that is used inside others only.

    Raises:
      InvalidArgumentError: if another class has the name, or it is not a frozen dataclass.

    Example:
      >>> @part(Prior)
      ... @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class HalfFlat:
      ...     share: float
      >>> spec_of(HalfFlat(share=0.5))
      {'kind': 'HalfFlat', 'share': 0.5}
    """

    def register(kind: _Kind) -> _Kind:
        settings = vars(kind).get("__dataclass_params__")
        if settings is None or not settings.frozen:
            raise InvalidArgumentError(
                f"{kind.__name__} must be a frozen dataclass to be a part. Write"
                " @dataclass(frozen=True, kw_only=True) below @part."
            )
        _PARTS.add(kind.__name__, kind, _Part(kind, role))
        return kind

    return register


def part_names(role: object = None) -> tuple[str, ...]:
    """Returns the names of the registered parts in a role; of all where it is None."""
    return tuple(name for name, found in _PARTS.items() if role in (None, found.role))


def is_part(config: object, role: object = None) -> bool:
    """Whether the very class of a configuration is registered; a subclass may do other things."""
    kind = type(config)
    return _PARTS.is_registered(kind.__name__, kind) and kind.__name__ in part_names(role)


def spec_of(config: object, role: object = None) -> dict[str, Any] | None:
    """Returns a part as JSON-able values, or None where it, or a part of it, is not registered.

    Guarantee:
      ``from_spec(spec_of(config), role) == config``.

    Raises:
      InvalidArgumentError: if it is registered, but holds something that no description can.

    Example:
      >>> from tacit.models import GaussianPrior
      >>> spec_of(GaussianPrior(std=0.1))
      {'kind': 'GaussianPrior', 'std': 0.1}
    """
    if not is_part(config, role):
        return None
    try:
        spec: dict[str, Any] = _described(config)
    except _UnregisteredError:
        return None
    if from_spec(spec, role) != config:
        raise InvalidArgumentError(
            f"{config!r} is not equal to what its description gives, {from_spec(spec, role)!r}."
            " Its fields must be its constructor's arguments, and it must compare by value."
        )
    return spec


def from_spec(spec: Any, role: object = None) -> Any:
    """Returns the part that `spec_of` described.

    Raises:
      InvalidArgumentError: if the description names something unknown or does not fit it.

    Example:
      >>> from_spec({"kind": "GaussianPrior", "std": 0.1}, Prior)
      GaussianPrior(std=0.1)
    """
    name = spec.get("kind") if isinstance(spec, Mapping) else spec
    names = part_names(role)
    if not isinstance(spec, Mapping) or not isinstance(name, str) or name not in names:
        raise InvalidArgumentError(
            f"kind must be one of {', '.join(names)}; got {name!r}. If it is your own or from"
            " another package, import the module that defines it before loading."
        )
    kind = _PARTS[name].kind
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    given = {field: value for field, value in spec.items() if field != "kind"}
    unknown = given.keys() - {field.name for field in fields}
    missing = {field.name for field in fields if _is_required(field)} - given.keys()
    if unknown or missing:
        raise InvalidArgumentError(
            f"the description of {name} has unknown fields {sorted(unknown)} and lacks "
            f"{sorted(missing)}; it may come from another version of tacit."
        )
    return kind(**{field: _value(field, value, hints[field]) for field, value in given.items()})


class _UnregisteredError(Exception):
    """A part inside another is not registered."""


def _described(value: object) -> Any:
    match value:
        case enum.Enum():
            return value.value
        case None | bool() | str():
            return value
        # Numbers may be NumPy's, which json refuses.
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case tuple():
            return [_described(item) for item in value]
    if not dataclasses.is_dataclass(value):
        raise InvalidArgumentError(
            "a part holds plain values only: numbers, text, None, tuples of them and other parts;"
            f" got {value!r}."
        )
    if not is_part(value):
        raise _UnregisteredError
    fields = {f.name: _described(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"kind": type(value).__name__} | fields


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _value(name: str, value: Any, hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        options = [member.value for member in hint]
        if value not in options:
            raise InvalidArgumentError(
                f"{name} must be one of {', '.join(map(str, options))}; got {value!r}."
            )
        return hint(value)
    if isinstance(value, list | tuple):
        return tuple(_value(name, item, None) for item in value)
    if isinstance(value, Mapping):
        return from_spec(value)
    if isinstance(value, str | Real) or (value is None and type(None) in typing.get_args(hint)):
        return value
    raise InvalidArgumentError(f"a description holds plain values only; got {value!r}.")
