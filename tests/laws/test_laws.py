"""The three laws, for every exported method on models of every kind."""

import importlib
import math
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from laws import laws
from laws.cases import METHODS, MODELS, engine, full, table
from tacit.inference import Plan, fit
from tacit.inference.method import declarations, objective_of
from tacit.privacy.budget import Budget
from tacit.privacy.sampling import PoissonBatch
from tacit.rng import seeded_key

models = pytest.mark.parametrize("model", MODELS)
methods = pytest.mark.parametrize("method", METHODS)


def pairs_of(methods, models, *, is_quick):
    """Pairs of a method and a model, of which `make test` runs the quick ones."""
    return pytest.mark.parametrize(
        ("method", "model"),
        [
            pytest.param(method, model, marks=() if is_quick(method, model) else pytest.mark.slow)
            for model in models
            for method in methods
        ],
    )


def is_first_or_in_turn(method, model):
    """Whether a model is the first, or the one of the others whose turn it is for a method."""
    first, *others = MODELS
    return model in (first, others[list(METHODS).index(method) % len(others)])


@pairs_of(METHODS, ["dense", "embedding"], is_quick=lambda method, model: model == "dense")
def test_cost_equals_the_releases_actually_made(method, model, monkeypatch):
    laws.check_cost_equals_releases(METHODS[method], MODELS[model], table(model), monkeypatch)


@models
def test_cost_equals_the_releases_on_every_kind_of_model(model, monkeypatch):
    laws.check_cost_equals_releases(
        METHODS["SGLD decaying"], MODELS[model], table(model), monkeypatch, num_steps=3
    )


@pairs_of(METHODS, MODELS, is_quick=is_first_or_in_turn)
def test_without_the_engine_no_trace_of_the_records_is_left(method, model, monkeypatch):
    laws.check_non_interference(
        METHODS[method], MODELS[model], table(model), table(model, seed=1), monkeypatch
    )


@pairs_of(
    ["SGD", "SGD per layer", "SGD normalised"],
    MODELS,
    is_quick=lambda method, model: method == "SGD" or model == "dense",
)
def test_one_record_moves_the_sum_by_at_most_the_clip_norm(method, model):
    release = engine(full, noise_multiplier=0.0, clipping=METHODS[method].release.clipping)
    bad = [jnp.nan, jnp.inf, 1e25, 300.0, -30.0]
    laws.check_sensitivity(release, MODELS[model], table(model), bad=bad)


@methods
def test_scaling_the_noise_scales_the_cost(method):
    from tacit.privacy.cost import count_releases

    def multipliers(cost):
        return sorted(laws._multiplier(event) for event in count_releases(cost).elements())

    one, two = METHODS[method], METHODS[method].scale_noise(2.0)
    np.testing.assert_allclose(
        2 * np.array(multipliers(one.cost(3))), multipliers(two.cost(3)), rtol=1e-5
    )


@methods
def test_the_cost_of_a_run_is_the_cost_of_its_parts(method):
    from tacit.privacy.cost import count_releases

    whole = count_releases(METHODS[method].cost(5))
    parts = count_releases(METHODS[method].cost(2)) + count_releases(
        METHODS[method].cost(3, start=2)
    )
    assert whole == parts


@methods
def test_estimates_divide_by_the_public_rate(method):
    varying = [e for e in laws.engines(METHODS[method]) if isinstance(e.sampling, PoissonBatch)]
    if not varying or "normalised" in method:
        pytest.skip("batches have one size, or counts are normalised away")
    for release in varying:
        laws.check_public_denominator(release, table("dense"))


def is_method(value):
    parts = ("cost", "build", "scale_noise")
    return (
        isinstance(value, type)
        and all(hasattr(value, part) for part in parts)
        and not getattr(value, "_is_protocol", False)
    )


