"""What a model is: four functions, of which only the likelihood sees a record."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = [
    "FrontEnd",
    "IntegrableLikelihood",
    "IntegrableLogPrior",
    "IntegrablePrior",
    "Likelihood",
    "Model",
    "Moments",
    "Network",
    "Prediction",
    "Prior",
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
    """

    init: Callable[[Key], Params]
    log_prior: Callable[[Params], Scalar]
    log_likelihood: Callable[[Params, Record, Key], Scalar]
    predict: Callable[[Params, Input, Key], Prediction]
    spec: Mapping[str, Any] | None = None


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
