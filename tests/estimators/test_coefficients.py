"""Estimators of linear models have a regression table with credible intervals."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from estimators.tables import ILL, WEEKS, patients
from tacit.errors import IntervalWarning, InvalidArgumentError
from tacit.estimators import PrivateBayesClassifier, PrivateBayesRegressor
from tacit.intervals import IntervalFacts, Parts

TRAIN = patients(200)
FEATURES = ["dose", "dose=(missing)", "age", "age=(missing)"]
FEATURES += ["city=Oslo", "city=Rome", "city=(other)"]
COLUMNS = ["unit", "mean", "std", "low", "high", "privacy_share"]


def linear(kind, **settings):
    return kind(epsilon=5.0, hidden=(), num_steps=20, random_state=0, **settings)


def with_facts(model, *, seed=0):
    """The estimator with made-up draws of known widths, of which noise accounts for a quarter."""
    posterior = model.table_.posterior
    raw = posterior if posterior.raw is None else posterior.raw
    rng, stds = np.random.default_rng(seed), jax.tree.map(lambda x: jnp.ones(x.shape[2:]), raw.kept)
    kept = jax.tree.map(
        lambda std: jnp.asarray(rng.normal(size=(1, 1000, *std.shape)), jnp.float32), stds
    )
    without = jax.tree.map(lambda std: 0.75 * std, stds)
    facts = IntervalFacts(parts=Parts(stds, without, stds, without, stds), caveats=("Not so.",))
    posterior = replace(posterior, kept=kept, raw=raw, intervals=facts)
    model.table_ = replace(model.table_, posterior=posterior)
    return model


@pytest.fixture(scope="module")
def classifier():
    return with_facts(linear(PrivateBayesClassifier, schema=ILL).fit(TRAIN, TRAIN.ill))


@pytest.fixture(scope="module")
def regressor():
    return with_facts(linear(PrivateBayesRegressor, schema=WEEKS).fit(TRAIN, TRAIN.weeks))


@pytest.fixture
def table(classifier):
    with pytest.warns(IntervalWarning):
        return classifier.coefficients(0.9)


def test_every_encoded_column_has_a_row(table):
    assert list(table.index) == ["(intercept)", *FEATURES]
    assert list(table.columns) == COLUMNS
    assert (table.privacy_share == 0.25).all()
    assert (table.low < table["mean"]).all()
    assert (table["mean"] < table.high).all()


def test_units_are_those_of_the_table(table):
    assert table.unit[["dose", "age", "city=Oslo"]].tolist() == [5.0, 36.0, 1.0]
    assert np.isnan(table.unit["(intercept)"])


def test_intervals_are_quantiles_of_the_draws(table, classifier):
    kernel = classifier.table_.posterior.kept["network"]["dense_0"]["kernel"][0, :, 2, 0]
    assert table.low["age"] == pytest.approx(np.quantile(kernel, 0.05), rel=1e-5)
    assert table.high["age"] == pytest.approx(np.quantile(kernel, 0.95), rel=1e-5)


def test_a_target_of_numbers_gives_its_own_units(regressor):
    with pytest.warns(IntervalWarning):
        table = regressor.coefficients()
    assert list(table.index) == ["(intercept)", *FEATURES, "(noise)"]
    draws = regressor.table_.posterior.kept
    kernel = draws["network"]["dense_0"]["kernel"][0, :, 0, 0]
    # Weeks run from 0 to 40: 20 on either side of the middle.
    assert table["mean"]["dose"] == pytest.approx(20 * float(kernel.mean()), rel=1e-4)
    bias = draws["network"]["dense_0"]["bias"][0, :, 0]
    assert table["mean"]["(intercept)"] == pytest.approx(20 + 20 * float(bias.mean()), rel=1e-4)
    noise = 20 * np.exp(np.asarray(draws["log_std"][0]))
    assert table.high["(noise)"] == pytest.approx(np.quantile(noise, 0.95), rel=1e-4)


def test_coefficients_predict_what_the_model_predicts(regressor):
    with pytest.warns(IntervalWarning):
        table = regressor.coefficients()
    features = regressor.table_.schema.encode(TRAIN)
    by_hand = table["mean"]["(intercept)"] + features @ table["mean"][FEATURES].to_numpy()
    every = regressor.table_.predict(TRAIN, num_draws=1000).mean
    np.testing.assert_allclose(by_hand, every, rtol=1e-4, atol=1e-3)


def test_each_of_several_classes_is_called_as_it_was_given():
    labels = np.where(TRAIN.dose < 3, 0.5, np.where(TRAIN.dose < 6, 1.5, 2.5)).astype(str)
    X = TRAIN[["dose", "age"]]
    bounds = ([0, 18], [10, 90])
    model = linear(PrivateBayesClassifier, bounds=bounds, classes=("0.5", "1.5", "2.5"))
    with_facts(model.fit(X, labels))
    with pytest.warns(IntervalWarning):
        table = model.coefficients()
    assert table.index.names == ["class", "coefficient"]
    assert list(table.index.get_level_values(0).unique()) == ["0.5", "1.5", "2.5"]


def test_warnings_point_at_the_caller(classifier):
    with pytest.warns(IntervalWarning, match="Not so") as caught:
        classifier.coefficients()
    assert caught[0].filename == __file__


@pytest.mark.parametrize("level", [0, 1, 90, "0.9", None])
def test_a_level_that_is_no_probability_is_refused(classifier, level):
    with pytest.raises(InvalidArgumentError, match="level"):
        classifier.coefficients(level)


def test_a_network_says_that_it_has_no_coefficients():
    model = PrivateBayesClassifier(
        epsilon=5.0, hidden=(4,), num_steps=2, schema=ILL, random_state=0
    ).fit(TRAIN, TRAIN.ill)
    with pytest.raises(InvalidArgumentError, match=r"network.*hidden=\(\)"):
        model.coefficients()


def test_a_copy_of_a_fitted_estimator_has_the_same_coefficients(classifier, table):
    copied = pickle.loads(pickle.dumps(classifier))
    with pytest.warns(IntervalWarning):
        pd.testing.assert_frame_equal(copied.coefficients(), table)
    assert copied.table_.posterior.raw.num_kept == classifier.table_.posterior.raw.num_kept


def test_samples_and_predictions_are_the_corrected_ones(classifier):
    draws = classifier.sample_posterior()["network"]["dense_0"]["bias"]
    np.testing.assert_array_equal(
        draws, classifier.table_.posterior.kept["network"]["dense_0"]["bias"][0]
    )
    few = classifier.predict_proba(TRAIN)
    every = classifier.table_.predict(TRAIN, num_draws=1000).probabilities
    # The standard error of 250 draws of a probability is at most .5 / sqrt(250).
    np.testing.assert_allclose(few, every, atol=4 * 0.5 / 250**0.5)


@pytest.mark.filterwarnings("ignore::tacit.errors.PrivacyWarning")
def test_a_saved_run_has_its_coefficients_as_a_table(classifier, table, tmp_path):
    classifier.table_.save(tmp_path)
    read = pd.read_csv(tmp_path / "coefficients.csv", index_col="coefficient")
    pd.testing.assert_frame_equal(read[COLUMNS], table, rtol=1e-5)
    assert (read.caveats == "Not so.").all()
