"""The twin of a table: its code, its density, its program."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats

from tacit.data import ADULT_SCHEMA, CategoricalColumn, NumericColumn, Schema, Target, load_adult
from tacit.data.columns import Scale
from tacit.errors import InvalidArgumentError
from tacit.synthetic.rows import RowCode
from tacit.synthetic.twin import RowMixture, twin_program

SCHEMA = Schema(
    columns=(
        NumericColumn(name="hours", low=0, high=100),
        CategoricalColumn(name="sex", categories=("Female", "Male")),
    ),
    target=Target(name="ill", classes=("no", "yes")),
)
CODE = RowCode(schema=SCHEMA, atoms=(("hours", 40.0),))
LATENTS = {
    "weights": jnp.array([0.3, -0.4]),
    "levels": jax.random.normal(jax.random.key(1), (2, 8)),
    "locs": jnp.array([[0.2], [0.9]]),
    "scales": jnp.array([[0.05], [0.4]]),
}
MIXTURE = RowMixture(CODE, **LATENTS)
NUM_ROWS = 20_000
log_prob = jax.jit(MIXTURE.log_prob)


@pytest.fixture(scope="module")
def drawn():
    return np.asarray(jax.jit(lambda key: MIXTURE.sample(key, (NUM_ROWS,)))(jax.random.key(2)))


@pytest.fixture(scope="module")
def grid():
    """All rows whose positions lie in the middle of one of 200 parts, and their density."""
    rows = rows_on_a_grid(200)
    return rows, np.exp(log_prob(jnp.asarray(rows)))


def softmax(logits):
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


def slow_density(row):
    """The mixture's density as one would write it for a single row, in double precision."""
    weights, levels, locs, scales = (np.asarray(LATENTS[name], float) for name in LATENTS)
    total = 0.0
    for k, weight in enumerate(softmax(weights)):
        columns = np.split(levels[k], [3, 6])
        density = weight * np.prod([softmax(c)[int(s)] for c, s in zip(columns, row, strict=False)])
        if row[0] == 0:
            low, high = -locs[k, 0] / scales[k, 0], (1 - locs[k, 0]) / scales[k, 0]
            density *= stats.truncnorm.pdf(row[3], low, high, locs[k, 0], scales[k, 0])
        total += density
    return total


def rows_on_a_grid(num_points):
    grid = (np.arange(num_points) + 0.5) / num_points
    numbers = [(0.0, p) for p in grid] + [(1.0, 0.0), (2.0, 0.0)]
    return np.array(
        [
            (slot, sex, ill, position)
            for (slot, position), sex, ill in itertools.product(numbers, range(3), range(2))
        ],
        np.float32,
    )


def test_a_table_survives_its_code_up_to_what_the_schema_says():
    code = RowCode(
        schema=Schema(
            columns=(
                NumericColumn(name="age", low=17, high=90),
                NumericColumn(name="gain", low=0, high=99999, scale=Scale.LOG1P),
                CategoricalColumn(name="rooms", categories=(1, 2)),
            ),
            target=SCHEMA.target,
        ),
        whole=("age", "gain"),
        atoms=(("gain", 0),),
    )
    frame = pd.DataFrame(
        {
            "age": [17.0, 44.0, 130.0, np.nan],
            "gain": [0, 1, 99999, 54321],
            "rooms": [1, 2, 7, 1],
            "ill": ["no", "yes", "no", "no"],
        }
    )
    back = code.decode(code.encode(frame))
    assert back["age"].tolist() == [17, 44, 90, pd.NA]
    assert back["gain"].tolist() == [0, 1, 99999, 54321]
    assert back["rooms"].astype("Int64").tolist() == [1, 2, pd.NA, 1]
    assert back["ill"].tolist() == frame["ill"].tolist()
    assert [str(dtype) for dtype in back.dtypes] == ["Int64", "Int64", "category", "category"]


def test_the_code_of_census_rows_loses_nothing_that_the_schema_keeps():
    table = load_adult()[1][:500]
    code = RowCode(schema=ADULT_SCHEMA, atoms=(("capital_gain", 0), ("hours_per_week", 40)))
    again = code.decode(code.encode(table))
    np.testing.assert_allclose(ADULT_SCHEMA.encode(again), ADULT_SCHEMA.encode(table), atol=1e-5)


def test_a_row_is_coded_by_itself():
    table = load_adult()[1][:20]
    code = RowCode(schema=ADULT_SCHEMA)
    alone = np.concatenate([code.encode(table[i : i + 1]) for i in range(20)])
    np.testing.assert_array_equal(alone, code.encode(table))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"whole": ("sex",)}, "numeric columns"),
        ({"atoms": (("weight", 0.0),)}, "numeric columns"),
        ({"atoms": (("hours", 101.0),)}, "range"),
    ],
)
def test_a_code_that_does_not_fit_the_schema_is_refused(settings, message):
    with pytest.raises(InvalidArgumentError, match=message):
        RowCode(schema=SCHEMA, **settings)


def test_the_density_of_a_row_is_the_slow_one(grid):
    rows, density = grid
    np.testing.assert_allclose(density[::7], [slow_density(row) for row in rows[::7]], rtol=3e-4)


def test_the_density_sums_to_one_over_slots_and_positions(grid):
    rows, density = grid
    # The midpoint rule with 200 parts is good to 1e-3 for bumps of width 0.05.
    assert abs(np.sum(np.where(rows[:, 0] == 0, density / 200, density)) - 1) < 1e-3


def test_drawn_rows_follow_the_density(grid, drawn):
    for slots in itertools.product((1, 2), range(3), range(2)):
        expected = slow_density((*slots, 0.0))
        found = np.mean((drawn[:, :3] == slots).all(axis=1))
        assert abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / NUM_ROWS)
    rows, density = grid
    cdf = np.cumsum(density[(rows[:, :3] == (0, 1, 0)).all(axis=1)])
    chosen = drawn[(drawn[:, :3] == (0, 1, 0)).all(axis=1), 3]
    ends = (np.arange(200) + 1) / 200
    assert stats.kstest(chosen, lambda p: np.interp(p, ends, cdf / cdf[-1])).pvalue > 1e-4


def test_a_row_has_a_position_only_where_it_has_a_number(drawn):
    assert np.all(drawn[drawn[:, 0] != 0, 3] == 0)
    assert np.all((drawn[:, 3] >= 0) & (drawn[:, 3] <= 1))


def test_the_program_is_its_priors_and_one_term_per_row():
    program = twin_program(CODE, num_components=2)
    rows = jnp.asarray(rows_on_a_grid(1)[:5])
    latents = {name: LATENTS[name] for name in ("weights", "levels", "locs")}
    latents["spreads"] = LATENTS["scales"] - 0.02
    expected = (
        dist.Normal(0, 1).log_prob(latents["weights"]).sum()
        + dist.Normal(0, 2).log_prob(latents["levels"]).sum()
        + dist.LogNormal(-2, 1).log_prob(latents["spreads"]).sum()
        + 8 * MIXTURE.log_prob(rows).sum()  # 5 rows stand for 40
    )
    found, _ = log_density(handlers.seed(program, 0), (rows,), {"num_records": 40}, latents)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
