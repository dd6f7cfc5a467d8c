"""What an estimator learns of records comes through the engine, and through nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.tables import patients
from tacit import PrivateBayesClassifier, PrivateBayesRegressor
from tacit.estimators import PrivateScaler, tune
from tacit.inference.compilation import forget_kernels
from tacit.privacy.mechanism import GaussianSum

NUMBERS = ["dose", "age"]
QUICK = {"num_steps": 3, "clip_norm": 1.0, "random_state": 0, "epsilon": 5.0, "delta": 1e-3}
TABLES = (patients(120, seed=0), patients(120, seed=1) + patients(120, seed=2))


@pytest.fixture(autouse=True)
def _the_engine_is_silent(monkeypatch):
    release = GaussianSum._release

    def zeros(self, *arguments):
        shapes = jax.eval_shape(lambda: release(self, *arguments))
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    forget_kernels()
    monkeypatch.setattr(GaussianSum, "_release", zeros)
    yield
    forget_kernels()


def learnt(model):
    """All that a fitted estimator would publish, as one flat tuple."""
    document = dict(model.table_.statement)
    document.pop("date")
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(model.table_.posterior.kept)]
    return leaves, document, model.table_.schema, model.table_.progress


def test_without_the_engine_two_tables_give_the_same_regressor_and_the_same_bounds():
    first, second = (
        PrivateBayesRegressor(**QUICK).fit(table[NUMBERS], table.weeks) for table in TABLES
    )
    assert learnt(first) == learnt(second)


def test_without_the_engine_two_tables_of_people_give_the_same_classifier():
    found = []
    for table in TABLES:
        model = PrivateBayesClassifier(**QUICK, max_rows=2, classes=["no", "yes"])
        labels = np.where(table.dose > table.dose.median(), "yes", "no")
        groups = np.arange(120) // 2
        model.fit(table[NUMBERS], labels, sample_weight=table.age / 999, groups=groups)
        found.append(learnt(model))
    assert found[0] == found[1]


def test_without_the_engine_two_tables_tune_alike():
    candidates = [{"learning_rate": 0.1}, {"hidden": (2,)}]
    first, second = (
        tune(PrivateBayesRegressor(**QUICK), candidates, table[NUMBERS], table.weeks)
        for table in TABLES
    )
    assert first.best == second.best
    np.testing.assert_array_equal(first.scores, second.scores)
    assert learnt(first.estimator) == learnt(second.estimator)


def test_without_the_engine_two_tables_are_scaled_alike():
    first, second = (
        PrivateScaler(epsilon=5.0, random_state=0).fit(table[NUMBERS]) for table in TABLES
    )
    np.testing.assert_array_equal(first.low_, second.low_)
    np.testing.assert_array_equal(first.high_, second.high_)
