"""Bayesian networks: a network, of this package or from elsewhere, a prior and a likelihood.

Every adapter writes for ONE input without a batch axis, draws fresh initial parameters from a key,
and hands the record's own key to dropout, in training and in prediction alike. Layers that keep
statistics of past or neighbouring records (batch normalisation) are refused: a clip cannot bound
what a record does through them.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.errors import CrossRecordError, InvalidArgumentError
from tacit.models.base import (
    DrawableLikelihood,
    DrawablePrior,
    IntegrableLikelihood,
    IntegrablePrior,
    Likelihood,
    Model,
    Network,
    Prediction,
    Prior,
    Simulator,
    from_spec,
    spec_of,
)
from tacit.typing import Array, Input, Key, Params, Record, Scalar, Tree

__all__ = ["bayesian", "from_equinox", "from_flax", "from_function", "from_nnx", "model_from_spec"]

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
    if not isinstance(prior, DrawablePrior) or not isinstance(likelihood, DrawableLikelihood):
        return Model(init, log_prior, log_likelihood, predict, spec)

    def draw_params(key: Key) -> Params:
        network_key, own_key = jax.random.split(key)
        template = jax.eval_shape(network.init, network_key)
        return {"network": prior.draw(network_key, template), **likelihood.draw_own(own_key)}

    def draw_target(params: Params, x: Input, key: Key) -> Array:
        outputs_key, target_key = jax.random.split(key)
        return likelihood.draw(params, outputs_of(params, x, outputs_key), target_key)

    simulator = Simulator(draw_params, draw_target)
    return Model(init, log_prior, log_likelihood, predict, spec, simulator)


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


class _FunctionNetwork(NamedTuple):
    """Two functions as a network, whose outputs are counted when it is traced."""

    init: Callable[[Key], Params]
    apply: Callable[[Params, Input, Key], Array]
    num_outputs: None = None


def from_function(
    init: Callable[[Key], Params],
    apply: Callable[[Params, Input, Key], Array],
    *,
    prior: Prior,
    likelihood: Likelihood,
) -> Model:
    """Returns the model of a network given as two pure functions.

    Args:
      init: ``init(key)`` draws initial parameters, any tree of floating arrays. It must not
        look at private data.
      apply: ``apply(params, x, key)`` maps one input to the outputs the likelihood needs.
      prior: the density of the network's parameters.
      likelihood: what the outputs mean.

    Example:
      >>> from tacit.models import FixedGaussian, GaussianPrior
      >>> model = from_function(
      ...     lambda key: jax.random.normal(key, (3,)),
      ...     lambda w, x, key: w @ x,
      ...     prior=GaussianPrior(std=1.0),
      ...     likelihood=FixedGaussian(std=0.5),
      ... )
      >>> params = model.init(jax.random.key(0))
      >>> model.predict(params, jnp.zeros(3), jax.random.key(1)).variance
      Array(0.25, dtype=float32)
    """
    return bayesian(_FunctionNetwork(init, apply), prior=prior, likelihood=likelihood)


def from_flax(module: Any, example_input: Input, *, prior: Prior, likelihood: Likelihood) -> Model:
    """Returns the model of a Flax Linen module.

    Dropout layers must be switched on in the module (``deterministic=False``); the record's key
    is their ``dropout`` stream.

    Args:
      module: an ``flax.linen.Module`` that is called with one input.
      example_input: an array or tree like one input. Only shapes and dtypes are read.
      prior: the density of the module's parameters.
      likelihood: what the outputs mean.

    Raises:
      CrossRecordError: if the module has variables other than parameters.

    Example:
      >>> import flax.linen as nn
      >>> from tacit.models import Categorical, GaussianPrior
      >>> model = from_flax(
      ...     nn.Dense(3),
      ...     jnp.ones(4),
      ...     prior=GaussianPrior(std=1.0),
      ...     likelihood=Categorical(num_classes=3),
      ... )
      >>> model.init(jax.random.key(0))["network"]["kernel"].shape
      (4, 3)
    """
    _require("flax.linen", extra="flax")

    def variables(key: Key) -> dict[str, Any]:
        params_key, dropout_key = jax.random.split(key)
        # Zeros: an initialisation that looks at its input must not see a record.
        blank = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.result_type(x)), example_input)
        return dict(module.init({"params": params_key, "dropout": dropout_key}, blank))

    shapes = jax.eval_shape(variables, jax.random.key(0))
    _refuse_state(type(module).__name__, shapes.keys() - {"params"})

    def init(key: Key) -> Params:
        return variables(key).get("params", {})

    def apply(params: Params, x: Input, key: Key) -> Array:
        return jnp.asarray(module.apply({"params": params}, x, rngs={"dropout": key}))

    return from_function(init, apply, prior=prior, likelihood=likelihood)


def from_nnx(build: Callable[[Any], Any], *, prior: Prior, likelihood: Likelihood) -> Model:
    """Returns the model of a Flax NNX module; its parameters are a flat dictionary by path.

    Args:
      build: makes the module from an ``nnx.Rngs``, so that every chain can start elsewhere. Which
        layers it makes must not depend on the random numbers.
      prior: the density of the module's ``nnx.Param`` variables.
      likelihood: what the outputs mean.

    Raises:
      CrossRecordError: if the module has variables other than parameters and random streams.

    Example:
      >>> from flax import nnx
      >>> from tacit.models import Categorical, GaussianPrior
      >>> model = from_nnx(
      ...     lambda rngs: nnx.Linear(4, 3, rngs=rngs),
      ...     prior=GaussianPrior(std=1.0),
      ...     likelihood=Categorical(num_classes=3),
      ... )
      >>> model.init(jax.random.key(0))["network"]["kernel"].shape
      (4, 3)
    """
    nnx = _require("flax.nnx", extra="flax")
    module = build(nnx.Rngs(jax.random.key(0)))
    graph, state, rest = nnx.split(module, nnx.Param, ...)
    kinds = {type(variable) for _, variable in nnx.to_flat_state(rest)}
    stateful = {kind.__name__ for kind in kinds if not issubclass(kind, nnx.RngState)}
    _refuse_state(type(module).__name__, stateful)
    values = nnx.to_pure_dict(state)
    names, structure = list(_by_path(values)), jax.tree.structure(values)
    streams, streams_structure = jax.tree.flatten(rest)

    def init(key: Key) -> Params:
        _, fresh, _ = nnx.split(build(nnx.Rngs(key)), nnx.Param, ...)
        return _by_path(nnx.to_pure_dict(fresh))

    def apply(params: Params, x: Input, key: Key) -> Array:
        # A stream is a key and a count: each stream restarts from the record's own key.
        restarted = [
            jax.random.fold_in(key, i)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.zeros_like(leaf)
            for i, leaf in enumerate(streams)
        ]
        filled = jax.tree.map(lambda leaf: leaf, state)  # a copy, for NNX fills it in place
        nested = jax.tree.unflatten(structure, [params[name] for name in names])
        nnx.replace_by_pure_dict(filled, nested)
        network = nnx.merge(graph, filled, jax.tree.unflatten(streams_structure, restarted))
        return jnp.asarray(network(x))

    return from_function(init, apply, prior=prior, likelihood=likelihood)


def from_equinox(build: Callable[[Key], Any], *, prior: Prior, likelihood: Likelihood) -> Model:
    """Returns the model of an Equinox module; its parameters are a flat dictionary by path.

    The parameters are the module's floating arrays. A module whose call takes a ``key`` receives
    the record's own.

    Args:
      build: makes the module from a key, so that every chain can start elsewhere. What is not a
        floating array must not depend on the key.
      prior: the density of the parameters.
      likelihood: what the outputs mean.

    Raises:
      CrossRecordError: if the module has stateful layers.

    Example:
      >>> import equinox as eqx
      >>> from tacit.models import Categorical, GaussianPrior
      >>> model = from_equinox(
      ...     lambda key: eqx.nn.Linear(4, 3, key=key),
      ...     prior=GaussianPrior(std=1.0),
      ...     likelihood=Categorical(num_classes=3),
      ... )
      >>> model.init(jax.random.key(0))["network"]["weight"].shape
      (3, 4)
    """
    eqx = _require("equinox", extra="equinox")
    module = build(jax.random.key(0))
    state_kinds = (eqx.nn.StateIndex, eqx.nn.State)
    nodes = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, state_kinds))
    stateful = {type(node).__name__ for node in nodes if isinstance(node, state_kinds)}
    _refuse_state(type(module).__name__, stateful)
    floating, static = eqx.partition(module, eqx.is_inexact_array)
    names, structure = list(_by_path(floating)), jax.tree.structure(floating)
    takes_key = "key" in inspect.signature(module).parameters

    def init(key: Key) -> Params:
        return _by_path(eqx.filter(build(key), eqx.is_inexact_array))

    def apply(params: Params, x: Input, key: Key) -> Array:
        network = eqx.combine(
            jax.tree.unflatten(structure, [params[name] for name in names]), static
        )
        return jnp.asarray(network(x, key=key) if takes_key else network(x))

    return from_function(init, apply, prior=prior, likelihood=likelihood)


def _require(name: str, *, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: pip install 'tacit[{extra}]'.") from error


def _refuse_state(module: str, collections: Iterable[str]) -> None:
    names = sorted(collections)
    if names:
        raise CrossRecordError(
            f"{module} keeps state beside its parameters ({', '.join(names)}), so one record "
            "could act through the others; replace batch normalisation by GroupNorm or "
            "LayerNorm, and drop other running statistics."
        )


def _by_path(tree: Tree) -> dict[str, Array]:
    """Returns the leaves by their path: plain names that can be saved and given a prior."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
