"""Relaxations: two straight lines, between which an activation or a maximum stays over a box."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tacit.models.activations import Activation
from tacit.models.boxes import Box
from tacit.models.intervals import bound_step
from tacit.models.layers import windows
from tacit.models.steps import Activate, Maximum
from tacit.rng import seeded_key
from tacit.typing import Array

__all__ = ["Line", "Relaxation", "relax", "windows_of"]

_NUM_BISECTIONS = 20


class Line(NamedTuple):
    """``sum(slope * x) + shift``; the last axis of ``slope`` runs over what one output reads."""

    slope: Array
    shift: Array


class Relaxation(NamedTuple):
    """Lines below and above a function on a box, rounding included."""

    lower: Line
    upper: Line


def windows_of(step: Activate | Maximum, x: Array) -> Array:
    """Returns what each output of a step reads, along one more axis at the end."""
    if isinstance(step, Maximum):
        return windows(x, window=step.window, stride=step.stride)
    return x[..., None]


def relax(step: Activate | Maximum, box: Box) -> Relaxation:
    """Returns lines around a step for inputs in a box.

    Convex functions are above their tangent and below their chord. S-shaped ones are below the
    tangent that starts at the lower end, or the chord where there is none; above likewise. A
    maximum is at least the entry whose lower end is largest, and equals it where no other entry
    can exceed that. What is neither (GELU) has level lines, its interval bounds.

    Example:
      >>> box = Box(jnp.array([-1.0]), jnp.array([3.0]))
      >>> relax(Activate(Activation.RELU), box).upper.slope
      Array([[0.75]], dtype=float32)

    Reference:
      Zhang et al., Efficient neural network robustness certification with general activation
      functions, NeurIPS 2018, tables 1 and 2.
    """
    match step:
        case Maximum():
            return _relax_maximum(step, box)
        case Activate(activation=Activation.IDENTITY):
            line = _elementwise(jnp.ones_like(box.lower), jnp.zeros_like(box.lower))
            return Relaxation(line, line)
        case Activate(activation=Activation.RELU):
            # Of all lines below through the origin, this has the smaller area to the function.
            slope = jnp.where(box.upper > -box.lower, 1.0, 0.0)
            lower = _elementwise(slope, jnp.zeros_like(slope))
            return _padded(step, Relaxation(lower, _chord(step.activation, box)), box)
        case Activate(activation=Activation.SOFTPLUS | Activation.ELU):
            lower = _tangent(step.activation, box.centre)
            return _padded(step, Relaxation(lower, _chord(step.activation, box)), box)
        case Activate(activation=Activation.TANH | Activation.SIGMOID):
            return _padded(step, _relax_s_shaped(step.activation, box), box)
        case _:
            bounds = bound_step(step, {}, box, seeded_key(0))
            level = jnp.zeros_like(box.lower)
            return Relaxation(*(_elementwise(level, end) for end in bounds))


def _elementwise(slope: Array, shift: Array) -> Line:
    return Line(slope[..., None], shift)


def _chord(activation: Activation, box: Box) -> Line:
    low, high = activation(box.lower), activation(box.upper)
    width = box.upper - box.lower
    slope = jnp.where(width > 0, (high - low) / jnp.where(width > 0, width, 1.0), 0.0)
    return _elementwise(slope, low - slope * box.lower)


def _tangent(activation: Activation, at: Array) -> Line:
    value, slope = jax.jvp(activation, (at,), (jnp.ones_like(at),))
    return _elementwise(slope, value - slope * at)


def _relax_s_shaped(activation: Activation, box: Box) -> Relaxation:
    """Bounds a function that is convex left of zero, concave right of it, and odd but for a shift.

    Turned by half a circle around its centre it is itself, so that the line below is the line above
    the turned box, turned back.
    """
    twice_centre = 2 * activation(jnp.zeros(()))
    upper = _above_s_shaped(activation, box)
    turned = _above_s_shaped(activation, Box(-box.upper, -box.lower))
    return Relaxation(Line(turned.slope, twice_centre - turned.shift), upper)


def _above_s_shaped(activation: Activation, box: Box) -> Line:
    start = activation(box.lower)

    def clears_start(at: Array) -> Array:
        """Whether the tangent there is above the function at the lower end: true from some on."""
        slope, shift = _tangent(activation, at)
        return slope[..., 0] * box.lower + shift >= start

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (ends[0] + ends[1])
        clears = clears_start(middle)
        return jnp.where(clears, ends[0], middle), jnp.where(clears, middle, ends[1])

    first = jnp.clip(0.0, box.lower, box.upper)
    _, touch = lax.fori_loop(0, _NUM_BISECTIONS, halve, (first, box.upper))
    chord, tangent = _chord(activation, box), _tangent(activation, jnp.maximum(touch, box.centre))
    has_tangent = clears_start(box.upper) & (box.upper > 0)
    return Line(
        jnp.where(has_tangent[..., None], tangent.slope, chord.slope),
        jnp.where(has_tangent, tangent.shift, chord.shift),
    )


def _relax_maximum(step: Maximum, box: Box) -> Relaxation:
    lows, highs = windows_of(step, box.lower), windows_of(step, box.upper)
    best = jax.nn.one_hot(jnp.argmax(lows, axis=-1), lows.shape[-1], dtype=lows.dtype)
    others = jnp.max(jnp.where(best > 0, -jnp.inf, highs), axis=-1)
    is_decided = jnp.max(lows, axis=-1) >= others
    return Relaxation(
        Line(best, jnp.zeros_like(others)),
        Line(
            jnp.where(is_decided[..., None], best, 0.0),
            jnp.where(is_decided, 0.0, jnp.max(highs, axis=-1)),
        ),
    )


def _padded(step: Activate, relaxation: Relaxation, box: Box) -> Relaxation:
    """Moves the lines apart by more than the function and they themselves may be rounded."""
    size = jnp.maximum(jnp.abs(box.lower), jnp.abs(box.upper))
    value = jnp.abs(step.activation(box.lower)) + jnp.abs(step.activation(box.upper))
    unit = 0.5 * float(np.finfo(size.dtype).eps)
    (lower, low_shift), (upper, high_shift) = relaxation
    steepest = jnp.maximum(jnp.abs(lower[..., 0]), jnp.abs(upper[..., 0]))
    pad = 16 * unit * ((1 + steepest) * size + value)
    return Relaxation(Line(lower, low_shift - pad), Line(upper, high_shift + pad))
