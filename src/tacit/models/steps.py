"""Steps: a network as the list of maps it is made of, for code that must walk through it.

Evaluation runs the list forwards, interval bounds too, linear bounds run it backwards. A step says
what it does once; that it is affine, or monotone, is all that bounds need to know.
"""

import dataclasses
import math
from typing import Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp

from tacit.errors import InvalidArgumentError
from tacit.models import layers
from tacit.models.base import FrontEnd, Network
from tacit.models.layers import Activation, Extent
from tacit.typing import Array, Input, Key, Params

__all__ = [
    "Activate",
    "Affine",
    "Average",
    "Convolve",
    "DenseMap",
    "Drop",
    "Encode",
    "Image",
    "Maximum",
    "Shaping",
    "Step",
    "Stepwise",
    "Vector",
    "run",
    "steps_of",
]


@dataclasses.dataclass(frozen=True)
class Encode:
    """Features of the input, which no parameter has a part in."""

    front_end: FrontEnd

    def __call__(self, params: Params, x: Input, key: Key) -> Array:
        """Returns the features of an image."""
        del params, key
        return self.front_end(x)


@dataclasses.dataclass(frozen=True)
class Vector:
    """Flattens to ``size`` numbers, in the precision of the parameters."""

    size: int

    def __call__(self, params: Params, x: Input, key: Key) -> Array:
        """Returns the vector; refuses another number of entries."""
        del key
        x = jnp.ravel(x).astype(_precision(params))
        if x.size != self.size:
            raise InvalidArgumentError(
                f"an input must have num_inputs={self.size} numbers; got {x.size}. "
                "Networks take one input without a batch axis: map over records with jax.vmap."
            )
        return x


@dataclasses.dataclass(frozen=True)
class Image:
    """Takes an image of ``shape``, in the precision of the parameters."""

    shape: tuple[int, int, int]

    def __call__(self, params: Params, x: Input, key: Key) -> Array:
        """Returns the image, with its channel axis; refuses another shape."""
        del key
        x = jnp.asarray(x).astype(_precision(params))
        if x.ndim == 2 and self.shape[2] == 1:
            x = x[..., None]
        if x.shape != self.shape:
            raise InvalidArgumentError(
                f"an input must have input_shape={self.shape}; got {x.shape}. "
                "Networks take one input without a batch axis: map over records with jax.vmap."
            )
        return x


@dataclasses.dataclass(frozen=True)
class DenseMap:
    """The affine map with the parameters ``name``."""

    name: str

    def __call__(self, params: Params, x: Array, key: Key) -> Array:
        """Returns the affine map of a vector."""
        del key
        return layers.dense(params[self.name], x)

    def num_terms(self, params: Params) -> int:
        """How many products one output sums."""
        return int(params[self.name]["kernel"].shape[0])


@dataclasses.dataclass(frozen=True)
class Convolve:
    """The convolution with the parameters ``name``."""

    name: str
    stride: Extent
    padding: Extent

    def __call__(self, params: Params, x: Array, key: Key) -> Array:
        """Returns the convolution of an image."""
        del key
        return layers.conv(params[self.name], x, stride=self.stride, padding=self.padding)

    def num_terms(self, params: Params) -> int:
        """How many products one output sums."""
        return math.prod(params[self.name]["kernel"].shape[:-1])


@dataclasses.dataclass(frozen=True)
class Average:
    """The mean over windows."""

    window: Extent
    stride: Extent

    def __call__(self, params: Params, x: Array, key: Key) -> Array:
        """Returns the means of an image's windows."""
        del params, key
        return layers.average_pool(x, window=self.window, stride=self.stride)

    def num_terms(self, params: Params) -> int:
        """How many numbers one output sums."""
        del params
        return math.prod(self.window)


@dataclasses.dataclass(frozen=True)
class Drop:
    """Dropout at one place of the network; for a given key a fixed mask, hence affine."""

    rate: float
    place: int

    def __call__(self, params: Params, x: Array, key: Key) -> Array:
        """Returns the kept entries, scaled."""
        del params
        return layers.dropout(key, x, rate=self.rate, place=self.place)

    def num_terms(self, params: Params) -> int:
        """One number for each output."""
        del params
        return 1


@dataclasses.dataclass(frozen=True)
class Maximum:
    """The maximum over windows."""

    window: Extent
    stride: Extent

    def __call__(self, params: Params, x: Array, key: Key) -> Array:
        """Returns the maxima of an image's windows."""
        del params, key
        return layers.max_pool(x, window=self.window, stride=self.stride)


@dataclasses.dataclass(frozen=True)
class Activate:
    """The activation, entry by entry."""

    activation: Activation

    def __call__(self, params: Params, x: Array, key: Key) -> Array:
        """Returns the function of every entry."""
        del params, key
        return self.activation(x)


Shaping: TypeAlias = Vector | Image
Affine: TypeAlias = DenseMap | Convolve | Average | Drop
Step: TypeAlias = Encode | Shaping | Affine | Maximum | Activate


@runtime_checkable
class Stepwise(Network, Protocol):
    """A network that is a list of steps, so that its outputs can be bounded."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """What ``apply`` does, in order."""


def _precision(params: Params) -> jnp.dtype:
    return jnp.result_type(*jax.tree.leaves(params))


def steps_of(network: object) -> tuple[Step, ...]:
    """Returns a network's steps, or says why it has none.

    Example:
      >>> from tacit.models import MLP
      >>> steps_of(MLP(num_inputs=4, num_outputs=3))
      (Vector(size=4), DenseMap(name='dense_0'))
    """
    if not isinstance(network, Stepwise):
        raise InvalidArgumentError(
            "network must be an MLP or a CNN, whose layers have bounds, one of them behind a "
            f"FixedFrontEnd, or another network that has `steps`; got {network!r}. "
            "Tokens have no ball around them, and a plain function does not show its layers."
        )
    return network.steps


def run(steps: tuple[Step, ...], params: Params, x: Input, key: Key) -> Array:
    """Returns the value of the steps, one after the other, at one input."""
    for step in steps:
        x = step(params, x, key)
    return x
