"""The report shows coefficients with their intervals, and says when these are not to be trusted."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from tacit.intervals import IntervalFacts, Parts
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.posterior import Posterior
from tacit.report.html import render_report, write_report
from tacit.report.interval_panel import interval_panel
from tacit.rng import seeded_key
from tacit.samplers import Points
from tacit.studies.run_folder import read_run

CAVEAT = "At least 12 % of the records were <clipped>."


def corrected(posterior, *, share=0.25, caveats=(CAVEAT,)):
    """A posterior with made-up facts: privacy noise accounts for ``share`` of all widths."""
    stds = jax.tree.map(lambda leaf: jnp.ones(leaf.shape[2:]), posterior.kept)
    without = jax.tree.map(lambda std: (1 - share) * std, stds)
    facts = IntervalFacts(parts=Parts(stds, without, stds, without, stds), caveats=caveats)
    return replace(posterior, intervals=facts, raw=posterior)


def linear(num_inputs, num_classes):
    model = bayesian(
        MLP(num_inputs=num_inputs, num_outputs=num_classes),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=num_classes),
    )
    kept = jax.vmap(model.init)(jax.random.split(seeded_key(0), 100))
    kept = jax.tree.map(lambda leaf: leaf[None], kept)
    return Posterior(model=model, sampler=Points(), kept=kept)


@pytest.fixture
def run_of(bare_run):
    """Returns the documents of a run whose posterior is another one."""

    def made(posterior):
        statement = read_run(bare_run).statement
        kept = {key: value for key, value in statement.items() if key != "sha256"}
        replace(posterior, statement=kept).save(bare_run)
        return bare_run

    return made


def text_of(page):
    section = page[
        page.index('<section id="intervals">') : page.index('<section id="uncertainty">')
    ]
    return re.sub(r"<[^>]+>|\s+", " ", section), section


def test_a_corrected_run_shows_coefficients_shares_and_caveats(fitted, run_of):
    posterior = fitted[0].posterior
    raw = posterior if posterior.raw is None else posterior.raw
    page = write_report(run_of(corrected(raw))).read_text("utf-8")
    text, section = text_of(page)
    for part in ("x0", "x2", "(intercept)", "25 %", "without privacy noise"):
        assert part in text
    assert 'class="caveat"' in section
    assert "&lt;clipped&gt;" in section
    assert section.count("<figure>") == 1


def test_a_run_that_was_not_corrected_says_so(fitted, run_of):
    posterior = fitted[0].posterior
    raw = replace(posterior if posterior.raw is None else posterior.raw, intervals=IntervalFacts())
    text, section = text_of(write_report(run_of(raw)).read_text("utf-8"))
    assert "not corrected for privacy noise" in text
    assert "without privacy noise" not in text
    assert "caveat" not in section


def test_a_network_shows_only_what_is_said_against_its_intervals(run_of):
    model = bayesian(
        MLP(num_inputs=3, hidden=(4,), num_outputs=2),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=2),
    )
    kept = jax.tree.map(lambda leaf: leaf[None, None], model.init(seeded_key(0)))
    facts = IntervalFacts(caveats=("Not corrected: networks.",))
    posterior = Posterior(model=model, sampler=Points(), kept=kept, intervals=facts)
    text, section = text_of(write_report(run_of(posterior)).read_text("utf-8"))
    assert "Not corrected: networks." in text
    assert "<figure>" not in section
    assert "<table>" not in section
    without = replace(posterior, intervals=IntervalFacts())
    assert interval_panel(read_run(run_of(without))) is None


def test_each_of_several_classes_has_its_drawing(run_of):
    run = read_run(run_of(corrected(linear(2, 3))))
    panel = interval_panel(run)
    assert [chart.title for chart in panel.charts] == [f"Coefficients of {k}" for k in range(3)]
    assert len(panel.rows) == 3 * 3
    assert panel.columns[0] == "output"
    assert panel.first_number == 2


def test_a_long_table_is_folded_and_its_drawing_has_the_clearest_coefficients(run_of):
    run = read_run(run_of(corrected(linear(60, 2))))
    panel = interval_panel(run)
    assert panel.is_long
    assert "farthest from zero" in panel.words
    drawn = set(re.findall(r">(x\d+)<", panel.charts[0].svg))
    own = run.coefficients.loc[0]
    distance = (own["mean"].abs() / own["std"]).drop("(intercept)")
    assert drawn == set(distance.nlargest(30).index)
    assert "All coefficients" in render_report(run)


def test_more_coefficients_than_anyone_reads_are_not_shown(run_of):
    run = read_run(run_of(corrected(linear(200, 2), caveats=())))
    assert run.coefficients is None


def test_a_run_without_its_arrays_still_has_a_report(run_of):
    folder = run_of(corrected(linear(2, 2)))
    (folder / "posterior.safetensors").unlink()
    run = read_run(folder)
    assert run.coefficients is None
    assert run.intervals.caveats == (CAVEAT,)


def test_numbers_have_two_digits_of_their_standard_deviation(run_of):
    run = read_run(run_of(corrected(linear(1, 2))))
    table = pd.DataFrame(
        {"unit": [np.nan, 36.5], "mean": [1.23456, 1234.5], "std": [0.0123, 45.0],
         "low": [1.2, 1200.0], "high": [1.3, 1300.0], "privacy_share": [0.5, 0.25]},
        index=pd.Index(["(intercept)", "age"], name="coefficient"),
    )  # fmt: skip
    rows = interval_panel(replace(run, coefficients=table)).rows
    assert rows[0] == ["(intercept)", "", "1.235", "1.200 to 1.300", "50 %"]
    assert rows[1] == ["age", "36.5", "1234", "1200 to 1300", "25 %"]
