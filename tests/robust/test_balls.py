"""Balls: every point they give is within the radius, within the range, and stays where it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import InvalidArgumentError
from tacit.rng import seeded_key
from tacit.robust import L2, Linf

BALLS = {
    "Linf": Linf(radius=0.3),
    "Linf in a range": Linf(radius=0.3, low=0.0, high=1.0),
    "L2": L2(radius=0.7),
    "L2 in a range": L2(radius=0.7, low=0.0, high=1.0),
    "a point": L2(radius=0.0, low=0.0, high=1.0),
}
balls = pytest.mark.parametrize("ball", BALLS.values(), ids=BALLS)

generator = np.random.default_rng(0)
# Some centres lie beyond the range: their own values must not be forced into it.
CENTRES = jnp.asarray(generator.uniform(-0.2, 1.2, (300, 2, 3)), jnp.float32)
POINTS = jnp.asarray(generator.normal(0.5, 1.0, (300, 2, 3)), jnp.float32)
TOLERANCE = 1e-6


def distance(ball, x):
    move = (x - CENTRES).reshape(len(x), -1)
    return jnp.linalg.norm(move, ord=jnp.inf if isinstance(ball, Linf) else 2, axis=1)


def assert_inside(ball, x):
    assert float(distance(ball, x).max()) <= ball.radius + TOLERANCE
    assert bool(jnp.all(x >= jnp.minimum(ball.low, CENTRES)))
    assert bool(jnp.all(x <= jnp.maximum(ball.high, CENTRES)))


@balls
def test_a_projected_point_is_in_the_ball_and_in_the_range(ball):
    assert_inside(ball, jax.vmap(ball.project)(POINTS, CENTRES))


@balls
def test_projecting_twice_is_projecting_once(ball):
    once = jax.vmap(ball.project)(POINTS, CENTRES)
    np.testing.assert_allclose(jax.vmap(ball.project)(once, CENTRES), once, atol=TOLERANCE)


@balls
def test_a_sampled_point_is_in_the_ball_and_in_the_range(ball):
    keys = jax.random.split(seeded_key(0), len(CENTRES))
    assert_inside(ball, jax.vmap(ball.sample)(keys, CENTRES))


@balls
def test_the_box_holds_every_projected_point(ball):
    box = jax.vmap(ball.box)(CENTRES)
    x = jax.vmap(ball.project)(POINTS, CENTRES)
    assert bool(jnp.all((x >= box.lower - TOLERANCE) & (x <= box.upper + TOLERANCE)))


@balls
def test_a_step_up_has_the_asked_norm_and_goes_along_the_gradient(ball):
    gradient = POINTS[0] * 1e-30  # squares of this underflow
    move = ball.ascend(gradient, 0.25)
    order = jnp.inf if isinstance(ball, Linf) else 2
    np.testing.assert_allclose(jnp.linalg.norm(move.ravel(), ord=order), 0.25, rtol=1e-5)
    assert float(jnp.sum(move * POINTS[0])) > 0


@balls
@pytest.mark.parametrize("bad", [0.0, jnp.nan])
def test_a_gradient_that_says_nothing_moves_nothing(ball, bad):
    np.testing.assert_array_equal(ball.ascend(jnp.full(3, bad), 1.0), jnp.zeros(3))


@pytest.mark.parametrize("ball", [Linf(radius=2.0), L2(radius=2.0)], ids=["Linf", "L2"])
def test_samples_are_uniform_in_the_ball(ball):
    keys = jax.random.split(seeded_key(1), 4000)
    x = jax.vmap(ball.sample, in_axes=(0, None))(keys, jnp.zeros(3))
    order = jnp.inf if isinstance(ball, Linf) else 2
    norms = jnp.linalg.norm(x, ord=order, axis=1)
    # Uniform: the cube of the relative norm is uniform on [0, 1], mean 1/2 and variance 1/12.
    share = float(jnp.mean((norms / 2.0) ** 3))
    assert abs(share - 0.5) <= 4 * np.sqrt(1 / 12 / 4000)
    assert float(jnp.abs(x.mean(axis=0)).max()) <= 4 * 2.0 / np.sqrt(4000)


def test_the_radius_may_be_traced():
    ball = Linf(radius=1.0, low=0.0, high=1.0)
    box = jax.jit(lambda radius: ball.at(radius).box(jnp.full(2, 0.5)))(0.25)
    np.testing.assert_array_equal(box.lower, [0.25, 0.25])


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"radius": -0.1}, "radius"),
        ({"radius": float("nan")}, "radius"),
        ({"radius": 0.1, "low": 1.0, "high": 0.0}, "low"),
    ],
)
def test_a_ball_that_cannot_be_is_refused(settings, word):
    with pytest.raises(InvalidArgumentError, match=word):
        Linf(**settings)
