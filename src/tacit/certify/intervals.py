"""Interval bounds: between what numbers the outputs of a network lie, for a box of inputs.

Convolutions and averages are affine: their centre moves by themselves and their radius by their
absolute kernels. The modulus is least and greatest at the points of a rectangle nearest to and
farthest from zero. The normalisation is bounded by the ranges of its numerator and denominator.

As for layers, the bounds hold for floating point. A Fourier transform of n numbers is presumed to
be off by at most 8 u log2(n) of its Euclidean norm, as is proven for the algorithm of Cooley and
Tukey (Higham, Accuracy and stability of numerical algorithms, 2002, theorem 24.2) and some thirty
times what is observed.

A box goes through the network layer by layer. An affine layer moves its centre by the layer itself
and its radius by the layer with absolute weights; a monotone layer maps its ends. The bounds hold
for floating point as it is, not only for real numbers: every radius grows by a bound on the
rounding, both of these bounds and of the network that they are about.

The bound is the textbook one for sums of n products in any order, 4 (n + 4) u of the magnitudes
added (u is half the spacing of floats at 1), so it costs as much as a box wider by 2e-4 of each
number at n = 784 in float32. It presumes products in the precision of the parameters: where an
accelerator rounds them further, set JAX's ``default_matmul_precision`` to ``"highest"``.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from tacit.errors import InvalidArgumentError
from tacit.models.base import FrontEnd, Network
from tacit.models.front_end import Whitened
from tacit.models.layers import Activation, Layer
from tacit.models.scattering import EPSILON, Scattering, average, convolve, scatter
from tacit.models.steps import Activate, Affine, Convolve, DenseMap, Encode, Step, steps_of
from tacit.robust.balls import Box, around, unit_roundoff
from tacit.typing import Array, Key, Params

__all__ = [
    "bound_features",
    "bound_step",
    "bounds_features_of",
    "interval_bounds",
    "interval_bounds_over_weights",
]

FeatureBounds: TypeAlias = Callable[[Any, Box], Box]

_FEATURE_BOUNDS: dict[type, FeatureBounds] = {}


def bounds_features_of(kind: type) -> Callable[[FeatureBounds], FeatureBounds]:
    """Registers a function that bounds the features of a front end, for certificates behind it.

    Guarantee:
      It is used for this very class: a subclass may compute other features. The function owes what
      `bound_features` promises.

    Args:
      kind: the class of the front end.
    """

    def register(function: FeatureBounds) -> FeatureBounds:
        _FEATURE_BOUNDS[kind] = function
        return function

    return register


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
    bounds = _FEATURE_BOUNDS.get(type(front_end))
    if bounds is None:
        known = ", ".join(kind.__name__ for kind in _FEATURE_BOUNDS)
        raise InvalidArgumentError(
            f"the bounds of features are known for {known}; got {front_end!r}. Register a function"
            " that bounds those of your own with tacit.certify.intervals.bounds_features_of."
        )
    return bounds(front_end, box)


@bounds_features_of(Scattering)
def _scattered(front_end: Scattering, box: Box) -> Box:
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


@bounds_features_of(Whitened)
def _whitened(front_end: Whitened, box: Box) -> Box:
    """Bounds the affine map; its mean and matrix are rounded to the precision of the box too."""
    whitening, features = front_end.map, bound_features(front_end.base, box)
    vector = Box(*(jnp.ravel(end) for end in features))
    mean = jnp.asarray(whitening.mean, vector.lower.dtype)
    matrix = jnp.asarray(whitening.matrix, vector.lower.dtype)
    slack = 4 * (len(mean) + 8) * unit_roundoff(vector.lower)
    centre, radius = vector.centre, vector.radius
    wider = radius + slack * (jnp.abs(centre) + radius + jnp.abs(mean))
    return around((centre - mean) @ matrix, wider @ jnp.abs(matrix))


# Monotone activations: those that floating point computes exactly, and the rest.
_EXACT = (Activation.RELU, Activation.IDENTITY)
_ROUNDED = (Activation.TANH, Activation.SOFTPLUS, Activation.ELU, Activation.SIGMOID)
# Where GELU, in the form with tanh that `Activation` has, is smallest; it falls, then rises.
_GELU_MINIMUM = -0.75246142


def interval_bounds(network: Network, params: Params, box: Box, key: Key) -> Box:
    """Returns bounds of ``network.apply(params, x, key)`` for every ``x`` in a box.

    Guarantee:
      No input in the box has an output outside the bounds, rounding included (underflow aside).

    Args:
      network: an `MLP` or a `CNN` with any of their layers, behind a `FixedFrontEnd` or not, or
        another network that has ``steps``; others are refused.
      params: the network's parameters.
      box: of ONE input; both ends have the input's shape.
      key: draws the dropped units, the same as in ``apply`` with this key.

    Example:
      >>> from tacit.models import MLP
      >>> network = MLP(num_inputs=2, num_outputs=1)
      >>> params = {"dense_0": {"kernel": jnp.array([[1.0], [-2.0]]), "bias": jnp.zeros(1)}}
      >>> box = Box(jnp.array([0.0, 0.0]), jnp.array([1.0, 1.0]))
      >>> lower, upper = interval_bounds(network, params, box, jax.random.key(0))
      >>> round(float(lower[0]), 3), round(float(upper[0]), 3)
      (-2.0, 1.0)

    Reference:
      Gowal et al., Scalable verified training for provably robust image classification, ICCV 2019,
      equations 6 and 7.
    """
    for step in steps_of(network):
        box = bound_step(step, params, box, key)
    return box


def bound_step(step: Step, params: Params, box: Box, key: Key) -> Box:
    """Returns bounds of one step's outputs."""
    if isinstance(step, Affine):
        return _bound_affine(step, params, box, key)
    match step:
        case Encode():
            return bound_features(step.front_end, box)
        case Activate(activation=Activation.GELU):
            return _bound_gelu(step.activation, box)
        case Activate(activation=activation) if activation in _ROUNDED:
            lower, upper = activation(box.lower), activation(box.upper)
            return _widened(Box(lower, upper), jnp.maximum(jnp.abs(lower), jnp.abs(upper)))
        case Activate(activation=activation) if activation not in _EXACT:
            raise InvalidArgumentError(
                f"activation must have interval bounds; got {activation!r}, which has none. "
                "Use Activation.RELU."
            )
        case _:  # maxima and changes of shape are exact too
            return Box(*(step(params, end, key) for end in box))