def test_every_method_is_exported_declared_and_under_the_laws():
    modules = (
        importlib.import_module(f"tacit.inference.{module.name}")
        for module in pkgutil.iter_modules(tacit.inference.__path__)
    )
    defined = {
        name
        for module in modules
        for name, value in vars(module).items()
        if is_method(value) and value.__module__ == module.__name__
    }
    exported = {name for name in tacit.inference.__all__ if is_method(vars(tacit.inference)[name])}
    declared = {
        found.method.__name__
        for found in declarations().values()
        if found.method.__module__.startswith("tacit.inference.")
    }
    assert defined == exported == declared
    assert exported == {type(method).__name__ for method in METHODS.values()}


def gradient_of(release, model):
    """The release's gradient of a model's loss, compiled, as a function of the records."""
    record_loss = objective_of(model).record_loss
    params = model.init(seeded_key(1))

    def loss(params, record, key):
        return record_loss(params, None, record, key)

    return jax.jit(lambda data: release.gradient(seeded_key(0), loss, params, data))


def test_the_dropout_mask_of_a_record_is_unmoved_by_padding_and_batching():
    model, records = MODELS["dropout"], table("dropout")
    results = [
        gradient_of(engine(full, noise_multiplier=0.0, chunk_size=chunk), model)(records)
        for chunk in (None, 5)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *results)


def test_the_weight_of_a_record_is_inside_the_clip():
    model, records = MODELS["dense"], table("dense")
    release = engine(full, noise_multiplier=0.0)
    gradient = gradient_of(release, model)
    totals = [gradient(records._replace(weight=records.weight.at[3].set(w))) for w in (1e6, 0.0)]
    gap = jax.tree.map(jnp.subtract, *totals)
    norm = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(gap)))
    assert norm == pytest.approx(release.clip_norm, rel=1e-4)


def test_the_rows_of_one_person_are_clipped_together():
    model, records = MODELS["grouped"], table("grouped")
    laws.check_sensitivity(
        engine(full, noise_multiplier=0.0, clip_norm=1e-3), model, records, bad=1e3
    )
    record_loss = objective_of(model).record_loss
    params = model.init(seeded_key(1))
    # Rows behind the mask do not matter, whatever they hold.
    junk = records._replace(x=jnp.where(records.mask[..., None], records.x, 1e4))
    losses = [
        jax.vmap(lambda r, k: record_loss(params, None, r, k))(
            data, jax.random.split(seeded_key(0), 12)
        )
        for data in (records, junk)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_a_model_without_a_derivative_at_zero_does_not_lose_people_with_few_rows():
    model = MODELS["grouped"]._replace(
        init=lambda key: jnp.ones(5),
        log_prior=lambda w: jnp.zeros(()),
        log_likelihood=lambda w, record, key: -jnp.sqrt(jnp.sum((record.x * w) ** 2)),
    )
    records = table("grouped")
    first = jnp.arange(3) < 1
    records = records._replace(
        mask=records.mask | first, x=jnp.where((records.mask | first)[..., None], records.x, 0.0)
    )
    gradients = jax.vmap(
        lambda r, k: jax.grad(objective_of(model).record_loss)(jnp.ones(5), None, r, k)
    )(records, jax.random.split(seeded_key(0), 12))
    assert np.isfinite(gradients).all()
    assert (np.abs(gradients).sum(1) > 0).all()


def test_noise_is_fresh_in_every_step_and_every_chain():
    # A loss without a gradient leaves nothing but noise in the iterates.
    model = MODELS["dense"]._replace(
        init=lambda key: jnp.zeros(400),
        log_prior=lambda w: jnp.zeros(()),
        log_likelihood=lambda w, record, key: 0.0 * jnp.sum(w),
    )
    method = METHODS["SGD on fixed batches"]
    result = fit(
        Plan(method=method, num_steps=12, num_chains=3, thinning=1),
        model,
        table("dense"),
        budget=Budget(epsilon=math.inf, delta=1e-5),
        seed=0,
        chunk_steps=5,
    )
    noise = np.diff(np.asarray(result.posterior.kept), axis=1).reshape(3 * 11, 400)
    correlation = np.corrcoef(noise) - np.eye(33)
    assert np.abs(correlation).max() < 5.5 / math.sqrt(400)
