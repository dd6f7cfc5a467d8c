"""SGHMC's parameterisations agree with each other and with SGLD; cyclical schedules are exact."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import InvalidArgumentError
from tacit.inference import SGHMC, SGLD, Plan, calibrate
from tacit.inference.langevin import ScheduledNoise
from tacit.inference.schedules import Cyclical
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.privacy.budget import Budget
from tacit.privacy.cost import count_releases, noise_multipliers
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch
from tacit.rng import seeded_key
from tacit.typing import Record

N, B, C = 60_000, 256, 1.5
SAMPLING = PoissonBatch(num_records=N, batch_size=B)


def multiplier_of(event):
    ((multiplier, _),) = noise_multipliers(event)
    return multiplier


def test_noise_and_temperature_follow_from_each_other():
    release = GaussianSum(sampling=SAMPLING, clip_norm=C, noise_multiplier=2.0)
    method = SGHMC.fixed_noise(release=release, step_size=1e-5, friction=0.2)
    expected = 1e-5 * 4.0 * C**2 / (2 * 0.2 * SAMPLING.inclusion_rate**2)
    assert method.temperature() == pytest.approx(expected, rel=1e-5)
    same = SGHMC.fixed_temperature(
        sampling=SAMPLING, clip_norm=C, step_size=1e-5, friction=0.2, temperature=expected
    )
    assert same.release.noise_multiplier == pytest.approx(2.0)


def test_with_all_momentum_lost_it_is_sgld_with_twice_the_step_size():
    sampling = PoissonBatch(num_records=30, batch_size=10)
    model = bayesian(
        MLP(num_inputs=4, hidden=(5,), num_outputs=3),
        prior=GaussianPrior(std=0.5),
        likelihood=Categorical(num_classes=3),
    )
    generator = np.random.default_rng(0)
    records = Record(
        jnp.asarray(generator.normal(size=(30, 4)), jnp.float32),
        jnp.asarray(generator.integers(0, 3, 30)),
        jnp.ones(30),
    )
    settings = {"sampling": sampling, "clip_norm": 0.7, "temperature": 0.8}
    schedule = Cyclical(num_steps=2)
    ours = SGHMC.fixed_temperature(step_size=1e-3, friction=1.0, schedule=schedule, **settings)
    theirs = SGLD.fixed_temperature(step_size=2e-3, schedule=schedule, **settings)
    states = []
    for method in (ours, theirs):
        kernel = method.build(model)
        state, step = kernel.init(seeded_key(0)), jax.jit(kernel.step)
        for t in range(4):
            state, info = step(jax.random.fold_in(seeded_key(1), t), state, records)
            assert float(info.temperature) == pytest.approx(0.8, rel=1e-4)
        states.append(state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *states)
    one, other = (
        sorted(multiplier_of(e) for e in count_releases(m.cost(4))) for m in (ours, theirs)
    )
    assert one == pytest.approx(other)


def test_calibration_at_fixed_temperature_finds_the_step_size():
    plan = Plan(
        method=SGHMC.fixed_temperature(
            sampling=SAMPLING, clip_norm=C, step_size=1e-4, friction=0.1
        ),
        num_steps=500,
    )
    method = calibrate(plan, Budget(epsilon=1.0, delta=1e-5)).method
    assert method.temperature() == pytest.approx(1.0, rel=1e-4)
    assert method.step_size < 1e-4
    with pytest.raises(InvalidArgumentError, match="factor must be positive"):
        method.scale_noise(0.0)


def test_a_private_run_has_no_noise_beside_the_engine():
    release = GaussianSum(sampling=SAMPLING, clip_norm=C, noise_multiplier=2.0)
    with pytest.raises(InvalidArgumentError, match="langevin_temperature must be 0"):
        SGHMC(release=release, step_size=1e-5, friction=0.1, langevin_temperature=1.0)


@pytest.mark.parametrize("friction", [0.0, 1.5, math.nan])
def test_friction_that_takes_nothing_or_too_much_is_refused(friction):
    with pytest.raises(InvalidArgumentError, match="friction must"):
        SGHMC.non_private(sampling=SAMPLING, step_size=1e-5, friction=friction)


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cycles_start_at_one_stay_positive_and_are_all_the_same(floor):
    factors = np.asarray(jax.vmap(Cyclical(num_steps=37, floor=floor))(jnp.arange(37 * 4)))
    cycles = factors.reshape(4, 37)
    assert (cycles[:, 0] == 1.0).all()
    assert (cycles > floor).all()
    assert (np.diff(cycles, axis=1) < 0).all()
    np.testing.assert_array_equal(cycles, np.tile(cycles[0], (4, 1)))
    cosine = floor + (1 - floor) * (1 + np.cos(np.pi * np.arange(37) / 37)) / 2
    np.testing.assert_allclose(cycles[0], cosine, atol=1e-6)


def test_even_the_longest_cycle_ends_above_zero():
    assert float(Cyclical(num_steps=10_000_000)(9_999_999)) > 0


@pytest.mark.parametrize("power", [-0.5, 0.5])
@pytest.mark.parametrize("schedule", [Cyclical(num_steps=61), Cyclical(num_steps=400, floor=0.01)])
def test_the_stated_multiplier_of_a_cycle_is_never_above_the_one_used(schedule, power):
    release = GaussianSum(sampling=SAMPLING, clip_norm=1.0, noise_multiplier=3.0)
    noise = ScheduledNoise(release=release, schedule=schedule, power=power)
    stated = noise.stated_multipliers(500, 0)
    carried = jax.jit(
        lambda t: jax.lax.scan(lambda t, _: (t + 1, noise.multiplier(t)), t, length=500)[1]
    )
    used = np.asarray(carried(jnp.int32(0)), np.float64)
    assert (stated <= used).all()
    assert (stated >= used * (1 - 1e-3)).all()


def test_the_cost_of_many_cycles_is_that_of_one_as_often():
    method = SGHMC.fixed_temperature(
        sampling=SAMPLING,
        clip_norm=C,
        step_size=1e-5,
        friction=0.1,
        schedule=Cyclical(num_steps=20),
    )
    one, many = (count_releases(method.cost(num_steps)) for num_steps in (20, 100))
    assert len(one) == 20
    assert many == {event: 5 * count for event, count in one.items()}
    assert len(method.cost(100).events) == 20
    multipliers = [multiplier_of(event) for event in one]
    assert multipliers == sorted(multipliers)
