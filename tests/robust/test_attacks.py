"""Attacks: the known worst case of a linear loss, and points that are never better than none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import InvalidArgumentError
from tacit.models import MLP, Categorical
from tacit.rng import seeded_key
from tacit.robust import FGSM, L2, PGD, Linf

WEIGHTS = jnp.array([1.0, -2.0, 0.5, 3.0])
X = jnp.array([0.5, 0.5, 0.5, 0.9])
WORST = {
    "Linf": (Linf(radius=0.2), X + 0.2 * jnp.sign(WEIGHTS)),
    "Linf in a range": (
        Linf(radius=0.2, low=0.0, high=1.0),
        jnp.minimum(X + 0.2 * jnp.sign(WEIGHTS), 1.0),
    ),
    "L2": (L2(radius=0.2), X + 0.2 * WEIGHTS / jnp.linalg.norm(WEIGHTS)),
}


def linear(x):
    return x @ WEIGHTS + 7.0


@pytest.mark.parametrize(("ball", "worst"), WORST.values(), ids=WORST)
@pytest.mark.parametrize(
    "attack",
    [lambda ball: FGSM(ball=ball), lambda ball: PGD(ball=ball, random_start=False)],
    ids=["FGSM", "PGD"],
)
def test_the_worst_point_of_a_linear_loss_is_found(attack, ball, worst):
    np.testing.assert_allclose(attack(ball)(seeded_key(0), linear, X), worst, atol=1e-6)


@pytest.mark.parametrize(("ball", "worst"), WORST.values(), ids=WORST)
def test_a_random_start_ends_near_the_worst_point(ball, worst):
    found = PGD(ball=ball)(seeded_key(0), linear, X)
    # On a sphere each step shrinks the angle to the worst point by 1 + 2.5 / num_steps: from the
    # far side to at most exp(-2.4) of pi, where the loss has all but 4 in 100 of its gain.
    assert float(linear(found) - linear(X)) >= 0.96 * float(linear(worst) - linear(X))


@pytest.fixture(scope="module")
def losses():
    """Losses of a small network at 64 inputs: clean and under each attack."""
    network = MLP(num_inputs=4, hidden=(32,), num_outputs=3)
    params = jax.tree.map(lambda leaf: 3.0 * leaf, network.init(seeded_key(0)))
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.uniform(0, 1, (64, 4)), jnp.float32)
    y = jnp.asarray(generator.integers(0, 3, 64))
    ball = Linf(radius=0.3, low=0.0, high=1.0)
    attacks = {
        "FGSM": FGSM(ball=ball),
        "PGD": PGD(ball=ball, num_steps=20),
        "PGD with restarts": PGD(ball=ball, num_steps=20, num_restarts=5),
        "PGD from the input": PGD(ball=ball, num_steps=20, random_start=False),
        "PGD with one bad step": PGD(ball=ball, num_steps=1, step_size=1e3, random_start=False),
    }

    @jax.jit
    def measured(x, y, keys):
        def one(x, y, key):
            def loss(x):
                return -Categorical(num_classes=3).log_prob({}, network.apply(params, x, key), y)

            found = {name: attack(key, loss, x) for name, attack in attacks.items()}
            found["clean"] = x
            return {name: loss(point) for name, point in found.items()}, found["PGD"]

        return jax.vmap(one)(x, y, keys)

    values, points = measured(x, y, jax.random.split(seeded_key(1), 64))
    assert float(jnp.abs(points - x).max()) <= 0.3 + 1e-6
    assert float(points.min()) >= 0.0
    assert float(points.max()) <= 1.0
    return values


def test_pgd_is_at_least_as_bad_as_fgsm_in_the_mean(losses):
    assert float(losses["PGD"].mean()) >= float(losses["FGSM"].mean())
    assert float(losses["FGSM"].mean()) > float(losses["clean"].mean()) + 0.1


def test_pgd_never_returns_a_better_point_than_the_input(losses):
    for name in losses:
        if name.startswith("PGD"):
            assert bool(jnp.all(losses[name] >= losses["clean"])), name


def test_restarts_never_make_an_attack_weaker(losses):
    # The first restart is the same as without more of them.
    assert bool(jnp.all(losses["PGD with restarts"] >= losses["PGD"]))
    assert bool(jnp.any(losses["PGD with restarts"] > losses["PGD"]))


def test_a_loss_that_is_nowhere_a_number_leaves_the_input_alone():
    x = PGD(ball=Linf(radius=0.2))(seeded_key(0), lambda x: jnp.nan * jnp.sum(x), X)
    np.testing.assert_array_equal(x, X)


def test_an_attack_without_a_random_start_does_not_touch_the_key():
    attack = PGD(ball=Linf(radius=0.2), num_steps=2, random_start=False)
    program = jax.make_jaxpr(lambda key, x: attack(key, linear, x))(seeded_key(0), X)
    assert "random" not in str(program)


@pytest.mark.parametrize("x", [jnp.arange(3), {"image": X}], ids=["tokens", "a tree"])
def test_inputs_without_a_ball_around_them_are_refused(x):
    with pytest.raises(InvalidArgumentError, match="floating"):
        FGSM(ball=Linf(radius=0.1))(seeded_key(0), jnp.sum, x)


def test_restarts_that_would_all_be_the_same_are_refused():
    with pytest.raises(InvalidArgumentError, match="num_restarts"):
        PGD(ball=Linf(radius=0.1), num_restarts=2, random_start=False)
