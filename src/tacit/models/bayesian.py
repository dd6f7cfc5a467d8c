"""Bayesian networks: a network, a prior and a likelihood make a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from tacit.errors import InvalidArgumentError
from tacit.models.base import (
    IntegrableLikelihood,
    IntegrablePrior,
    Likelihood,
    Model,
    Network,
    Prediction,
    Prior,
    from_spec,
    spec_of,
)
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = ["bayesian", "model_from_spec"]

_ROLES = {"network": Network, "prior": Prior, "likelihood": Likelihood}


def bayesian(network: Network, *, prior: Prior, likelihood: Likelihood) -> Model:
    """Returns the model of a network under a prior, with a distribution of the target.

    The parameters are ``{"network": ...}`` and, beside it, those of the likelihood if it has any.
    The prior is that of the network's parameters; the likelihood brings its own.

    Args:
      network: a network of this package, or any object with its two functions.
      prior: the density of the network's parameters.
      likelihood: what the outputs mean.

    Example:
      >>> import jax
      >>> from tacit.models import MLP, Categorical, GaussianPrior
      >>> model = bayesian(
      ...     MLP(num_inputs=4, hidden=(8,), num_outputs=3),
      ...     prior=GaussianPrior(std=1.0),
      ...     likelihood=Categorical(num_classes=3),
      ... )
      >>> params = model.init(jax.random.key(0))
      >>> model.predict(params, jnp.ones(4), jax.random.key(1)).shape
      (3,)
    """
    needed = likelihood.num_outputs
    if network.num_outputs not in (None, needed):
        raise InvalidArgumentError(
            f"num_outputs of the network must be {needed} for {likelihood}; "
            f"got {network.num_outputs}."
        )

    def init(key: Key) -> Params:
        return {"network": network.init(key), **likelihood.init()}

    def outputs_of(params: Params, x: Input, key: Key) -> Array:
        outputs = network.apply(params["network"], x, key)
        if jnp.shape(outputs) != (needed,) and not (needed == 1 and jnp.shape(outputs) == ()):
            raise InvalidArgumentError(
                f"the network must map one input to an array of shape ({needed},) for "
                f"{likelihood}; got {jnp.shape(outputs)}."
            )
        return jnp.reshape(outputs, (needed,))

    def log_likelihood(params: Params, record: Record, key: Key) -> Scalar:
        return likelihood.log_prob(params, outputs_of(params, record.x, key), record.y)

    def predict(params: Params, x: Input, key: Key) -> Prediction:
        return likelihood.predict(params, outputs_of(params, x, key))

    log_prior = _log_prior(prior, likelihood)
    spec = _spec(network=network, prior=prior, likelihood=likelihood)
    return Model(init, log_prior, log_likelihood, predict, spec)


def model_from_spec(spec: Mapping[str, Any]) -> Model:
    """Returns the model that a ``Model.spec`` describes.

    Only plain values are read, and names of parts that are registered: a description from a
    stranger can be wrong, but it cannot import or run anything.

    Raises:
      InvalidArgumentError: if the description names something unknown or does not fit it.

    Example:
      >>> from tacit.models import MLP, Bernoulli, FlatPrior
      >>> network = MLP(num_inputs=4, num_outputs=1)
      >>> model = bayesian(network, prior=FlatPrior(), likelihood=Bernoulli())
      >>> model_from_spec(model.spec).spec == model.spec
      True
    """
    if not isinstance(spec, Mapping) or spec.keys() != _ROLES.keys():
        raise InvalidArgumentError(
            f"spec must describe {', '.join(_ROLES)}, as Model.spec does; got {spec!r}."
        )
    network, prior, likelihood = (from_spec(spec[name], role) for name, role in _ROLES.items())
    return bayesian(network, prior=prior, likelihood=likelihood)


@dataclass(frozen=True)
class _IntegrableLogPrior:
    """The log prior of network and likelihood, with its expectation in closed form."""

    prior: IntegrablePrior
    likelihood: IntegrableLikelihood

    def __call__(self, params: Params) -> Scalar:
        return self.prior.log_prob(params["network"]) + self.likelihood.log_prior(params)

    def expected(self, mean: Params, std: Params) -> Scalar:
        network = self.prior.expected_log_prob(mean["network"], std["network"])
        return network + self.likelihood.expected_log_prior(mean, std)


def _log_prior(prior: Prior, likelihood: Likelihood) -> Callable[[Params], Scalar]:
    if isinstance(prior, IntegrablePrior) and isinstance(likelihood, IntegrableLikelihood):
        return _IntegrableLogPrior(prior, likelihood)

    def log_prior(params: Params) -> Scalar:
        return prior.log_prob(params["network"]) + likelihood.log_prior(params)

    return log_prior


def _spec(**parts: object) -> Mapping[str, Any] | None:
    specs = {name: spec_of(parts[name], role) for name, role in _ROLES.items()}
    return None if None in specs.values() else specs
