"""Bounds of scattering features: between what numbers they lie, for a box of images.

Convolutions and averages are affine: their centre moves by themselves and their radius by their
absolute kernels. The modulus is least and greatest at the points of a rectangle nearest to and
farthest from zero. The normalisation is bounded by the ranges of its numerator and denominator.

As for layers, the bounds hold for floating point. A Fourier transform of n numbers is presumed to
be off by at most 8 u log2(n) of its Euclidean norm, as is proven for the algorithm of Cooley and
Tukey (Higham, Accuracy and stability of numerical algorithms, 2002, theorem 24.2) and some thirty
times what is observed.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from tacit.models.boxes import Box, around, unit_roundoff
from tacit.models.scattering import EPSILON, average, convolve, scatter
from tacit.models.whitening import FrontEnd, Whitened, Whitening
from tacit.typing import Array

__all__ = ["bound_features"]


def bound_features(front_end: FrontEnd, box: Box) -> Box:
    """Returns bounds of ``front_end(x)`` for every image ``x`` in a box.

    Guarantee:
      No image in the box has a feature outside the bounds, rounding included (underflow aside).

    Args:
      front_end: takes the features.
      box: of ONE image.

    Example:
      >>> from tacit.models import Scattering
      >>> front_end = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=3)
      >>> bounds = bound_features(front_end, Box(jnp.zeros((8, 8)), 0.1 * jnp.ones((8, 8))))
      >>> bool((bounds.lower <= front_end(jnp.full((8, 8), 0.1))).all())
      True
    """
    if isinstance(front_end, Whitened):
        return _whitened(front_end.map, bound_features(front_end.base, box))
    padded = Box(*(front_end.padded(end) for end in box))
    features = scatter(padded, front_end.bank, wave=_wave, average=_average)
    return features if front_end.num_groups is None else _normalised(features, front_end.num_groups)


def _wave(x: Box, filters: NDArray[np.float64], stride: int) -> Box:
    kernels = np.fft.ifft2(filters)
    # Even, like the kernels' parts: one complex convolution with both yields both as its parts.
    reach = np.fft.fft2(np.abs(kernels.real) + 1j * np.abs(kernels.imag))
    unit = unit_roundoff(x.lower)
    centre = x.centre
    radius = x.radius + 4 * unit * (jnp.abs(centre) + x.radius)
    # Two transforms, the product, and the sum of frequencies; by the greatest gain of a frequency.
    num_units = 2 * 8 * math.log2(math.prod(filters.shape[1:])) + stride**2 + 16
    # Of the features that the bounds are about, which may be those of any image in the box; of
    # their centre here; and of their reach.
    norms = 2 * np.max(np.abs(filters)) * (_norm(centre) + _norm(radius))
    norms += np.max(np.abs(reach)) * _norm(radius)
    slack = num_units * unit * norms
    value, spread = convolve(centre, filters, stride), convolve(radius, reach, stride)
    return _modulus(
        around(value.real, spread.real + slack), around(value.imag, spread.imag + slack)
    )


def _norm(x: Array) -> Array:
    """Returns Euclidean norms of images, with an axis for filters."""
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=(-2, -1), keepdims=True))[..., None, :, :]


def _modulus(real: Box, imaginary: Box) -> Box:
    """Bounds the modulus over a rectangle: of its points nearest to zero and farthest from it."""
    nearest = (jnp.maximum(jnp.maximum(part.lower, -part.upper), 0) for part in (real, imaginary))
    farthest = (jnp.maximum(-part.lower, part.upper) for part in (real, imaginary))
    slack = 16 * unit_roundoff(real.lower)
    lower, upper = (jnp.abs(lax.complex(*parts)) for parts in (nearest, farthest))
    return Box((1 - slack) * lower, (1 + slack) * upper)


def _average(x: Box, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Box:
    slack = 4 * (rows.shape[1] + columns.shape[1] + 8) * unit_roundoff(x.lower)
    centre, radius = x.centre, x.radius
    wider = radius + slack * (jnp.abs(centre) + radius)
    return around(average(centre, rows, columns), average(wider, np.abs(rows), np.abs(columns)))


def _normalised(x: Box, num_groups: int) -> Box:
    """Bounds the deviations from the mean of their group, over its standard deviation.

    A deviation is affine: its own entry counts 1 - 1/n, each other one -1/n. The standard deviation
    is the Euclidean norm of the deviations over sqrt(n), and taking deviations is a projection: it
    changes by at most the norm of the change over sqrt(n). No deviation exceeds sqrt(n) standard
    deviations, as they are computed.
    """
    shape = x.lower.shape
    lower, upper = (end.reshape(*shape[:2], num_groups, -1) for end in x)
    groups = Box(lower, upper)
    size = lower.size // num_groups
    unit = unit_roundoff(lower)
    centre, radius = groups.centre, groups.radius
    largest = jnp.max(jnp.abs(centre) + radius, axis=(0, 1, 3), keepdims=True)
    slack = 8 * (size + 8) * unit

    def mean(values: Array) -> Array:
        return jnp.mean(values, axis=(0, 1, 3), keepdims=True)

    reach = (1 - 2 / size) * radius + mean(radius) + slack * largest
    deviation = centre - mean(centre)
    std = jnp.sqrt(mean(jnp.square(deviation)))
    moved = jnp.sqrt(mean(jnp.square(radius)))
    allowance = slack * (largest + std + moved)
    least = jnp.sqrt(jnp.square(jnp.maximum(std - moved - allowance, 0)) + EPSILON)
    greatest = jnp.sqrt(jnp.square(std + moved + allowance) + EPSILON)
    low, high = around(deviation, reach)
    bound = math.sqrt(size)
    scaled = Box(
        jnp.maximum(low / jnp.where(low > 0, greatest, least), -bound),
        jnp.minimum(high / jnp.where(high > 0, least, greatest), bound),
    )
    margin = slack * jnp.maximum(jnp.abs(scaled.lower), jnp.abs(scaled.upper))
    return Box(*(end.reshape(shape) for end in (scaled.lower - margin, scaled.upper + margin)))


def _whitened(whitening: Whitening, x: Box) -> Box:
    """Bounds the affine map; its mean and matrix are rounded to the precision of the box too."""
    vector = Box(*(jnp.ravel(end) for end in x))
    mean = jnp.asarray(whitening.mean, vector.lower.dtype)
    matrix = jnp.asarray(whitening.matrix, vector.lower.dtype)
    slack = 4 * (len(mean) + 8) * unit_roundoff(vector.lower)
    centre, radius = vector.centre, vector.radius
    wider = radius + slack * (jnp.abs(centre) + radius + jnp.abs(mean))
    return around((centre - mean) @ matrix, wider @ jnp.abs(matrix))
