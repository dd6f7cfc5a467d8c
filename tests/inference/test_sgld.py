"""SGLD's parameterisations agree with each other and with theorem 1 of Zhang et al."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tacit.errors import InvalidArgumentError
from tacit.inference import SGD, SGLD
from tacit.inference.schedules import Constant, Cosine, Exponential, Polynomial
from tacit.models import MLP, Categorical, FlatPrior, GaussianPrior, bayesian
from tacit.privacy.cost import count_releases, noise_multipliers
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.rng import seeded_key
from tacit.typing import Record

N, B, C, ETA = 60_000, 256, 1.5, 5e-6
SAMPLING = PoissonBatch(num_records=N, batch_size=B)
MEAN = N * SAMPLING.inclusion_rate  # what a batch holds on average, since its size is bounded


def multiplier_of(event):
    ((multiplier, _),) = noise_multipliers(event)
    return multiplier


def test_zhangs_noise_multiplier_is_that_of_the_seed():
    endless = replace(SAMPLING, max_batch_size=N)
    method = SGLD.zhang(sampling=endless, clip_norm=C, learning_rate=ETA)
    assert method.release.noise_multiplier == pytest.approx(B / (N * math.sqrt(ETA) * C))
    assert method.release.noise_multiplier == pytest.approx(1.2721, abs=1e-4)
    assert method.temperature() == pytest.approx(0.5)
    bounded = SGLD.zhang(sampling=SAMPLING, clip_norm=C, learning_rate=ETA)
    assert bounded.release.noise_multiplier == pytest.approx(MEAN / (N * math.sqrt(ETA) * C))
    assert bounded.temperature() == pytest.approx(0.5)


@pytest.mark.parametrize("prior", [FlatPrior(), GaussianPrior(std=0.5)])
def test_theorem_1_dp_sgld_is_dp_sgd_with_the_same_releases_and_iterates(prior):
    sampling = PoissonBatch(num_records=30, batch_size=10)
    model = bayesian(
        MLP(num_inputs=4, hidden=(5,), num_outputs=3),
        prior=prior,
        likelihood=Categorical(num_classes=3),
    )
    generator = np.random.default_rng(0)
    records = Record(
        jnp.asarray(generator.normal(size=(30, 4)), jnp.float32),
        jnp.asarray(generator.integers(0, 3, 30)),
        jnp.ones(30),
    )
    eta = 1e-3
    sgld = SGLD.zhang(sampling=sampling, clip_norm=0.7, learning_rate=eta)
    sgd = SGD(
        release=GaussianSum(
            sampling=sampling,
            clip_norm=0.7,
            noise_multiplier=sampling.inclusion_rate / (math.sqrt(eta) * 0.7),
        ),
        optimizer=optax.sgd(eta * 30),
    )
    assert_same_iterates(sgld, sgd, model, records)
    assert_same_iterates(sgld, sgld.as_descent(), model, records)
    assert sgld.as_descent().cost(5) == sgld.cost(5)
    back = SGLD.from_descent(release=sgd.release, learning_rate=eta * 30)
    assert back.step_size == pytest.approx(sgld.step_size)
    assert_same_iterates(back, sgd, model, records)
    falling = Polynomial(delay=1.0, power=1.0)
    scheduled = replace(back, schedule=falling, clip_schedule=falling)
    assert_same_iterates(scheduled, scheduled.as_descent(), model, records)
    one, other = (list(count_releases(m.cost(5)).items()) for m in (sgld, sgd))
    assert one[0][1] == other[0][1] == 5
    assert multiplier_of(one[0][0]) == pytest.approx(multiplier_of(other[0][0]))


def assert_same_iterates(langevin, descent, model, records):
    langevin, descent = langevin.build(model), descent.build(model)
    left, right = langevin.init(seeded_key(0)), descent.init(seeded_key(0))
    for t in range(5):
        key = jax.random.fold_in(seeded_key(1), t)
        left, _ = langevin.step(key, left, records)
        # SGLD splits its key for the Langevin noise of non-private runs.
        right, _ = descent.step(jax.random.split(key)[0], right, records)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        left.params,
        right.params,
    )


@pytest.mark.parametrize(
    "method",
    [
        SGLD.knolle(
            sampling=SAMPLING, clip_norm=C, learning_rate=0.1, temperature=1.0, pre_noise=0.1
        ),
        SGLD.non_private(sampling=SAMPLING, step_size=1e-3),
        SGLD.fixed_temperature(
            sampling=SAMPLING, clip_norm=C, step_size=1e-5, schedule=Polynomial(delay=9.0)
        ),
    ],
)
def test_noise_that_descent_cannot_have_is_refused(method):
    with pytest.raises(InvalidArgumentError, match="method must have constant noise"):
        method.as_descent()


def test_fixed_noise_reports_the_temperature_that_follows():
    release = GaussianSum(sampling=SAMPLING, clip_norm=C, noise_multiplier=2.0)
    method = SGLD.fixed_noise(release=release, step_size=1e-5)
    expected = 1e-5 * 4.0 * C**2 / (4 * (MEAN / N) ** 2)
    assert method.temperature() == pytest.approx(expected, rel=1e-5)
    same = SGLD.fixed_temperature(
        sampling=SAMPLING, clip_norm=C, step_size=1e-5, temperature=expected
    )
    assert same.release.noise_multiplier == pytest.approx(2.0)


def test_at_fixed_temperature_a_decaying_step_size_adds_noise_and_keeps_the_temperature():
    method = SGLD.fixed_temperature(
        sampling=SAMPLING, clip_norm=C, step_size=1e-5, schedule=Polynomial(delay=10.0)
    )
    assert method.temperature(0) == pytest.approx(1.0, rel=1e-5)
    assert method.temperature(500) == pytest.approx(1.0, rel=1e-5)
    multipliers = [multiplier_of(event) for event in count_releases(method.cost(20))]
    assert multipliers == sorted(multipliers)


def test_knolles_noise_and_effective_temperature():
    alpha, tau = 0.05, 40.0
    method = SGLD.knolle(
        sampling=SAMPLING,
        clip_norm=C,
        learning_rate=alpha,
        temperature=tau,
        schedule=Exponential(half_life=7.0),
    )
    first, *_, last = (multiplier_of(e) for e in count_releases(method.cost(8)).elements())
    assert first == pytest.approx(math.sqrt(2 * alpha * tau), rel=1e-4)
    assert last == pytest.approx(math.sqrt(2 * (alpha / 2) * tau), rel=1e-4)
    # Their tau is not the posterior temperature: alpha^2 tau C^2 n / B^2 is.
    assert method.temperature() == pytest.approx(alpha**2 * tau * C**2 * N / MEAN**2, rel=1e-4)


def test_costs_of_schedules_are_those_of_no_more_noise_than_was_added():
    method = SGLD.fixed_temperature(
        sampling=SAMPLING, clip_norm=C, step_size=1e-5, schedule=Cosine(num_steps=50)
    )
    for t in (0, 10, 49, 60):
        (event,) = count_releases(method.cost(1, start=t))
        added = float(method._info(jnp.asarray(t)).noise_multiplier)
        assert added * (1 - 1e-5) < multiplier_of(event) < added


@pytest.mark.parametrize(
    "schedule",
    [Constant(), Polynomial(delay=5.0), Exponential(half_life=9.0), Cosine(num_steps=30)],
)
def test_schedules_start_at_one_and_stay_positive(schedule):
    factors = np.asarray(jax.vmap(schedule)(jnp.arange(100)))
    assert factors[0] == 1.0
    assert (factors > 0).all()
    assert (np.diff(factors) <= 1e-6).all()


def test_a_private_run_has_no_noise_beside_the_engine():
    release = GaussianSum(sampling=SAMPLING, clip_norm=C, noise_multiplier=2.0)
    with pytest.raises(InvalidArgumentError, match="langevin_temperature must be 0"):
        SGLD(release=release, step_size=1e-5, langevin_temperature=1.0)


@pytest.mark.parametrize("noise_power", [-2.0, -0.5, 0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "schedule",
    [
        Exponential(half_life=37.0),
        Exponential(half_life=3.0),
        Exponential(half_life=0.7),
        Polynomial(delay=7.0, power=0.9),
        Polynomial(delay=0.3, power=3.0),
        Cosine(num_steps=300, floor=1e-6),
        Cosine(num_steps=77),
    ],
    ids=str,
)
def test_the_stated_multiplier_is_never_above_the_one_used(schedule, noise_power):
    method = SGLD(
        release=GaussianSum(sampling=SAMPLING, clip_norm=1.0, noise_multiplier=3.0),
        step_size=1e-3,
        schedule=schedule,
        noise_power=noise_power,
    )
    # Down to factors of 2^-30: in the end a float32 cannot hold their squares.
    num_steps = int(schedule.half_life * 30) if isinstance(schedule, Exponential) else 400
    stated = method._noise.stated_multipliers(num_steps, 0)

    def multiplier(t):
        return method._info(t).noise_multiplier

    # Compiled in a loop as a run is, in a loop with the step as a traced offset, and one by one.
    looped = jax.jit(lambda: jax.lax.map(multiplier, jnp.arange(num_steps)))()
    carried = jax.jit(
        lambda t: jax.lax.scan(lambda t, _: (t + 1, multiplier(t)), t, length=num_steps)
    )
    single = jax.jit(multiplier)
    chosen = np.linspace(0, num_steps - 1, 9).astype(int)
    for used, steps in (
        (looped, slice(None)),
        (carried(jnp.int32(0))[1], slice(None)),
        ([single(jnp.int32(t)) for t in chosen], chosen),
        ([multiplier(jnp.int32(t)) for t in chosen], chosen),
    ):
        assert (stated[steps] <= np.asarray(used, np.float64)).all()
        assert (stated[steps] >= np.asarray(used, np.float64) * (1 - 1e-3)).all()


@pytest.mark.parametrize("noise_power", [-0.5, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("half_life", [37.0, 3.0, 0.7])
def test_the_stated_multiplier_of_a_decay_is_below_the_exact_one(half_life, noise_power):
    method = SGLD(
        release=GaussianSum(sampling=SAMPLING, clip_norm=1.0, noise_multiplier=3.0),
        step_size=1e-3,
        schedule=Exponential(half_life=half_life),
        noise_power=noise_power,
    )
    steps = np.arange(int(half_life * 30))
    exact = 3.0 * 2.0 ** (-steps / half_life * noise_power)
    assert (method._noise.stated_multipliers(len(steps), 0) <= exact).all()


def test_a_schedule_that_keeps_the_noise_costs_equal_releases():
    release = GaussianSum(sampling=SAMPLING, clip_norm=C, noise_multiplier=2.0)
    method = SGLD.fixed_noise(release=release, step_size=1e-5, schedule=Polynomial(delay=10.0))
    assert list(count_releases(method.cost(50)).values()) == [50]


def test_a_run_without_privacy_may_have_a_schedule():
    method = SGLD.non_private(
        sampling=PoissonBatch(num_records=30, batch_size=10),
        step_size=1e-3,
        schedule=Polynomial(delay=10.0),
    )
    model = bayesian(
        MLP(num_inputs=4, hidden=(5,), num_outputs=3),
        prior=FlatPrior(),
        likelihood=Categorical(num_classes=3),
    )
    records = Record(jnp.ones((30, 4)), jnp.zeros(30, int), jnp.ones(30))
    kernel = method.build(model)
    state, _ = kernel.step(seeded_key(1), kernel.init(seeded_key(0)), records)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


@pytest.mark.parametrize("noise_power", [math.nan, math.inf])
def test_a_noise_power_that_is_not_finite_is_refused(noise_power):
    release = GaussianSum(sampling=SAMPLING, clip_norm=C, noise_multiplier=2.0)
    with pytest.raises(InvalidArgumentError, match="noise_power must be"):
        SGLD(release=release, step_size=1e-5, noise_power=noise_power)


def test_with_clip_norms_that_fall_the_noise_of_zhang_stays_and_costs_less():
    settings = {
        "sampling": FullBatch(num_records=50),
        "clip_norm": 2.0,
        "learning_rate": 1e-2,
    }
    constant = SGLD.zhang(**settings)
    falling = SGLD.zhang(**settings, clip_schedule=Polynomial(delay=1.0, power=1.0))
    assert falling.temperature(3) == pytest.approx(constant.temperature(3))
    multipliers = [multiplier_of(event) for event in count_releases(falling.cost(3))]
    first = constant.release.noise_multiplier
    np.testing.assert_allclose(sorted(multipliers), [first, 2 * first, 3 * first], rtol=1e-4)


def test_with_fixed_noise_the_noise_follows_the_clip_norm_at_the_same_cost():
    release = GaussianSum(sampling=FullBatch(num_records=50), clip_norm=2.0, noise_multiplier=3.0)
    constant = SGLD.fixed_noise(release=release, step_size=1e-3)
    falling = replace(constant, clip_schedule=Polynomial(delay=1.0, power=1.0))
    assert falling.cost(4) == constant.cost(4)
    # Half the clip norm is half the noise, a quarter of the temperature.
    assert falling.temperature(1) == pytest.approx(constant.temperature(1) / 4)
