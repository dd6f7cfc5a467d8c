"""Schedules of models: any method runs them, at the cost of the method, in one program."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tacit import Budget, FullBatch, GaussianSum, Plan, PoissonBatch, fit
from tacit.certify import certified
from tacit.data import as_records
from tacit.errors import InvalidArgumentError
from tacit.inference import SGD, SGLD, Ramp, Scheduled, load_checkpoint, save_checkpoint
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.privacy.cost import count_releases
from tacit.robust import Linf

N = 60
BUDGET = Budget(epsilon=50.0, delta=1e-3)
NETWORK = MLP(num_inputs=3, num_outputs=2)
MODEL = bayesian(NETWORK, prior=GaussianPrior(std=1.0), likelihood=Categorical(num_classes=2))
BALL = Linf(radius=0.5)
RELEASE = GaussianSum(
    sampling=PoissonBatch(num_records=N, batch_size=20), clip_norm=1.0, noise_multiplier=1.0
)
BASE = SGD(release=RELEASE, optimizer=optax.sgd(0.5, momentum=0.5))


def at_radius(radius):
    return certified(MODEL, NETWORK, BALL.at(radius), weight=0.3)


@pytest.fixture(scope="module")
def records():
    x = np.random.default_rng(0).normal(size=(N, 3))
    return as_records(x, (x[:, 0] > 0).astype(int))


def scheduled(radius, base=BASE):
    return Scheduled(
        base=base,
        transform=lambda model, step: certified(model, NETWORK, BALL.at(radius(step)), weight=0.3),
    )


def equal(left, right):
    left, right = (each.posterior.chains["network"]["dense_0"]["kernel"] for each in (left, right))
    return np.allclose(left, right, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def in_stages(records):
    """Two steps at radius 0, then two at 0.5, by resuming under another model."""
    first = fit(Plan(method=BASE, num_steps=2), at_radius(0.0), records, budget=BUDGET, seed=1)
    plan = Plan(method=BASE, num_steps=4)
    return fit(plan, at_radius(0.5), records, budget=BUDGET, seed=1, resume=first.checkpoint)


def test_a_run_resumed_under_another_model_counts_all_that_was_executed(in_stages):
    assert in_stages.statement.releases == 4
    assert count_releases(in_stages.checkpoint.cost.event) == count_releases(BASE.cost(4))
    # What the first stage retained is still there: drop it where it is of no use.
    assert in_stages.posterior.chains["network"]["dense_0"]["kernel"].shape[1] == 2


def test_a_schedule_takes_the_steps_that_stages_would_take(in_stages, records):
    plan = Plan(
        method=scheduled(lambda step: jnp.where(step < 2, 0.0, 0.5)), num_steps=4, thinning=2
    )
    whole = fit(plan, MODEL, records, budget=BUDGET, seed=1)
    assert equal(whole, in_stages)
    assert count_releases(whole.checkpoint.cost.event) == count_releases(
        in_stages.checkpoint.cost.event
    )
    # Stages that nobody declared may have been added for what the first one showed.
    assert whole.statement.epsilon < in_stages.statement.epsilon
    constant = Plan(method=scheduled(lambda step: jnp.float32(0.0)), num_steps=4, thinning=2)
    assert not equal(fit(constant, MODEL, records, budget=BUDGET, seed=1), in_stages)


def test_a_resumed_schedule_goes_on_at_its_step(records, tmp_path):
    plan = Plan(method=scheduled(Ramp(first=0.0, last=0.5, stop=4)), num_steps=4)
    saved = []
    whole = fit(plan, MODEL, records, budget=BUDGET, seed=1, chunk_steps=3, on_chunk=saved.append)
    save_checkpoint(saved[0], tmp_path)
    checkpoint = load_checkpoint(tmp_path, plan, MODEL, records)
    resumed = fit(plan, MODEL, records, budget=BUDGET, seed=1, resume=checkpoint)
    np.testing.assert_array_equal(
        *(each.posterior.kept["network"]["dense_0"]["kernel"] for each in (whole, resumed))
    )


def test_the_noise_of_a_schedule_is_that_of_its_method():
    base = SGLD.fixed_noise(release=RELEASE, step_size=1e-3)
    method = scheduled(Ramp(first=0.0, last=0.5, stop=4), base=base)
    assert method.scale_noise(2.0).cost(3) == base.scale_noise(2.0).cost(3) != base.cost(3)
    assert method.num_records == N


def test_a_ramp_is_flat_before_and_after():
    ramp = Ramp(first=1.0, last=0.5, start=10, stop=20)
    np.testing.assert_allclose([ramp(step) for step in (0, 10, 15, 20, 99)], [1, 1, 0.75, 0.5, 0.5])


def test_a_ramp_without_length_is_refused():
    with pytest.raises(InvalidArgumentError, match="start must be below stop"):
        Ramp(first=0.0, last=1.0, start=5, stop=5)


def test_weight_and_radius_follow_one_schedule_without_noise(records):
    # With weight one throughout, whatever the radius, it is the plain model.
    release = GaussianSum(
        sampling=FullBatch(num_records=N), clip_norm=float("inf"), noise_multiplier=0.0
    )
    base = SGD(release=release, optimizer=optax.sgd(0.5))
    weight, radius = Ramp(first=1.0, last=0.5, start=3, stop=9), Ramp(first=0.1, last=0.5, stop=3)
    method = Scheduled(
        base=base,
        transform=lambda model, step: certified(
            model, NETWORK, BALL.at(radius(step)), weight=weight(step)
        ),
    )
    results = [
        fit(Plan(method=each, num_steps=3), MODEL, records, budget=Budget.non_private(), seed=1)
        for each in (method, base)
    ]
    assert equal(*results)
