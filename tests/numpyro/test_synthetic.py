"""Synthetic tables: they keep to the schema, come from the draws, and are honestly uncertain."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer import Trace_ELBO

from tacit.data import CategoricalColumn, NumericColumn, Schema, Target
from tacit.errors import InvalidArgumentError, PrivacyWarning
from tacit.numpyro import DPSVI
from tacit.synthetic.rows import RowCode, typed_table
from tacit.synthetic.tables import combined, marginal_distances, synthetic_tables, table_utility
from tacit.synthetic.twin import twin_guide, twin_program

SCHEMA = Schema(
    columns=(
        NumericColumn(name="age", low=20, high=80),
        CategoricalColumn(name="sex", categories=("Female", "Male")),
    ),
    target=Target(name="ill", classes=("no", "yes")),
)


def program(num_records=None):
    """A program with a site for each column, a latent for all rows and one for each."""
    mean = numpyro.sample("mean", dist.Normal(50.0, 20.0))
    with numpyro.plate("records", num_records):
        frailty = numpyro.sample("frailty", dist.Normal())
        age = numpyro.sample("age", dist.Normal(mean, 10.0))
        numpyro.sample("sex", dist.Categorical(probs=jnp.array([0.5, 0.4, 0.1])))
        numpyro.sample("ill", dist.Bernoulli(logits=(age - 50.0) / 10.0 + frailty))


def tables(draws, **settings):
    return synthetic_tables(
        jax.random.key(0), program, draws, **{"code": SCHEMA, "num_rows": 400} | settings
    )


def people(num_rows, seed=0, effect=1.0):
    """Real rows: the old and the male are ill more often."""
    rng = np.random.default_rng(seed)
    age, male = rng.uniform(20, 80, num_rows), rng.random(num_rows) < 0.5
    ill = rng.random(num_rows) < 1 / (1 + np.exp(-effect * ((age - 50) / 5 + 2 * male - 1)))
    return pd.DataFrame(
        {
            "age": age,
            "sex": np.where(male, "Male", "Female"),
            "ill": np.where(ill, "yes", "no"),
        }
    )


def test_a_table_keeps_to_the_schema_whatever_was_drawn():
    values = {
        "age": [np.inf, -np.inf, np.nan, 1e30],
        "sex": [0, 1, 2, -1],
        "ill": [0, 1, 1, 0],
    }
    table = typed_table(SCHEMA, values, whole=("age",))
    assert table["age"].tolist() == [80, 20, pd.NA, 80]
    assert table["sex"].isna().tolist() == [False, False, True, True]
    assert table["sex"].cat.categories.tolist() == ["Female", "Male"]
    assert table["ill"].tolist() == ["no", "yes", "yes", "no"]


def test_a_table_without_a_column_or_with_an_unknown_class_is_refused():
    with pytest.raises(InvalidArgumentError, match="missing: ill"):
        typed_table(SCHEMA, {"age": [30.0], "sex": [0]})
    with pytest.raises(InvalidArgumentError, match="class numbers"):
        typed_table(SCHEMA, {"age": [30.0], "sex": [0], "ill": [2]})


def test_each_table_comes_from_a_draw_of_its_own():
    draws = {"mean": jnp.array([30.0, 35.0, 40.0, 45.0, 60.0])}
    means = [table["age"].mean() for table in tables(draws, num_tables=3)]
    # Five standard errors of a mean of 400 ages with standard deviation at most 10.
    np.testing.assert_allclose(means, [30.0, 40.0, 60.0], atol=5 * 10 / np.sqrt(400))


@pytest.mark.parametrize(
    ("draws", "settings", "message"),
    [
        ({"mean": jnp.zeros(2)}, {"num_tables": 3}, "share a draw"),
        ({"other": jnp.zeros(2)}, {}, "missing: mean"),
        ({"mean": jnp.zeros(2), "other": jnp.zeros(2)}, {}, "not such a latent: other"),
        ({"mean": jnp.zeros(2), "frailty": jnp.zeros((2, 400))}, {}, "not such a latent: frailty"),
        ({"mean": jnp.zeros(())}, {}, "leading axis"),
        ({"mean": jnp.zeros(2)}, {"num_rows": 0}, "num_rows"),
    ],
)
def test_draws_that_would_make_a_wrong_table_are_refused(draws, settings, message):
    with pytest.raises(InvalidArgumentError, match=message):
        tables(draws, **settings)


def test_groups_as_many_as_rows_are_not_taken_for_rows():
    def grouped(num_records=None):
        with numpyro.plate("groups", 3):
            means = numpyro.sample("means", dist.Normal(50.0, 20.0))
        with numpyro.plate("records", num_records):
            numpyro.sample("age", dist.Normal(means[0], 1.0))
            numpyro.sample("sex", dist.Categorical(probs=jnp.array([0.5, 0.5])))
            numpyro.sample("ill", dist.Bernoulli(0.5))

    settings = {"code": SCHEMA, "num_rows": 3}
    with pytest.raises(InvalidArgumentError, match="missing: means"):
        synthetic_tables(jax.random.key(0), grouped, {"other": jnp.zeros(1)}, **settings)
    draws = {"means": jnp.array([[40.0, 0.0, 0.0]])}
    (table,) = synthetic_tables(jax.random.key(0), grouped, draws, **settings)
    assert np.all(abs(table["age"] - 40.0) < 6)  # six standard deviations


def test_intervals_from_several_tables_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    num_records, num_tables, num_studies, truth = 100, 10, 2000, 0.7
    covered = 0
    for _ in range(num_studies):
        records_mean = truth + rng.normal() / np.sqrt(num_records)
        # The posterior of a mean of unit normals under a flat prior, and tables drawn from it.
        draws = records_mean + rng.normal(size=num_tables) / np.sqrt(num_records)
        tables = draws[:, None] + rng.normal(size=(num_tables, 500))
        low, high = combined(tables.mean(axis=1), tables.var(axis=1, ddof=1) / 500).interval(0.9)
        covered += low <= truth <= high
    # Four standard errors of a coverage of 0.9 over 2000 studies are 0.027.
    assert abs(covered / num_studies - 0.9) < 0.027


def test_tables_from_a_single_draw_would_have_misled():
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(10, 500))
    one_draw = combined(tables.mean(axis=1), tables.var(axis=1) / 500)
    assert one_draw.variance < 0.5 / 100  # the posterior's own variance is 1/100
    with pytest.raises(InvalidArgumentError, match="at least two"):
        combined([0.0], [1.0])


def test_a_table_equals_itself_and_is_far_from_its_opposite():
    table = people(200)
    assert set(marginal_distances(table, table, SCHEMA).values()) == {0.0}
    young = pd.DataFrame({"age": [20.0], "sex": ["Male"], "ill": ["no"]})
    old = pd.DataFrame({"age": [80.0], "sex": ["?"], "ill": ["yes"]})
    assert set(marginal_distances(young, old, SCHEMA).values()) == {1.0}
    missing = old.assign(age=np.nan)
    assert marginal_distances(old, missing, SCHEMA)["age"] == 1.0


def test_a_table_that_lost_the_target_is_useless_to_a_classifier():
    real, test = people(600, seed=1), people(600, seed=2)
    kept = table_utility(people(600, seed=3), real=real, test=test, schema=SCHEMA)
    lost = table_utility(people(600, seed=3, effect=0.0), real=real, test=test, schema=SCHEMA)
    assert kept.real == lost.real
    assert abs(kept.synthetic.auc - kept.real.auc) < 0.03
    assert lost.synthetic.auc < kept.synthetic.auc - 0.1
    only_ill = real[real["ill"] == "yes"]
    assert table_utility(only_ill, real=real, test=test, schema=SCHEMA).synthetic.auc == 0.5


@pytest.fixture
def _quick_compiles():
    """Most of the time of a small fit is spent on compiling."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.usefixtures("_quick_compiles")
def test_a_private_twin_keeps_what_a_classifier_needs():
    code = RowCode(schema=SCHEMA)
    real, test = people(4000, seed=4), people(1000, seed=5)
    twin = twin_program(code, num_components=4)
    guide = twin_guide(twin)
    svi = DPSVI(
        twin,
        guide,
        numpyro.optim.Adam(0.05),
        Trace_ELBO(),
        epsilon=4.0,
        clip_norm=2.0,
        batch_size=400,
        seed=0,
    )
    with pytest.warns(PrivacyWarning):
        result = svi.run(jax.random.key(0), 400, code.encode(real), progress_bar=False)
    draws = guide.sample_posterior(jax.random.key(1), result.params, sample_shape=(2,))
    found = synthetic_tables(jax.random.key(2), twin, draws, code=code, num_rows=2000)
    ours = table_utility(found[0], real=real, test=test, schema=SCHEMA)
    assert ours.synthetic.auc > ours.real.auc - 0.05
    assert max(ours.marginals.values()) < 0.1
    assert svi.statement(result.state).epsilon <= 4.0
