"""The tutorials run, in small, and tell what they say they tell."""

import warnings
from pathlib import Path

import jax
import pytest
from examples.tutorials import images, program

from tacit import PrivacyWarning

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True, scope="module")
def _compile_quickly():
    """A few steps are over before good code is compiled."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True)
def _they_are_seeded_here():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        yield


def test_every_tutorial_is_run_and_shown():
    document = (ROOT / "docs/tutorials.md").read_text(encoding="utf-8")
    found = {path.stem for path in (ROOT / "examples/tutorials").glob("*.py")} - {"__init__"}
    assert found == {"images", "program", "table"}  # tests/estimators runs the last
    assert all(f"examples.tutorials.{name}" in document for name in found)


def test_the_tutorial_about_images_certifies_what_it_publishes(tmp_path, capsys):
    found = images.run(tmp_path, num_steps=8, num_test=32, seed=0)
    certified = [found[f"certified at {radius:g}"] for radius in images.RADII]
    assert certified == sorted(certified, reverse=True)
    assert certified[0] <= found["accuracy"]
    assert found["accuracy of who received it"] == found["accuracy"]
    assert {"posterior.safetensors", "statement.json"} <= {p.name for p in tmp_path.iterdir()}
    assert "differentially private" in capsys.readouterr().out


def test_the_tutorial_about_a_program_draws_tables_and_answers_with_an_interval(capsys):
    found = program.run(num_records=400, num_steps=10, num_tables=4, seed=0)
    assert found["low"] < found["high"]
    assert 0 < found["epsilon"] <= 1.0
    assert found["num_tables"] == 4
    told = capsys.readouterr().out
    assert "age sex treatment recovered" in " ".join(told.split())


def test_the_clinic_of_the_tutorial_has_something_to_find():
    difference, variance = program.effect(program.patients(5000))
    # The odds of recovery grow by a factor of e to the 0.9.
    assert difference == pytest.approx(0.2, abs=4 * variance**0.5)
