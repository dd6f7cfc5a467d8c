"""Linear bounds: output bounds that remember how layers depend on each other (CROWN).

Intervals forget that two units see the same input; a linear function of the input does not. A row
of coefficients on the outputs is carried backwards through the network: exactly through affine
layers, by the line above or below, as its signs demand, through the others. On the way it meets
the interval bounds of every layer, and the best bound of all is kept, so that the result is never
wider than intervals.

As for intervals, the bounds hold for floating point: each layer adds a bound on the rounding of the
network and of the row, proportional to the magnitudes that are summed.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tacit import _check
from tacit.certify.intervals import bound_step
from tacit.errors import InvalidArgumentError
from tacit.models.base import Network
from tacit.models.layers import Activation, windows
from tacit.models.steps import Activate, Affine, Encode, Maximum, Step, steps_of
from tacit.rng import seeded_key
from tacit.robust.balls import Box
from tacit.typing import Array, Key, Params

__all__ = ["EuclideanBall", "Relaxation", "linear_bounds", "relax", "windows_of"]

_NUM_BISECTIONS = 20


class _Line(NamedTuple):
    """``sum(slope * x) + shift``; the last axis of ``slope`` runs over what one output reads."""

    slope: Array
    shift: Array


class Relaxation(NamedTuple):
    """Lines below and above a function on a box, rounding included."""

    lower: _Line
    upper: _Line


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


def _elementwise(slope: Array, shift: Array) -> _Line:
    return _Line(slope[..., None], shift)


def _chord(activation: Activation, box: Box) -> _Line:
    low, high = activation(box.lower), activation(box.upper)
    width = box.upper - box.lower
    slope = jnp.where(width > 0, (high - low) / jnp.where(width > 0, width, 1.0), 0.0)
    return _elementwise(slope, low - slope * box.lower)


def _tangent(activation: Activation, at: Array) -> _Line:
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
    return Relaxation(_Line(turned.slope, twice_centre - turned.shift), upper)


def _above_s_shaped(activation: Activation, box: Box) -> _Line:
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
    return _Line(
        jnp.where(has_tangent[..., None], tangent.slope, chord.slope),
        jnp.where(has_tangent, tangent.shift, chord.shift),
    )


def _relax_maximum(step: Maximum, box: Box) -> Relaxation:
    lows, highs = windows_of(step, box.lower), windows_of(step, box.upper)
    best = jax.nn.one_hot(jnp.argmax(lows, axis=-1), lows.shape[-1], dtype=lows.dtype)
    others = jnp.max(jnp.where(best > 0, -jnp.inf, highs), axis=-1)
    is_decided = jnp.max(lows, axis=-1) >= others
    return Relaxation(
        _Line(best, jnp.zeros_like(others)),
        _Line(
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
    return Relaxation(_Line(lower, low_shift - pad), _Line(upper, high_shift + pad))


_NUM_ROWS_AT_ONCE = 256


class EuclideanBall(NamedTuple):
    """All inputs within a distance of a centre."""

    centre: Array
    radius: Array | float


class _Passed(NamedTuple):
    """A step on the way back: the box of its inputs, and how a row passes it.

    Attributes:
      box: bounds of the step's inputs.
      back: maps a row of coefficients on the outputs to one on the inputs, and what to add so
        that it stays an upper bound.
    """

    box: Box
    back: Callable[[Array], tuple[Array, Array]]


def linear_bounds(
    network: Network,
    params: Params,
    box: Box,
    key: Key,
    *,
    ball: EuclideanBall | None = None,
    specification: Array | None = None,
    max_rows: int = 2048,
) -> Box:
    """Returns bounds of ``network.apply(params, x, key)``, mostly far tighter than intervals.

    Guarantee:
      No input in the box (and in the ball) has an output outside the bounds, rounding included
      (underflow aside). The bounds lie within those of `interval_bounds`.

    Args:
      network: an `MLP` or a `CNN`; behind a `FixedFrontEnd`, bounds are linear in the features,
        which have interval bounds, and of a ball its box alone counts.
      params: the network's parameters.
      box: of ONE input.
      key: draws the dropped units, the same as in ``apply`` with this key.
      ball: further confines the inputs, for an adversary with a Euclidean norm.
      specification: a matrix ``(num_rows, num_outputs)``; bounds are then of its product with the
        outputs. Differences of logits are bounded far better than the logits themselves.
      max_rows: hidden layers with at most so many units get linear bounds of their own, at the
        cost of one backward pass for each unit; larger ones keep interval bounds.

    Example:
      >>> from tacit.models import MLP
      >>> from tacit.certify.intervals import interval_bounds
      >>> network = MLP(num_inputs=2, hidden=(2,), num_outputs=1)
      >>> params = {  # the outputs are relu(x + y) - relu(x + y) = 0
      ...     "dense_0": {"kernel": jnp.ones((2, 2)), "bias": jnp.array([9.0, 9.0])},
      ...     "dense_1": {"kernel": jnp.array([[1.0], [-1.0]]), "bias": jnp.zeros(1)},
      ... }
      >>> box, key = Box(-jnp.ones(2), jnp.ones(2)), jax.random.key(0)
      >>> round(float(interval_bounds(network, params, box, key).upper[0]), 3)
      4.0
      >>> tight = jax.jit(lambda params: linear_bounds(network, params, box, key))(params)
      >>> round(float(tight.upper[0]), 3)
      0.0

    Reference:
      Zhang et al., Efficient neural network robustness certification with general activation
      functions, NeurIPS 2018, theorem 3.2.
    """
    _check.positive_integer(max_rows=max_rows)
    if specification is not None and specification.shape[1:] != (network.num_outputs,):
        raise InvalidArgumentError(
            f"specification must be a matrix with a column for each of the {network.num_outputs} "
            f"outputs; got shape {specification.shape}."
        )
    passed: list[_Passed] = []
    steps = steps_of(network)
    if isinstance(steps[0], Encode):
        # Rows start behind the front end, whose features have intervals only: of the ball, its box.
        box, ball, steps = bound_step(steps[0], params, box, key), None, steps[1:]
    is_curved = ball is not None  # until then, intervals are exact
    for step in steps:
        if isinstance(step, Activate | Maximum):
            if is_curved and box.lower.size <= max_rows:
                box = _refined(passed, box, ball)
            is_curved = True
        passed.append(_passed(step, params, box, key))
        box = bound_step(step, params, box, key)
    if specification is None:
        return _refined(passed, box, ball)
    return _bounds_of(specification.astype(box.lower.dtype), passed, box, ball)


def _refined(passed: list[_Passed], box: Box, ball: EuclideanBall | None) -> Box:
    """Returns the part of a box that its linear bounds leave, with a row for each entry."""
    rows = jnp.eye(box.lower.size, dtype=box.lower.dtype)
    bounds = _bounds_of(rows, passed, box, ball)
    return box.intersect(Box(*(end.reshape(box.lower.shape) for end in bounds)))


def _bounds_of(rows: Array, passed: list[_Passed], box: Box, ball: EuclideanBall | None) -> Box:
    """Bounds the products of rows with the outputs of the steps so far, which are in ``box``."""

    def upper_of(row: Array) -> Array:
        row, total = row.reshape(box.lower.shape), jnp.zeros((), rows.dtype)
        best = _over_box(row, box)
        for step in reversed(passed):
            row, shift = step.back(row)
            total = total + shift
            best = jnp.minimum(best, total + _over_box(row, step.box))
        if ball is not None:
            best = jnp.minimum(best, total + _over_ball(row, ball))
        return best

    both = jnp.concatenate([rows, -rows])
    if len(both) <= _NUM_ROWS_AT_ONCE:
        uppers = jax.vmap(upper_of)(both)
    else:
        uppers = lax.map(upper_of, both, batch_size=_NUM_ROWS_AT_ONCE)
    return Box(-uppers[len(rows) :], uppers[: len(rows)])


def _passed(step: Step, params: Params, box: Box, key: Key) -> _Passed:
    size = jnp.maximum(jnp.abs(box.lower), jnp.abs(box.upper))
    if isinstance(step, Activate | Maximum):
        lower, upper = relax(step, box)
        _, pull = jax.vjp(lambda x: windows_of(step, x), box.lower)
        steepest = jnp.maximum(jnp.abs(lower.slope), jnp.abs(upper.slope))
        magnitude = jnp.sum(steepest * windows_of(step, size), axis=-1)
        magnitude += jnp.maximum(jnp.abs(lower.shift), jnp.abs(upper.shift))
        slack = _slack(magnitude.size + lower.slope.shape[-1], magnitude)

        def bend(row: Array) -> tuple[Array, Array]:
            is_up = row >= 0
            slope = jnp.where(is_up[..., None], upper.slope, lower.slope)
            shift = jnp.where(is_up, upper.shift, lower.shift)
            (back,) = pull(row[..., None] * slope)
            return back, jnp.sum(row * shift) + slack * jnp.sum(jnp.abs(row) * magnitude)

        return _Passed(box, bend)
    zeros = jnp.zeros_like(box.lower)
    outs, pull = jax.vjp(lambda x: step(params, x, key), zeros)
    if not isinstance(step, Affine):  # a change of shape is exact
        return _Passed(box, lambda row: (pull(row)[0], jnp.zeros((), row.dtype)))
    magnitude = step(jax.tree.map(jnp.abs, params), size, key)
    slack = _slack(step.num_terms(params) + 2 * outs.size, magnitude)

    def back(row: Array) -> tuple[Array, Array]:
        return pull(row)[0], jnp.sum(row * outs) + slack * jnp.sum(jnp.abs(row) * magnitude)

    return _Passed(box, back)


def _over_box(row: Array, box: Box) -> Array:
    """Returns the largest product of a row with a point of a box."""
    centre, radius = box.centre, box.radius
    wider = radius + _slack(row.size, row) * (jnp.abs(centre) + radius)
    return jnp.sum(row * centre) + jnp.sum(jnp.abs(row) * wider)


def _over_ball(row: Array, ball: EuclideanBall) -> Array:
    """Returns the largest product of a row with a point of a ball."""
    slack = _slack(row.size, row)
    centre = ball.centre.reshape(row.shape).astype(row.dtype)
    reach = ball.radius * jnp.sqrt(jnp.sum(jnp.square(row))) * (1 + slack)
    return jnp.sum(row * centre) + slack * jnp.sum(jnp.abs(row * centre)) + reach


def _slack(num_terms: int, like: Array) -> float:
    """Bounds the relative rounding of sums of so many products, in any order, with room to add."""
    return (num_terms + 32) * float(np.finfo(like.dtype).eps)
