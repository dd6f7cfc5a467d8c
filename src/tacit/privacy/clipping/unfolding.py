"""Unfolding: a convolution as patches and a matrix product.

The rules for matrix products then serve convolutions as well: a kernel's gradient at a position is
the outer product of a patch and a cotangent. Patches are made once; forward pass, norms and sums
all read them. On a CPU this is also the fast way inside a loop, where XLA computes the gradients of
its own convolutions on a single thread.

Patches are made one axis of the image after the other, from whole strides: for a kernel of k and
a stride of s, ``ceil(k / s)`` shifted copies of an axis hold what ``k`` strided ones would.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend import core

from tacit.privacy.lattice import materialised
from tacit.typing import Array

__all__ = ["is_unfoldable", "unfolded"]


def is_unfoldable(equation: core.JaxprEqn) -> bool:
    """Whether an operation is a convolution without groups, whose input is not dilated."""
    params = equation.params
    return (
        equation.primitive.name == "conv_general_dilated"
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and all(step == 1 for step in params["lhs_dilation"])
    )


def unfolded(image: Array, kernel: Array, params: dict[str, Any]) -> Array:
    """Returns what a convolution with these parameters returns, up to rounding.

    Example:
      >>> image, kernel = jnp.arange(5.0).reshape(1, 1, 5), jnp.ones((1, 1, 2))
      >>> names = lax.conv_dimension_numbers(image.shape, kernel.shape, ("NCH", "OIH", "NCH"))
      >>> params = {"dimension_numbers": names, "padding": ((0, 0),), "window_strides": (2,),
      ...           "rhs_dilation": (1,), "precision": None, "preferred_element_type": None}
      >>> print(unfolded(image, kernel, params))
      [[[1. 5.]]]
    """
    numbers = params["dimension_numbers"]
    batch, channel, *space = numbers.lhs_spec
    image = image.transpose(batch, *space, channel)
    for axis, padding in enumerate(params["padding"], start=1):
        image = _padded(image, axis, padding)
    # Or each of the windows would compute anew what it holds.
    image = materialised(image)
    out_axis, in_axis, *kernel_space = numbers.rhs_spec
    for i, axis in enumerate(kernel_space):
        image = _windows(
            image,
            i + 1,
            length=kernel.shape[axis],
            stride=params["window_strides"][i],
            dilation=params["rhs_dilation"][i],
        )
    # Windows of a later axis are outside of those of an earlier one.
    flat = kernel.transpose(*reversed(kernel_space), in_axis, out_axis)
    out = lax.dot_general(
        image,
        flat.reshape(-1, flat.shape[-1]),
        (((image.ndim - 1,), (0,)), ((), ())),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )
    # From (batch, *space, feature) to the order that was asked for.
    out_batch, out_feature, *out_space = numbers.out_spec
    order = [0] * out.ndim
    for place, axis in zip((out_batch, *out_space, out_feature), range(out.ndim), strict=True):
        order[place] = axis
    return out.transpose(order)


def _padded(image: Array, axis: int, padding: tuple[int, int]) -> Array:
    """Pads an axis with zeros; a negative padding cuts."""
    if padding == (0, 0):
        return image
    widths = [(0, 0, 0)] * image.ndim
    widths[axis] = (*padding, 0)
    return lax.pad(image, jnp.zeros((), image.dtype), widths)


def _windows(image: Array, axis: int, *, length: int, stride: int, dilation: int) -> Array:
    """Returns the windows along one axis; their entries lie before the channels."""
    reach = (length - 1) * dilation + 1
    count = (image.shape[axis] - reach) // stride + 1
    if dilation > 1 or length < stride:
        starts = [entry * dilation for entry in range(length)]
        stop = (count - 1) * stride + 1
        return jnp.concatenate(
            [
                lax.slice_in_dim(image, start, start + stop, stride=stride, axis=axis)
                for start in starts
            ],
            axis=-1,
        )
    # In whole strides: an axis of count + shifts - 1 strides, with the rest of each as channels.
    shifts = math.ceil(length / stride)
    strides = count + shifts - 1
    channels = image.shape[-1]
    missing = strides * stride - image.shape[axis]
    image = _padded(image, axis, (0, missing))
    if stride > 1:
        image = jnp.moveaxis(
            image.reshape(*image.shape[:axis], strides, stride, *image.shape[axis + 1 :]),
            axis + 1,
            -2,
        )
        image = image.reshape(*image.shape[:-2], stride * channels)
    copies = [lax.slice_in_dim(image, shift, shift + count, axis=axis) for shift in range(shifts)]
    whole = jnp.concatenate(copies, axis=-1)
    return whole if whole.shape[-1] == length * channels else whole[..., : length * channels]
