"""Layers as functions of ONE input, in the forms that are fast on a CPU.

Two forms are not the obvious ones. The gradient of ``lax.reduce_window`` is slow, so pooling is
done by shifted slices, one axis at a time. A strided convolution of one channel is slow too, so its
stride is first folded into the channels, which is exact (with more channels it gains nothing).
"""

import enum
import functools
import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from tacit.errors import InvalidArgumentError
from tacit.typing import Array, Key

__all__ = [
    "Activation",
    "Extent",
    "Layer",
    "average_pool",
    "conv",
    "dense",
    "dropout",
    "init_layer",
    "init_normal",
    "max_pool",
    "mean_embedding",
    "windows",
]


class Activation(enum.StrEnum):
    """An elementwise function between layers.

    Example:
      >>> Activation.RELU(jnp.array([-1.0, 2.0]))
      Array([0., 2.], dtype=float32)
    """

    RELU = "relu"
    TANH = "tanh"
    SOFTPLUS = "softplus"
    ELU = "elu"
    GELU = "gelu"
    SIGMOID = "sigmoid"
    IDENTITY = "identity"

    def __call__(self, x: Array) -> Array:
        """Applies the function to every element."""
        return _FUNCTIONS[self](x)

    def kernel_std(self, num_in: int, num_out: int) -> float:
        """Returns the spread of initial weights before this activation that keeps a signal's size.

        He for functions that cut half of the signal, Glorot for the saturating ones, LeCun for
        the identity.

        Args:
          num_in: how many inputs one output sees.
          num_out: how many outputs one input reaches.
        """
        match self:
            case Activation.IDENTITY:
                return math.sqrt(1 / num_in)
            case Activation.TANH | Activation.SIGMOID:
                return math.sqrt(2 / (num_in + num_out))
            case _:
                return math.sqrt(2 / num_in)


_FUNCTIONS: dict[Activation, Callable[[Array], Array]] = {
    Activation.RELU: jax.nn.relu,
    Activation.TANH: jnp.tanh,
    Activation.SOFTPLUS: jax.nn.softplus,
    Activation.ELU: jax.nn.elu,
    Activation.GELU: jax.nn.gelu,
    Activation.SIGMOID: jax.nn.sigmoid,
    Activation.IDENTITY: lambda x: x,
}


def check_activation(activation: object) -> None:
    """Raises unless the value is an ``Activation``, naming the member to use instead."""
    if not isinstance(activation, Activation):
        members = ", ".join(f"Activation.{member.name}" for member in Activation)
        raise InvalidArgumentError(f"activation must be one of {members}; got {activation!r}.")


Layer: TypeAlias = dict[str, Array]
Extent: TypeAlias = tuple[int, int]


def init_layer(key: Key, shape: tuple[int, ...], *, before: Activation) -> Layer:
    """Draws a kernel, sized for the activation that it comes before, and a zero bias.

    Args:
      key: the layer's key.
      shape: the kernel's shape: window (if any), inputs, outputs.
      before: what follows the layer.
    """
    *window, num_inputs, num_outputs = shape
    size = math.prod(window)
    std = before.kernel_std(size * num_inputs, size * num_outputs)
    return {
        "kernel": std * init_normal(key, shape),
        "bias": jnp.zeros(num_outputs, jnp.float32),
    }


def init_normal(key: Key, shape: tuple[int, ...]) -> Array:
    """Draws standard normal numbers."""
    # Drawn flat: a draw of several axes takes four times as long to compile.
    return jax.random.normal(key, (math.prod(shape),), jnp.float32).reshape(shape)


def dense(layer: Mapping[str, Array], x: Array) -> Array:
    """Returns the affine map of a vector.

    Example:
      >>> layer = {"kernel": jnp.array([[1.0], [2.0]]), "bias": jnp.array([0.5])}
      >>> dense(layer, jnp.array([1.0, 1.0]))
      Array([3.5], dtype=float32)
    """
    return x @ layer["kernel"] + layer["bias"]


