"""Kernels are built and compiled once for a method and a model."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import optax
import pytest

from tacit.data import as_records
from tacit.inference import SGD, Plan, fit
from tacit.inference.compilation import compiled_kernel, forget_kernels
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch

N = 50
OPTIMISER = optax.sgd(0.1)


def method(noise_multiplier=1.0):
    release = GaussianSum(
        sampling=PoissonBatch(num_records=N, batch_size=5),
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
    )
    return SGD(release=release, optimizer=OPTIMISER)


def model():
    return bayesian(
        MLP(num_inputs=3, hidden=(), num_outputs=2),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=2),
    )


def test_equal_methods_share_a_kernel_on_one_model():
    own = model()
    first = compiled_kernel(method(), own)
    assert compiled_kernel(method(), own) is first
    assert compiled_kernel(method(2.0), own) is not first
    assert compiled_kernel(method(), model()) is not first
    forget_kernels()
    assert compiled_kernel(method(), own) is not first


class Changing:
    """A likelihood that its owner can change between two runs."""

    sign = 1.0

    def log_likelihood(self, params, record, key):
        return self.sign * sum(jax.tree.leaves(jax.tree.map(jax.numpy.sum, params)))


def test_a_function_that_was_changed_since_is_not_run_as_it_was():
    own, free = (
        Changing(),
        GaussianSum(
            sampling=PoissonBatch(num_records=N, batch_size=5), clip_norm=1.0, noise_multiplier=0.0
        ),
    )
    changing = model()._replace(log_likelihood=own.log_likelihood, spec=None)
    plan = Plan(method=SGD(release=free, optimizer=OPTIMISER), num_steps=1)
    records = as_records(np.zeros((N, 3)), np.zeros(N, int))

    def draws():
        run = fit(plan, changing, records, budget=Budget.non_private(), seed=0)
        return run.posterior.draws()["network"]["dense_0"]["bias"]

    before = draws()
    own.sign = -1.0
    assert np.all(draws() < before)


def test_a_model_with_another_likelihood_has_another_kernel():
    own = model()
    other = own._replace(log_likelihood=lambda params, record, key: 0.0)
    assert compiled_kernel(method(), own) is not compiled_kernel(method(), other)


@dataclass(frozen=True)
class Unhashable:
    """A method with a setting that has no hash."""

    inner: Any
    settings: list[float] = field(default_factory=list)

    def build(self, model):
        return self.inner.build(model)


def test_a_method_without_a_hash_is_built_each_time():
    own = model()
    unhashable = Unhashable(method())
    assert compiled_kernel(unhashable, own) is not compiled_kernel(unhashable, own)


def test_a_run_traces_its_step_once(monkeypatch):
    generator = np.random.default_rng(0)
    records = as_records(generator.normal(size=(N, 3)), generator.integers(2, size=N))
    build, traced = SGD.build, []

    def counting(self, model):
        kernel = build(self, model)

        def step(key, state, records):
            traced.append(self)
            return kernel.step(key, state, records)

        return kernel._replace(step=step)

    monkeypatch.setattr(SGD, "build", counting)
    fit(Plan(method=method(), num_steps=4), model(), records, budget=Budget(50.0, 1e-3))
    assert len(traced) == 1


def test_a_second_run_compiles_nothing_and_draws_fresh_noise():
    generator = np.random.default_rng(0)
    records = as_records(generator.normal(size=(N, 3)), generator.integers(2, size=N))
    own, plan = model(), Plan(method=method(), num_steps=4)
    budget = Budget(epsilon=50.0, delta=1e-3)
    first = fit(plan, own, records, budget=budget)
    advance = compiled_kernel(plan.method, own).advance
    assert advance._cache_size() == 1
    second = fit(plan, own, records, budget=budget)
    assert advance._cache_size() == 1
    one, other = (jax.tree.leaves(made.posterior.kept) for made in (first, second))
    assert not any(map(np.array_equal, one, other))
    assert first.statement.epsilon == pytest.approx(second.statement.epsilon)
