"""Features once, before training: fast, and the same posterior as with the front end inside."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models.base import Model, Prediction
from tacit.models.front_end import FixedFrontEnd
from tacit.models.spec import NETWORKS, decode, encode
from tacit.models.whitening import FrontEnd
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = ["extract_features", "with_front_end"]


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
    fill = _compiled(front_end, min(batch_size, len(images)))
    features = jnp.zeros(
        (len(images), *front_end.output_shape), jnp.promote_types(images.dtype, jnp.float32)
    )
    for start in range(0, len(images), batch_size):
        features = fill(features, images, start)
    return features.reshape(*leading[:-2], *front_end.output_shape)


@functools.lru_cache(maxsize=16)
def _compiled(front_end: FrontEnd, batch_size: int) -> Callable[[Array, Array, int], Array]:
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
        log_likelihood=log_likelihood, predict=predict, spec=_spec(model.spec, front_end)
    )


def _spec(spec: Mapping[str, Any] | None, front_end: FrontEnd) -> Mapping[str, Any] | None:
    if spec is None:
        return None
    network = FixedFrontEnd(front_end=front_end, head=decode(spec["network"], NETWORKS))
    return {**spec, "network": encode(network)}
