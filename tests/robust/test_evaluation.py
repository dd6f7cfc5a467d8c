"""Attacks on a posterior: of the mean over draws, within bounds, the same however batched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import InvalidArgumentError
from tacit.models import MLP, Bernoulli, FixedGaussian, FlatPrior, bayesian
from tacit.posterior import Posterior, predict
from tacit.robust import FGSM, PGD, Linf, attack_posterior, robust_accuracy
from tacit.samplers import Points

LINEAR = bayesian(MLP(num_inputs=2, num_outputs=1), prior=FlatPrior(), likelihood=Bernoulli())


def posterior(*kernels, model=LINEAR):
    """A posterior of one chain whose draws are linear models with these weights."""
    kernel = jnp.array(kernels, jnp.float32)[None, ..., None]
    layer = {"kernel": kernel, "bias": jnp.zeros((1, len(kernels), 1))}
    return Posterior(model=model, sampler=Points(), kept={"network": {"dense_0": layer}})


BALL = Linf(radius=0.5)
generator = np.random.default_rng(0)
X = jnp.asarray(generator.normal(size=(20, 2)), jnp.float32)
Y = jnp.asarray(X @ jnp.array([1.0, 2.0]) > 0, jnp.int32)


def test_the_gradient_is_that_of_the_mean_loss_not_of_one_draw():
    # At zero the two draws pull the first input apart with equal force, and agree on the second.
    opposed = posterior((3.0, 1.0), (-3.0, 1.0))
    for y, step in ((1, -0.5), (0, 0.5)):
        moved = attack_posterior(opposed, FGSM(ball=BALL), jnp.zeros((1, 2)), jnp.array([y]))
        np.testing.assert_array_equal(moved, [[0.0, step]])


def test_the_mean_loss_is_weighted_by_how_much_each_draw_loses():
    # Two draws against one, with the same force each: the majority decides.
    majority = posterior((3.0, 0.0), (3.0, 0.0), (-3.0, 0.0))
    moved = attack_posterior(majority, FGSM(ball=BALL), jnp.zeros((1, 2)), jnp.array([1]))
    np.testing.assert_array_equal(moved, [[-0.5, 0.0]])


def test_a_single_draw_is_attacked_at_its_known_worst_point():
    moved = attack_posterior(
        posterior((1.0, 2.0)), PGD(ball=BALL, num_steps=20), X, Y, batch_size=20
    )
    np.testing.assert_allclose(moved, X - 0.5 * jnp.where(Y == 1, 1.0, -1.0)[:, None], atol=1e-6)


def test_batching_does_not_change_an_attack():
    attack = PGD(ball=BALL, num_steps=3)
    two = posterior((1.0, 2.0), (2.0, -1.0))
    whole, parts = (attack_posterior(two, attack, X, Y, batch_size=size) for size in (20, 8))
    np.testing.assert_allclose(whole, parts, rtol=1e-6)


def test_a_draw_that_gives_the_label_no_chance_does_not_spoil_the_attack():
    # One draw is lost for good: its probability is zero in float32. The other can be attacked.
    lost = posterior((-1e4, 0.0), (0.0, 1.0))
    moved = attack_posterior(lost, FGSM(ball=BALL), jnp.array([[1.0, 1.0]]), jnp.array([1]))
    np.testing.assert_array_equal(moved, [[1.0, 0.5]])


def test_robust_accuracy_counts_inputs_that_are_right_before_and_after():
    found = robust_accuracy(posterior((1.0, 2.0)), FGSM(ball=BALL), X, Y)
    margin = np.abs(np.asarray(X @ jnp.array([1.0, 2.0])))
    np.testing.assert_array_equal(found.is_robust, margin > 0.5 * 3.0)
    assert found.accuracy == pytest.approx(np.mean(margin > 1.5))
    assert 0.0 < found.accuracy < found.clean_accuracy == 1.0
    wrong = robust_accuracy(posterior((1.0, 2.0)), FGSM(ball=BALL), X, 1 - Y)
    assert wrong.accuracy == wrong.clean_accuracy == 0.0


def test_an_attack_computed_on_another_posterior_is_weaker():
    target, other = posterior((1.0, 2.0)), posterior((2.0, -1.0))
    attack = FGSM(ball=BALL)
    own, transferred = (
        robust_accuracy(target, attack, X, Y, source=source) for source in (None, other)
    )
    np.testing.assert_array_equal(transferred.x, attack_posterior(other, attack, X, Y))
    assert own.accuracy < transferred.accuracy


def test_a_prediction_that_is_not_a_number_is_never_right():
    broken = robust_accuracy(posterior((jnp.nan, 1.0)), FGSM(ball=BALL), X, jnp.zeros(20, int))
    assert broken.accuracy == 0.0


def test_every_radius_is_served_by_one_compilation():
    from tacit.robust.attacks import _compiled_attack

    one, x, y = posterior((1.0, 2.0)), X[:7], Y[:7]
    run = _compiled_attack(LINEAR.predict, one.sampler, FGSM(ball=Linf(radius=0.0)))
    before = run._cache_size()
    for radius in (0.1, 0.2, 0.3):
        moved = attack_posterior(one, FGSM(ball=Linf(radius=radius)), x, y)
        np.testing.assert_allclose(jnp.abs(moved - x), radius, rtol=1e-5)
    assert run._cache_size() == before + 1


@pytest.fixture(scope="module")
def with_dropout():
    network = MLP(num_inputs=2, hidden=(16,), num_outputs=1, dropout=0.5)
    model = bayesian(network, prior=FlatPrior(), likelihood=Bernoulli())
    params = model.init(jax.random.key(0))
    kept = jax.tree.map(lambda leaf: leaf[None, None], params)
    return Posterior(model=model, sampler=Points(), kept=kept)


def test_the_attack_sees_the_masks_that_prediction_uses(with_dropout):
    def mean_loss(x, seed):
        chances = predict(with_dropout, x, num_draws=2, seed=seed).probabilities
        return -float(jnp.mean(jnp.log(chances[jnp.arange(20), Y])))

    attack = PGD(ball=BALL, num_steps=20)
    moved = attack_posterior(with_dropout, attack, X, Y, num_draws=2, seed=5)
    gains = [mean_loss(moved, seed) - mean_loss(X, seed) for seed in (5, 6, 7, 8)]
    assert gains[0] > max(gains[1:])


def test_a_real_target_is_attacked_by_its_density_and_has_no_accuracy():
    network = MLP(num_inputs=2, num_outputs=1)
    model = bayesian(network, prior=FlatPrior(), likelihood=FixedGaussian(std=1.0))
    real = posterior((1.0, -2.0), model=model)
    moved = attack_posterior(real, FGSM(ball=BALL), jnp.zeros((2, 2)), jnp.array([1.0, -1.0]))
    np.testing.assert_array_equal(moved, [[-0.5, 0.5], [0.5, -0.5]])
    with pytest.raises(InvalidArgumentError, match="classifier"):
        robust_accuracy(real, FGSM(ball=BALL), jnp.zeros((2, 2)), jnp.array([1.0, -1.0]))


def test_targets_of_another_number_than_inputs_are_refused():
    with pytest.raises(InvalidArgumentError, match="one row for each"):
        attack_posterior(posterior((1.0, 2.0)), FGSM(ball=BALL), X, Y[:3])
