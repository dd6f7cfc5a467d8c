"""The example programs run, on few records and for few steps, and keep to their budgets."""

import importlib
import math
import warnings
from pathlib import Path

import jax
import pytest

from tacit.errors import PrivacyWarning

ROOT = Path(__file__).parents[1]
PROGRAMS = {
    "adult_twin": 200,
    "bayesian_neural_network": 200,
    "gaussian_mixture": 200,
    "hierarchical_logistic_regression": 100,
    "logistic_regression": 200,
    "negative_binomial_regression": 100,
    "vae": 64,
}
"""The programs, and on how many records they run here."""


@pytest.fixture(autouse=True, scope="module")
def _compile_quickly():
    """Two steps are over before good code is compiled."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True)
def _small_tables_have_a_large_delta():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        yield


def test_every_example_program_is_run_here():
    found = {path.stem for path in (ROOT / "examples/programs").glob("*.py")}
    assert found - {"__init__", "command"} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_program_runs_within_its_budget(name):
    program = importlib.import_module(f"examples.programs.{name}")
    outcome = program.run(num_steps=2, num_records=PROGRAMS[name], epsilon=3.0, seed=0)
    assert all(math.isfinite(score) for score in outcome.scores.values())
    assert 0 < outcome.statement.epsilon <= 3.0
    assert outcome.statement.releases == 2
