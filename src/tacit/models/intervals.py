"""Interval bounds: between what numbers a network's outputs lie, for a box of inputs.

A box goes through the network layer by layer. An affine layer moves its centre by the layer itself
and its radius by the layer with absolute weights; a monotone layer maps its ends. The bounds hold
for floating point as it is, not only for real numbers: every radius grows by a bound on the
rounding, both of these bounds and of the network that they are about.

The bound is the textbook one for sums of n products in any order, 4 (n + 4) u of the magnitudes
added (u is half the spacing of floats at 1), so it costs as much as a box wider by 2e-4 of each
number at n = 784 in float32. It presumes products in the precision of the parameters: where an
accelerator rounds them further, set JAX's ``default_matmul_precision`` to ``"highest"``.
"""

import jax
import jax.numpy as jnp

from tacit.errors import InvalidArgumentError
from tacit.models.activations import Activation
from tacit.models.base import Network
from tacit.models.boxes import Box, around, unit_roundoff
from tacit.models.layers import Layer
from tacit.models.scattering_bounds import bound_features
from tacit.models.steps import Activate, Affine, Convolve, Dense, Encode, Step, steps_of
from tacit.typing import Array, Key, Params

__all__ = ["bound_step", "interval_bounds", "interval_bounds_over_weights"]

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
      network: an `MLP` or a `CNN` with any of their layers, behind a `FixedFrontEnd` or not;
        others are refused.
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
    if not isinstance(step, Dense | Convolve):
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
