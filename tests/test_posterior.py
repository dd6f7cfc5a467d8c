"""Posteriors predict in bounded memory, decompose uncertainty, and travel without their data."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tacit.data import as_records
from tacit.errors import InvalidArgumentError, PrivacyWarning, TacitError
from tacit.inference import SGD, SGLD, Plan, fit, save_checkpoint
from tacit.metrics import classification_uncertainty, regression_uncertainty
from tacit.models import (
    MLP,
    Categorical,
    FixedGaussian,
    FlatPrior,
    GaussianPrior,
    HeteroscedasticGaussian,
    bayesian,
    from_function,
)
from tacit.posterior import Posterior, load_posterior, predict
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch
from tacit.rng import seeded_key
from tacit.samplers import Points

X = np.random.default_rng(0).normal(size=(23, 4)).astype(np.float32)


def classifier(dropout=0.0):
    return bayesian(
        MLP(num_inputs=4, hidden=(8,), num_outputs=3, dropout=dropout),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=3),
    )


def posterior_of(model, num_chains=2, num_kept=5):
    keys = jax.random.split(seeded_key(0), num_chains * num_kept)
    kept = jax.vmap(model.init)(keys)
    kept = jax.tree.map(lambda x: x.reshape(num_chains, num_kept, *x.shape[1:]), kept)
    return Posterior(model=model, sampler=Points(), kept=kept)


def test_the_predictive_is_the_mean_of_the_draws_and_its_parts_are_their_decomposition():
    model = classifier()
    posterior = posterior_of(model)
    draws = posterior.draws()
    each = jax.vmap(
        lambda w: jax.vmap(lambda x: model.predict(w, x, seeded_key(0)))(jnp.asarray(X))
    )(draws)
    expected = classification_uncertainty(np.asarray(each, np.float64))
    result = predict(posterior, X)
    for name in expected._fields:
        np.testing.assert_allclose(
            getattr(result, name), getattr(expected, name), atol=2e-6, err_msg=name
        )


@pytest.mark.parametrize(
    ("likelihood", "num_outputs"),
    [(FixedGaussian(std=0.3), 1), (HeteroscedasticGaussian(), 2)],
)
def test_regression_separates_noise_from_ignorance(likelihood, num_outputs):
    model = bayesian(
        MLP(num_inputs=4, hidden=(8,), num_outputs=num_outputs),
        prior=FlatPrior(),
        likelihood=likelihood,
    )
    posterior = posterior_of(model)
    each = jax.vmap(
        lambda w: jax.vmap(lambda x: model.predict(w, x, seeded_key(0)))(jnp.asarray(X))
    )(posterior.draws())
    expected = regression_uncertainty(each.mean, each.variance)
    result = predict(posterior, X)
    for name in expected._fields:
        np.testing.assert_allclose(
            getattr(result, name), getattr(expected, name), rtol=1e-4, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("batch_size", [1, 7, 23, 1000])
def test_the_batch_size_bounds_memory_and_changes_nothing(batch_size):
    posterior = posterior_of(classifier(dropout=0.5))
    whole = predict(posterior, X, num_draws=30)
    parts = predict(posterior, X, num_draws=30, batch_size=batch_size)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), whole, parts)


def test_dropout_predictions_average_over_fresh_masks():
    posterior = posterior_of(classifier(dropout=0.5), num_chains=1, num_kept=1)
    one = predict(posterior, X, num_draws=1)
    many = predict(posterior, X, num_draws=200)
    more = predict(posterior, X, num_draws=200, seed=1)
    assert float(jnp.max(one.mutual_information)) < 1e-6
    assert float(jnp.min(many.mutual_information)) > 1e-3
    np.testing.assert_allclose(many.probabilities, more.probabilities, atol=0.1)


def test_fewer_draws_are_spread_over_the_chains_and_more_go_round_again():
    posterior = posterior_of(classifier())
    assert posterior.chosen(None).indices.tolist() == list(range(10))
    assert posterior.chosen(2).indices.tolist() == [4, 9]
    assert posterior.chosen(1).indices.tolist() == [9]
    assert posterior.chosen(12).indices.tolist() == [*range(10), 0, 1]
    with pytest.raises(InvalidArgumentError, match="num_draws"):
        posterior.draws(0)


def test_predicting_again_compiles_nothing_again():
    calls = []
    model = classifier()

    def counted(params, x, key):
        calls.append(1)
        return model.predict(params, x, key)

    posterior = posterior_of(model._replace(predict=counted))
    predict(posterior, X, batch_size=5)
    once = len(calls)
    predict(posterior, X, batch_size=5)
    predict(posterior, X[:10], batch_size=5)
    assert len(calls) == once


def test_a_posterior_travels_without_its_data(tmp_path):
    posterior = posterior_of(classifier())
    posterior.save(tmp_path)
    loaded = load_posterior(tmp_path)
    assert loaded.num_chains == 2
    assert loaded.num_kept == 5
    np.testing.assert_array_equal(
        predict(posterior, X).probabilities, predict(loaded, X).probabilities
    )


def test_a_model_of_plain_functions_must_be_given_again(tmp_path):
    model = from_function(
        lambda key: {"w": jax.random.normal(key, (4, 3))},
        lambda params, x, key: x @ params["w"],
        prior=FlatPrior(),
        likelihood=Categorical(num_classes=3),
    )
    posterior = posterior_of(model)
    posterior.save(tmp_path)
    with pytest.raises(InvalidArgumentError, match="model must be given"):
        load_posterior(tmp_path)
    loaded = load_posterior(tmp_path, model=model)
    np.testing.assert_array_equal(
        predict(posterior, X).probabilities, predict(loaded, X).probabilities
    )
    with pytest.raises(TacitError, match="does not fit the model"):
        load_posterior(tmp_path, model=classifier())


def test_low_precision_states_survive_saving(tmp_path):
    model = classifier()
    model = model._replace(
        init=lambda key: jax.tree.map(lambda w: w.astype(jnp.bfloat16), classifier().init(key))
    )
    half = posterior_of(model)
    half.save(tmp_path)
    loaded = load_posterior(tmp_path, model=model)
    for a, b in zip(jax.tree.leaves(half.kept), jax.tree.leaves(loaded.kept), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("damage", ["altered", "cut", "json", "missing", "version"])
def test_a_damaged_posterior_is_found_out(tmp_path, damage):
    posterior_of(classifier()).save(tmp_path)
    tensors, document = tmp_path / "posterior.safetensors", tmp_path / "posterior.json"
    if damage == "altered":
        tensors.write_bytes(tensors.read_bytes()[:-4] + b"abcd")
    elif damage == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-100])
    elif damage == "json":
        document.write_text(document.read_text()[:-20])
    elif damage == "missing":
        tensors.unlink()
    else:
        document.write_text(json.dumps(json.loads(document.read_text()) | {"format_version": 99}))
    with pytest.raises(TacitError, match=r"checksum|damaged|missing|format"):
        load_posterior(tmp_path)


def test_no_artefact_contains_a_training_record(tmp_path):
    generator = np.random.default_rng(7)
    x = generator.normal(size=(64, 4)).astype(np.float32)
    y = generator.integers(0, 3, 64)
    records = as_records(x, y)
    method = SGD(
        release=GaussianSum(
            sampling=PoissonBatch(num_records=64, batch_size=16),
            clip_norm=1.0,
            noise_multiplier=2.0,
        ),
        optimizer=optax.adam(0.01),
    )
    result = fit(
        Plan(method=method, num_steps=3, thinning=1),
        classifier(),
        records,
        budget=Budget(epsilon=10.0, delta=1e-3),
        seed=0,
    )
    with pytest.warns(PrivacyWarning, match="INSECURE"):
        result.posterior.save(tmp_path)
    save_checkpoint(result.checkpoint, tmp_path)
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert len(content) > 1000
    for row in x:
        assert row.tobytes() not in content
        assert row[:2].tobytes() not in content  # not even half a row
    labels = [np.asarray(y, dtype).tobytes() for dtype in (np.int8, np.int32, np.int64, np.float32)]
    assert not any(label in content for label in labels)
    # The search itself works: a parameter is found.
    weights = np.asarray(jax.tree.leaves(result.posterior.kept)[-1])
    assert weights[0, 0].tobytes() in content


def test_the_statement_travels_with_the_posterior(tmp_path):
    records = as_records(X, np.arange(23) % 3)
    method = SGLD.fixed_temperature(
        sampling=PoissonBatch(num_records=23, batch_size=5), clip_norm=1.0, step_size=0.1
    )
    result = fit(
        Plan(method=method, num_steps=2),
        classifier(),
        records,
        budget=Budget(epsilon=100.0, delta=1e-3),
        seed=0,
    )
    with pytest.warns(PrivacyWarning, match="INSECURE"):
        result.posterior.save(tmp_path)
    assert load_posterior(tmp_path).statement == result.statement.to_json()


@pytest.mark.parametrize(
    ("statement", "message"),
    [({"epsilon": "infinity"}, "NOT PRIVATE"), ({"epsilon": 1.0, "is_secure": False}, "INSECURE")],
)
def test_saving_what_must_not_be_published_warns_and_saves(tmp_path, statement, message):
    posterior = replace(posterior_of(classifier()), statement=statement)
    with pytest.warns(PrivacyWarning, match=message):
        posterior.save(tmp_path)
    assert load_posterior(tmp_path).statement == statement


def test_a_posterior_is_refused_by_a_model_of_another_shape(tmp_path):
    posterior_of(classifier()).save(tmp_path)
    wider = bayesian(
        MLP(num_inputs=4, hidden=(9,), num_outputs=3),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=3),
    )
    with pytest.raises(TacitError, match=r"its array .kept.*has shape \(2, 5, 8"):
        load_posterior(tmp_path, model=wider)
    deeper = bayesian(
        MLP(num_inputs=4, hidden=(8, 3), num_outputs=3),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=3),
    )
    with pytest.raises(TacitError, match="does not fit the model"):
        load_posterior(tmp_path, model=deeper)


def test_a_statement_cannot_be_edited_unnoticed(tmp_path):
    replace(posterior_of(classifier()), statement={"epsilon": 9.0}).save(tmp_path)
    document = tmp_path / "posterior.json"
    document.write_text(document.read_text().replace("9.0", "0.1"))
    with pytest.raises(TacitError, match=r"posterior\.json does not match its checksum"):
        load_posterior(tmp_path)


def test_an_empty_input_is_refused():
    with pytest.raises(InvalidArgumentError, match="at least one row"):
        predict(posterior_of(classifier()), X[:0])
