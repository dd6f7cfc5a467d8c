"""Experiments keep what they measured, and the results page shows it."""

import json
from types import SimpleNamespace

import pytest
from experiments import cells, d3p_hierarchical, figures, render
from experiments.pages import d3p
from experiments.registry import EXPERIMENTS

STATEMENT = SimpleNamespace(
    epsilon_text="1.000", delta=1e-5, adjacency="zero-out", accountant="PLD", releases=2
)


@pytest.mark.parametrize("path", render.PAGES, ids=lambda path: path.stem)
def test_pages_with_results_are_made_from_the_files_of_results(path):
    assert render.rendered(path) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("figure", render.FIGURES, ids=lambda figure: figure.name)
def test_a_picture_shows_the_results_as_they_are(figure):
    assert figures.is_current(figure)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_what_was_measured_is_what_the_script_says(experiment):
    rows = cells.read_rows(experiment.name)
    kept = [(json.dumps(row["settings"]), row["seed"]) for row in rows]
    assert len(set(kept)) == len(kept)
    for row in rows:
        assert row["settings"] in experiment.cells
        # A proposal of Hamiltonian Monte Carlo is one step and several releases.
        settings = row["settings"]
        assert row["releases"] == settings.get("num_releases", settings.get("num_steps"))
        epsilon = row["settings"].get("epsilon", "infinity")
        assert float(row["epsilon"].split()[0]) <= float(epsilon)


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """An experiment of two cells that counts its runs."""
    monkeypatch.setattr(cells, "RESULTS", tmp_path)
    runs = []

    def measure(settings, seed):
        runs.append((settings["size"], seed))
        return cells.Measured({"AUC": settings["size"] + seed / 10}, STATEMENT)

    made = cells.Experiment(
        name="trial",
        cells=({"size": 1}, {"size": 2}),
        num_seeds=2,
        measure=measure,
        quick={"size": 0},
    )
    return SimpleNamespace(made=made, runs=runs, path=tmp_path / "trial.json")


def run(monkeypatch, experiment, *arguments):
    monkeypatch.setattr("sys.argv", ["trial", *arguments])
    cells.main(experiment.made)


def test_a_measured_cell_is_kept_and_not_measured_again(experiment, monkeypatch):
    run(monkeypatch, experiment, "--seeds", "1", "--cells", "1")
    run(monkeypatch, experiment)
    assert experiment.runs == [(1, 0), (2, 0), (1, 1), (2, 1)]
    rows = cells.read_rows("trial")
    assert [row["scores"]["AUC"] for row in rows] == [1.0, 2.0, 1.1, 2.1]
    assert rows[0]["epsilon"] == "1.000"
    assert {"tacit", "jax", "numpyro"} <= set(rows[0]["versions"])


def test_a_quick_trial_keeps_nothing(experiment, monkeypatch):
    run(monkeypatch, experiment, "--quick")
    assert experiment.runs == [(0, 0)]
    assert not experiment.path.exists()


def test_a_half_filled_table_says_so(monkeypatch):
    settings = d3p_hierarchical.EXPERIMENT.cells[0]
    row = {"settings": settings, "seed": 0, "scores": {"AUC": 0.875}, "seconds": 9.0}
    monkeypatch.setattr(d3p, "read_rows", lambda name: [row] * (name == "d3p_hierarchical"))
    section = render.SECTIONS["d3p"]()
    assert f"1 of {d3p_hierarchical.EXPERIMENT.num_planned} runs are made" in section
    assert "| 0.875 (1) | not run | not run | not run |" in section
    assert "Not run yet: `python -m experiments.d3p_vae`." in section
