"""Robust models: the loss is what it says, and training on it withstands attacks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tacit import Budget, FullBatch, GaussianSum, Plan, PrivacyWarning, fit, load_posterior
from tacit.certify import certified
from tacit.data import as_records
from tacit.errors import InvalidArgumentError
from tacit.inference import SGD
from tacit.models import (
    CNN,
    MLP,
    Bernoulli,
    Categorical,
    Conv,
    FixedGaussian,
    GaussianPrior,
    HeteroscedasticGaussian,
    LearntGaussian,
    NegativeBinomial,
    PoissonCounts,
    bayesian,
)
from tacit.posterior import predict
from tacit.rng import seeded_key
from tacit.robust import FGSM, L2, PGD, Linf, adversarial, robust_accuracy
from tacit.robust.training import MixedLosses, MixedProbabilities
from tacit.typing import Record

KEY = seeded_key(3)
BALL = Linf(radius=0.2, low=-1.0, high=1.0)
MIXINGS = pytest.mark.parametrize("mixing", [MixedLosses(), MixedProbabilities()], ids=str)
prior = GaussianPrior(std=1.0)


def made(likelihood, *, hidden=(8,), dropout=0.0):
    network = MLP(num_inputs=4, hidden=hidden, num_outputs=likelihood.num_outputs, dropout=dropout)
    return network, bayesian(network, prior=prior, likelihood=likelihood)


NETWORK, MODEL = made(Categorical(num_classes=3))
PARAMS = jax.tree.map(lambda leaf: 2.0 * leaf, MODEL.init(seeded_key(0)))
RECORD = Record(jnp.array([0.1, -0.5, 0.9, 0.4]), jnp.array(2), jnp.array(0.3))


def test_the_adversarial_loss_is_the_mix_of_clean_and_attacked_loss():
    robust = adversarial(MODEL, FGSM(ball=BALL), weight=0.3)

    def loss(x):
        logits = NETWORK.apply(PARAMS["network"], x, KEY)
        return -jax.nn.log_softmax(logits)[RECORD.y]

    moved = jnp.clip(RECORD.x + 0.2 * jnp.sign(jax.grad(loss)(RECORD.x)), -1.0, 1.0)
    by_hand = 0.3 * loss(RECORD.x) + 0.7 * loss(moved)
    np.testing.assert_allclose(-robust.log_likelihood(PARAMS, RECORD, KEY), by_hand, rtol=1e-5)
    assert float(loss(moved)) > float(loss(RECORD.x)) + 0.1


def test_no_gradient_passes_through_the_attack():
    # A convex ball makes FGSM piecewise constant; PGD in L2 moves with the parameters.
    attack = PGD(ball=L2(radius=0.3), num_steps=3)
    robust = adversarial(MODEL, attack, weight=0.0)

    def loss(params, x):
        return -MODEL.log_likelihood(params, RECORD._replace(x=x), KEY)

    moved = jax.jit(lambda: attack(KEY, lambda x: loss(PARAMS, x), RECORD.x))()
    expected = jax.grad(loss)(PARAMS, moved)
    found = jax.jit(jax.grad(lambda params: -robust.log_likelihood(params, RECORD, KEY)))(PARAMS)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected
    )


def test_mixing_probabilities_is_done_before_the_logarithm():
    models = [
        certified(MODEL, NETWORK, BALL, weight=weight, mixing=MixedProbabilities())
        for weight in (1.0, 0.0, 0.25)
    ]
    clean, worst, mixed = (
        float(jnp.exp(model.log_likelihood(PARAMS, RECORD, KEY))) for model in models
    )
    assert mixed == pytest.approx(0.25 * clean + 0.75 * worst, rel=1e-5)
    assert clean == pytest.approx(float(MODEL.predict(PARAMS, RECORD.x, KEY)[2]), rel=1e-5)


@MIXINGS
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_at_the_ends_of_the_weight_the_gradient_is_finite_and_of_one_part(mixing, weight):
    robust = certified(MODEL, NETWORK, BALL, weight=jnp.float32(weight), mixing=mixing)
    expected = certified(MODEL, NETWORK, BALL, weight=0.0) if weight == 0 else MODEL
    found, wanted = (
        jax.jit(jax.grad(model.log_likelihood))(PARAMS, RECORD, KEY) for model in (robust, expected)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, wanted)


@MIXINGS
def test_at_radius_zero_robust_models_are_the_model_itself(mixing):
    network, model = made(Categorical(num_classes=3), dropout=0.4)
    params, record = model.init(seeded_key(0)), RECORD._replace(x=3.0 * RECORD.x)
    # Some values lie beyond the range, and units are dropped: neither may make a difference.
    plain = model.log_likelihood(params, record, KEY)
    attacked = adversarial(model, PGD(ball=BALL.at(0.0), num_steps=2), mixing=mixing)
    assert float(attacked.log_likelihood(params, record, KEY)) == pytest.approx(
        float(plain), rel=1e-6
    )
    bounded = certified(model, network, BALL.at(0.0), mixing=mixing)
    # Interval bounds allow for rounding: 4 (n + 4) units of 6e-8 a layer, here about 1e-5.
    assert float(bounded.log_likelihood(params, record, KEY)) == pytest.approx(
        float(plain), abs=1e-3
    )


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (Categorical(num_classes=3), (0, 1, 2)),
        (Bernoulli(), (0, 1)),
        (FixedGaussian(std=0.5), (-2.0, 0.1, 3.0)),
        (LearntGaussian(), (-2.0, 0.1, 3.0)),
        (HeteroscedasticGaussian(), (-2.0, 0.1, 3.0)),
        (PoissonCounts(), (0, 1, 7)),
        (NegativeBinomial(dispersion=0.5), (0, 1, 7)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_certified_loss_is_above_the_loss_anywhere_in_the_ball(likelihood, targets):
    network, model = made(likelihood)
    params = jax.tree.map(lambda leaf: 2.0 * leaf, model.init(seeded_key(0)))
    robust = certified(model, network, BALL, weight=0.0)
    points = jax.vmap(BALL.sample, in_axes=(0, None))(jax.random.split(KEY, 500), RECORD.x)
    points = jnp.concatenate([RECORD.x[None], points])

    @jax.jit
    def losses(y):
        record = RECORD._replace(y=y)
        inside = jax.vmap(lambda x: -model.log_likelihood(params, record._replace(x=x), KEY))(
            points
        )
        return -robust.log_likelihood(params, record, KEY), inside

    for target in targets:
        worst, inside = losses(jnp.array(target))
        assert float(worst) >= float(inside.max()) - 1e-6
        # It is a bound, not any large number.
        assert float(worst) <= float(inside.max()) + 10 * float(inside.max() - inside.min()) + 0.1


def test_a_target_that_is_none_has_no_certified_likelihood_either():
    robust = certified(MODEL, NETWORK, BALL)
    assert bool(jnp.isnan(robust.log_likelihood(PARAMS, RECORD._replace(y=jnp.array(5)), KEY)))


def test_convolutional_models_can_be_made_robust():
    network = CNN(input_shape=(6, 6, 1), stages=(Conv(features=2, kernel=3),), num_outputs=2)
    model = bayesian(network, prior=prior, likelihood=Categorical(num_classes=2))
    params = model.init(seeded_key(0))
    image = jax.random.uniform(seeded_key(1), (6, 6, 1))
    record = Record(image, jnp.array(1), jnp.array(1.0))
    ball = Linf(radius=0.05, low=0.0, high=1.0)
    clean, attacked, worst = (
        float(jax.jit(each.log_likelihood)(params, record, KEY))
        for each in (
            model,
            adversarial(model, FGSM(ball=ball), weight=0.0),
            certified(model, network, ball, weight=0.0),
        )
    )
    assert worst < attacked < clean


def test_weight_and_mask_of_a_record_do_not_enter_the_likelihood():
    heavy = RECORD._replace(weight=jnp.array(100.0), mask=jnp.array(False))
    for robust in (adversarial(MODEL, FGSM(ball=BALL)), certified(MODEL, NETWORK, BALL)):
        one, other = (robust.log_likelihood(PARAMS, record, KEY) for record in (RECORD, heavy))
        assert float(one) == float(other)


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_weight_that_is_no_share_is_refused(weight):
    with pytest.raises(InvalidArgumentError, match="weight"):
        adversarial(MODEL, FGSM(ball=BALL), weight=weight)


def test_a_network_or_likelihood_other_than_the_models_is_refused():
    other, _ = made(Categorical(num_classes=3), hidden=(9,))
    with pytest.raises(InvalidArgumentError, match="network must be the one"):
        certified(MODEL, other, BALL)
    with pytest.raises(InvalidArgumentError, match="likelihood must be the one"):
        certified(MODEL, NETWORK, BALL, likelihood=Categorical(num_classes=4))
    with pytest.raises(InvalidArgumentError, match="likelihood must be given"):
        certified(MODEL._replace(spec=None), NETWORK, BALL)


def test_a_model_of_functions_is_certified_with_the_likelihood_it_is_given():
    bare = MODEL._replace(spec=None)
    one = certified(bare, NETWORK, BALL, likelihood=Categorical(num_classes=3))
    two = certified(MODEL, NETWORK, BALL)
    assert one.log_likelihood(PARAMS, RECORD, KEY) == two.log_likelihood(PARAMS, RECORD, KEY)


# One feature is right in 95 of 100 cases and large; twenty more are together almost always
# right, but so small that an adversary turns them round.
NUM, RADIUS = 300, 0.3


def fragile(seed):
    generator = np.random.default_rng(seed)
    sign = generator.choice([-1.0, 1.0], NUM)
    strong = sign * np.where(generator.random(NUM) < 0.95, 1.0, -1.0)
    weak = 0.15 * sign[:, None] + generator.normal(0, 0.2, (NUM, 20))
    return np.column_stack([strong, weak]).astype(np.float32), (sign > 0).astype(int)


@pytest.fixture(scope="module")
def posteriors():
    network = MLP(num_inputs=21, num_outputs=2)
    plain = bayesian(network, prior=prior, likelihood=Categorical(num_classes=2))
    ball = Linf(radius=RADIUS)
    models = {
        "plain": plain,
        "adversarial": adversarial(plain, FGSM(ball=ball), weight=0.0),
        "certified": certified(plain, network, ball, weight=0.0),
    }
    release = GaussianSum(
        sampling=FullBatch(num_records=NUM), clip_norm=float("inf"), noise_multiplier=0.0
    )
    plan = Plan(method=SGD(release=release, optimizer=optax.adam(0.05)), num_steps=150)
    records = as_records(*fragile(0))
    return {
        name: fit(plan, model, records, budget=Budget.non_private(), seed=0).posterior
        for name, model in models.items()
    }


def test_robust_training_withstands_what_plain_training_does_not(posteriors):
    x, y = fragile(1)
    attack = PGD(ball=Linf(radius=RADIUS), num_steps=10)
    found = {name: robust_accuracy(each, attack, x, y) for name, each in posteriors.items()}
    assert found["plain"].clean_accuracy > 0.97
    assert found["plain"].accuracy < 0.5
    for name in ("adversarial", "certified"):
        # The strong feature alone is right with probability 0.95; four standard errors are 0.05.
        assert found[name].accuracy > 0.9, name


def test_a_posterior_of_a_robust_model_is_saved_and_loaded_without_it(posteriors, tmp_path):
    with pytest.warns(PrivacyWarning, match="NOT PRIVATE"):
        posteriors["certified"].save(tmp_path)
    x, _ = fragile(1)
    np.testing.assert_array_equal(
        predict(load_posterior(tmp_path), x).probabilities,
        predict(posteriors["certified"], x).probabilities,
    )