def conv(layer: Mapping[str, Array], x: Array, *, stride: Extent, padding: Extent) -> Array:
    """Returns the cross-correlation of an image ``(height, width, channels)`` with a kernel.

    Args:
      layer: a kernel ``(height, width, channels, features)`` and a bias ``(features,)``.
      x: the image.
      stride: the step between positions, along height and width.
      padding: rows and columns of zeros added on each side.
    """
    kernel = layer["kernel"]
    height, width, channels, _ = kernel.shape
    # A kernel that is not a multiple of the stride would need zero padding of its own.
    folds = height % stride[0] == 0 and width % stride[1] == 0
    if stride != (1, 1) and folds and channels == 1:
        x, kernel = _fold_stride(x, kernel, stride=stride, padding=padding)
        stride, padding = (1, 1), (0, 0)
    out = lax.conv_general_dilated(
        x[None],
        kernel,
        window_strides=stride,
        padding=[(pad, pad) for pad in padding],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return out[0] + layer["bias"]


def _fold_stride(
    x: Array, kernel: Array, *, stride: Extent, padding: Extent
) -> tuple[Array, Array]:
    """Moves the positions within a stride to channels: the same sums with stride one."""
    (down, right), (height, width) = stride, kernel.shape[:2]
    x = jnp.pad(x, [(pad, pad) for pad in padding] + [(0, 0)])
    # The last window may not reach the border: what lies beyond it is never read.
    rows = (x.shape[0] - height) // down * down + height
    columns = (x.shape[1] - width) // right * right + width
    x = x[:rows, :columns].reshape(rows // down, down, columns // right, right, -1)
    x = x.transpose(0, 2, 1, 3, 4).reshape(rows // down, columns // right, -1)
    folded = kernel.reshape(height // down, down, width // right, right, -1, kernel.shape[-1])
    folded = folded.transpose(0, 2, 1, 3, 4, 5)
    return x, folded.reshape(height // down, width // right, -1, kernel.shape[-1])


def max_pool(x: Array, *, window: Extent, stride: Extent) -> Array:
    """Returns the maximum of each window of an image ``(height, width, channels)``.

    Where two entries tie for the maximum, the gradient is shared between them.

    Example:
      >>> max_pool(jnp.arange(9.0).reshape(3, 3, 1), window=(2, 2), stride=(1, 1))[..., 0]
      Array([[4., 5.], [7., 8.]], dtype=float32)
    """
    return _pool(jnp.maximum, x, window=window, stride=stride)


def average_pool(x: Array, *, window: Extent, stride: Extent) -> Array:
    """Returns the mean of each window of an image ``(height, width, channels)``.

    Example:
      >>> average_pool(jnp.arange(4.0).reshape(2, 2, 1), window=(2, 2), stride=(2, 2)).item()
      1.5
    """
    return _pool(jnp.add, x, window=window, stride=stride) / (window[0] * window[1])


def _pool(
    combine: Callable[[Array, Array], Array], x: Array, *, window: Extent, stride: Extent
) -> Array:
    for axis in (0, 1):
        reach = (x.shape[axis] - window[axis]) // stride[axis] * stride[axis] + 1
        shifted = [
            lax.slice_in_dim(x, start, start + reach, stride[axis], axis)
            for start in range(window[axis])
        ]
        x = functools.reduce(combine, shifted)
    return x


def windows(x: Array, *, window: Extent, stride: Extent) -> Array:
    """Returns the entries of each window of an image, along one more axis at the end.

    Example:
      >>> windows(jnp.arange(4.0).reshape(2, 2, 1), window=(1, 2), stride=(1, 1))[:, 0, 0]
      Array([[0., 1.], [2., 3.]], dtype=float32)
    """
    reach = [(x.shape[i] - window[i]) // stride[i] * stride[i] + 1 for i in (0, 1)]
    shifted = [
        x[i : i + reach[0] : stride[0], j : j + reach[1] : stride[1]]
        for i in range(window[0])
        for j in range(window[1])
    ]
    return jnp.stack(shifted, axis=-1)


def dropout(key: Key, x: Array, *, rate: float, place: int) -> Array:
    """Zeroes each entry with probability ``rate`` and keeps the expectation.

    Without dropout the key is left alone, so that a deterministic network has no trace of it.

    Args:
      key: the record's key for the whole network.
      x: what to drop from.
      rate: the probability of dropping an entry.
      place: where in the network this is; different places draw independent masks.

    Example:
      >>> dropout(jax.random.key(0), jnp.ones(3), rate=0.0, place=0)
      Array([1., 1., 1.], dtype=float32)
    """
    if rate == 0.0:
        return x
    keep = jax.random.bernoulli(jax.random.fold_in(key, place), 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0)


def mean_embedding(table: Array, tokens: Array) -> Array:
    """Returns the mean row of ``table`` over the tokens that are not padding.

    A negative token is padding; with nothing but padding the mean is zero. A token beyond the
    table gives NaN, so that its record contributes nothing rather than another word's row.

    Example:
      >>> mean_embedding(jnp.array([[1.0, 0.0], [3.0, 2.0]]), jnp.array([0, 1, -1]))
      Array([2., 1.], dtype=float32)
    """
    present = tokens >= 0
    rows = jnp.take(table, jnp.where(present, tokens, 0), axis=0, mode="fill", fill_value=jnp.nan)
    total = jnp.sum(jnp.where(present[:, None], rows, 0.0), axis=0)
    return total / jnp.maximum(jnp.sum(present), 1)