def interval_bounds_over_weights(
    network: Network, params_lower: Params, params_upper: Params, box: Box, key: Key
) -> Box:
    """Returns bounds of the outputs for every input in a box and all parameters in another.

    Guarantee:
      As for `interval_bounds`, for every parameter tree between the two. A product of two
      intervals is bounded around the product of their centres, which is at most half as wide
      again as the tightest interval, and is dense algebra.

    Args:
      network: an `MLP` or a `CNN`.
      params_lower: the least value of every parameter.
      params_upper: the greatest value of every parameter.
      box: of ONE input.
      key: draws the dropped units.

    Example:
      >>> from tacit.models import MLP
      >>> network = MLP(num_inputs=1, num_outputs=1)
      >>> low = {"dense_0": {"kernel": jnp.array([[1.0]]), "bias": jnp.zeros(1)}}
      >>> high = {"dense_0": {"kernel": jnp.array([[3.0]]), "bias": jnp.zeros(1)}}
      >>> box = Box(jnp.array([2.0]), jnp.array([2.0]))
      >>> bounds = interval_bounds_over_weights(network, low, high, box, jax.random.key(0))
      >>> round(float(bounds.lower[0]), 3), round(float(bounds.upper[0]), 3)
      (2.0, 6.0)

    Reference:
      Rump, Fast and parallel interval arithmetic, BIT 1999, section 2.
    """
    params = jax.tree.map(lambda low, high: Box(low, high).centre, params_lower, params_upper)
    spread = jax.tree.map(lambda low, high: Box(low, high).radius, params_lower, params_upper)
    for step in steps_of(network):
        if isinstance(step, Affine):
            box = _bound_affine(step, params, box, key, spread)
        else:
            box = bound_step(step, params, box, key)
    return box


def _bound_affine(
    step: Affine, params: Params, box: Box, key: Key, spread: Params | None = None
) -> Box:
    """Bounds an affine step by its centre and radius, for parameters that vary by ``spread``."""
    slack = 4 * (step.num_terms(params) + 4) * unit_roundoff(box.lower)
    centre, radius = box.centre, box.radius
    magnitude = jnp.abs(centre)
    out = step(params, centre, key)
    wider = radius + slack * (magnitude + radius)
    if not isinstance(step, DenseMap | Convolve):
        return around(out, step({}, wider, key))
    kernel, bias = (jnp.abs(params[step.name][part]) for part in ("kernel", "bias"))
    if spread is None:
        return around(out, step({step.name: _layer(kernel, slack * bias)}, wider, key))
    own = spread[step.name]
    largest = _layer(kernel + own["kernel"], slack * (bias + own["bias"]) + own["bias"])
    moved = _layer(own["kernel"], jnp.zeros_like(bias))
    by_weights = step({step.name: moved}, magnitude * (1 + slack), key)
    return around(out, step({step.name: largest}, wider, key) + by_weights)


def _layer(kernel: Array, bias: Array) -> Layer:
    return {"kernel": kernel, "bias": bias}


def _bound_gelu(activation: Activation, box: Box) -> Box:
    """Bounds the one activation that is not monotone: it falls to its minimum, then rises."""
    lowest = activation(jnp.clip(_GELU_MINIMUM, box.lower, box.upper))
    highest = jnp.maximum(activation(box.lower), activation(box.upper))
    # Its rounding is relative to its input: for negative ones the factor cancels.
    return _widened(Box(lowest, highest), jnp.maximum(jnp.abs(box.lower), jnp.abs(box.upper)))


def _widened(box: Box, magnitude: Array) -> Box:
    """Allows for the few units in the last place by which library functions may be wrong."""
    slack = 16 * unit_roundoff(magnitude) * magnitude
    return Box(box.lower - slack, box.upper + slack)
