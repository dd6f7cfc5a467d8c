"""Bayesian networks: a network, a prior and a likelihood make a model."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models.base import (
    FrontEnd,
    IntegrableLikelihood,
    IntegrablePrior,
    Likelihood,
    Model,
    Network,
    Prediction,
    Prior,
)
from tacit.models.front_end import FixedFrontEnd
from tacit.models.spec import LIKELIHOODS, NETWORKS, PRIORS, decode, encode
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = ["bayesian", "extract_features", "model_from_spec", "with_front_end"]


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
    return Model(init, log_prior, log_likelihood, predict, _spec(network, prior, likelihood))


def model_from_spec(spec: Mapping[str, Any]) -> Model:
    """Returns the model that a ``Model.spec`` describes.

    Only names of this package and plain values are read: a description from a stranger can be
    wrong, but it cannot run anything.

    Raises:
      InvalidArgumentError: if the description names something unknown or does not fit it.

    Example:
      >>> from tacit.models import MLP, Bernoulli, FlatPrior
      >>> network = MLP(num_inputs=4, num_outputs=1)
      >>> model = bayesian(network, prior=FlatPrior(), likelihood=Bernoulli())
      >>> model_from_spec(model.spec).spec == model.spec
      True
    """
    roles = {"network": NETWORKS, "prior": PRIORS, "likelihood": LIKELIHOODS}
    if not isinstance(spec, Mapping) or spec.keys() != roles.keys():
        raise InvalidArgumentError(
            f"spec must describe {', '.join(roles)}, as Model.spec does; got {spec!r}."
        )
    network, prior, likelihood = (decode(spec[role], kinds) for role, kinds in roles.items())
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


def _spec(network: Network, prior: Prior, likelihood: Likelihood) -> Mapping[str, Any] | None:
    # Exact types: a subclass may behave differently, which a description cannot say.
    known = (type(network) in NETWORKS, type(prior) in PRIORS, type(likelihood) in LIKELIHOODS)
    if not all(known):
        return None
    return {
        "network": encode(network),
        "prior": encode(prior),
        "likelihood": encode(likelihood),
    }


def extract_features(front_end: FrontEnd, x: Input, *, batch_size: int = 64) -> Array:
    """Returns the features of many images, to train a head on: ``records._replace(x=...)``.

    Guarantee:
      Each row of features depends on its own row only, so a table of features has the same units
      of privacy as the table of images. It is as private as that one: it is for training, and not
      for publication.

    Args:
      front_end: takes the features.
      x: images ``(num_records, height, width)``, with a channel axis or without; where a record is
        a person with several rows, ``(num_records, num_rows, height, width)``.
      batch_size: how many images are looked at together; it bounds the memory beside the result,
        which is 4 bytes for each of ``front_end.num_features`` numbers an image.

    Example:
      >>> from tacit.models import Scattering
      >>> front_end = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=None)
      >>> extract_features(front_end, jnp.ones((5, 8, 8))).shape
      (5, 2, 2, 9)
    """
    _check.positive_integer(batch_size=batch_size)
    x, image_shape = jnp.asarray(x), front_end.image_shape
    leading = x.shape[:-1] if x.shape[-3:] == (*image_shape, 1) else x.shape
    if leading[-2:] != image_shape or len(leading) < 3:
        raise InvalidArgumentError(
            f"x must be a table of images, (num_records, {image_shape[0]}, {image_shape[1]}); got "
            f"shape {x.shape}. One image by itself: front_end(x)."
        )
    images = x.reshape(-1, *image_shape)
    fill = _compiled_features(front_end, min(batch_size, len(images)))
    features = jnp.zeros(
        (len(images), *front_end.output_shape), jnp.promote_types(images.dtype, jnp.float32)
    )
    for start in range(0, len(images), batch_size):
        features = fill(features, images, start)
    return features.reshape(*leading[:-2], *front_end.output_shape)


@functools.lru_cache(maxsize=16)
def _compiled_features(
    front_end: FrontEnd, batch_size: int
) -> Callable[[Array, Array, int], Array]:
    def fill(features: Array, images: Array, start: int) -> Array:
        # Beyond the end, JAX reaches back for a whole batch, here and below alike.
        batch = lax.dynamic_slice_in_dim(images, start, batch_size)
        found = jax.vmap(front_end)(batch)
        return lax.dynamic_update_slice_in_dim(features, found, start, 0)

    return jax.jit(fill, donate_argnums=0)  # in place: there is one table of features


def with_front_end(model: Model, front_end: FrontEnd) -> Model:
    """Returns the model of whole images, for a model of their features.

    The parameters are the same, and so is what they say: put it in the place of the model of a
    posterior that was trained on features, and the posterior, with its statement, is one of the
    network on images: ``dataclasses.replace(posterior, model=with_front_end(...))``.

    Args:
      model: of features ``(height, width, channels)``, as `extract_features` returns.
      front_end: what the features were taken with.

    Example:
      >>> from tacit.models import MLP, Categorical, FlatPrior, Scattering, bayesian
      >>> front_end = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=None)
      >>> head = MLP(num_inputs=front_end.num_features, num_outputs=3)
      >>> model = bayesian(head, prior=FlatPrior(), likelihood=Categorical(num_classes=3))
      >>> whole = with_front_end(model, front_end)
      >>> params = model.init(jax.random.key(0))
      >>> whole.predict(params, jnp.ones((8, 8)), jax.random.key(1)).shape
      (3,)
      >>> whole.spec["network"]["kind"]
      'FixedFrontEnd'
    """

    def log_likelihood(params: Params, record: Record, key: Key) -> Scalar:
        return model.log_likelihood(params, record._replace(x=front_end(record.x)), key)

    def predict(params: Params, x: Input, key: Key) -> Prediction:
        return model.predict(params, front_end(x), key)

    return model._replace(
        log_likelihood=log_likelihood,
        predict=predict,
        spec=_spec_with_front_end(model.spec, front_end),
    )


def _spec_with_front_end(
    spec: Mapping[str, Any] | None, front_end: FrontEnd
) -> Mapping[str, Any] | None:
    if spec is None:
        return None
    network = FixedFrontEnd(front_end=front_end, head=decode(spec["network"], NETWORKS))
    return {**spec, "network": encode(network)}
