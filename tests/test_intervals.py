"""Posteriors say what their intervals are made of, and when they are not to be trusted."""

import io
import json
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from rich.console import Console

from tacit import _artefact
from tacit.data import as_records
from tacit.errors import IntervalWarning, InvalidArgumentError
from tacit.intervals import IntervalFacts, Parts, equal_tailed, parameter_names
from tacit.metrics import diagnose
from tacit.models import MLP, Bernoulli, GaussianPrior, bayesian, from_program
from tacit.posterior import Posterior, load_posterior, predict
from tacit.rng import seeded_key
from tacit.samplers import DiagonalGaussian, Points

MODEL = bayesian(
    MLP(num_inputs=2, num_outputs=1), prior=GaussianPrior(std=1.0), likelihood=Bernoulli()
)
CAVEATS = ("Clipping moved the centre.", "One direction was <not> averaged long enough.")


def parts_like(params, total=2.0, without_privacy=1.5):
    stds = {"prior": np.inf, "data": 1.5, "privacy": 1.3}
    stds |= {"total": total, "without_privacy": without_privacy}
    return Parts(**{
        name: jax.tree.map(lambda leaf, std=std: jnp.full(leaf.shape, std, jnp.float32), params)
        for name, std in stds.items()
    })  # fmt: skip


def corrected(num_draws=1000, caveats=CAVEATS, model=MODEL):
    """A posterior of independent draws, whose two raw chains are at different places."""
    start = model.init(seeded_key(0))
    rng = np.random.default_rng(0)

    def states(num_chains, num_kept, shift):
        return jax.tree.map(
            lambda leaf: jnp.asarray(
                rng.normal(size=(num_chains, num_kept, *leaf.shape))
                + shift * np.arange(num_chains).reshape(-1, 1, *[1] * leaf.ndim),
                jnp.float32,
            ),
            start,
        )

    raw = Posterior(model=model, sampler=Points(), kept=states(2, 20, 50.0))
    facts = IntervalFacts(parts=parts_like(start), caveats=caveats)
    kept = states(1, num_draws, 0.0)
    return Posterior(model=model, sampler=Points(), kept=kept, intervals=facts, raw=raw)


def printed(thing, width=100):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(thing)
    return console.file.getvalue()


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_credible_intervals_are_equal_tailed_quantiles_of_the_corrected_draws(level):
    posterior = corrected(caveats=())
    interval = posterior.credible(level)
    draws = posterior.kept["network"]["dense_0"]["kernel"][0]
    for end, share in zip(interval, ((1 - level) / 2, (1 + level) / 2), strict=True):
        kernel = end["network"]["dense_0"]["kernel"]
        assert kernel.shape == (2, 1)
        np.testing.assert_allclose(kernel, np.quantile(draws, share, axis=0), rtol=1e-5)


def test_credible_intervals_of_gaussian_states_have_their_quantiles():
    shapes = MODEL.init(seeded_key(0))
    kept = {
        "mean": jax.tree.map(lambda leaf: jnp.ones((1, 1, *leaf.shape)), shapes),
        "std": jax.tree.map(lambda leaf: jnp.full((1, 1, *leaf.shape), 2.0), shapes),
    }
    posterior = Posterior(model=MODEL, sampler=DiagonalGaussian(), kept=kept)
    interval = posterior.credible(0.9)
    # The standard error of a 5 % quantile of 1000 draws is .067 standard deviations; four of them.
    for end, place in zip(interval, (1 - 2 * 1.645, 1 + 2 * 1.645), strict=True):
        for leaf in jax.tree.leaves(end):
            np.testing.assert_allclose(leaf, place, atol=4 * 0.067 * 2)


@pytest.mark.parametrize("level", [0, 1, -0.5, 90, float("nan"), "0.9", None])
def test_a_level_that_is_no_probability_is_refused(level):
    with pytest.raises(InvalidArgumentError, match="level"):
        corrected().credible(level)


def test_each_caveat_is_a_warning_that_points_at_the_caller():
    with pytest.warns(IntervalWarning) as caught:
        corrected().credible()
    assert [str(each.message) for each in caught] == list(CAVEATS)
    assert {each.filename for each in caught} == {__file__}


def test_intervals_without_caveats_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corrected(caveats=()).credible()
        replace(corrected(), intervals=IntervalFacts(), raw=None).credible()


def test_facts_and_raw_chains_are_saved_and_loaded(tmp_path):
    posterior = corrected()
    raw = replace(posterior.raw, intervals=IntervalFacts(caveats=("Not corrected.",)))
    posterior = replace(posterior, raw=raw, statement={"epsilon": 1.0})
    posterior.save(tmp_path)
    loaded = load_posterior(tmp_path)
    assert loaded.intervals.caveats == CAVEATS
    assert loaded.raw.intervals == raw.intervals
    assert loaded.raw.statement == {"epsilon": 1.0}
    for ours, theirs in (
        (loaded.intervals.parts, posterior.intervals.parts),
        (loaded.raw.kept, posterior.raw.kept),
        (loaded.kept, posterior.kept),
    ):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_an_older_file_says_nothing_about_intervals(tmp_path):
    posterior = replace(corrected(), intervals=IntervalFacts(), raw=None)
    document = {"model": dict(MODEL.spec), "sampler": {"kind": "Points"}, "statement": {}}
    _artefact.write(
        tmp_path, "posterior", _artefact.flatten(posterior.kept, prefix="kept"), document
    )
    loaded = load_posterior(tmp_path)
    assert loaded.intervals == IntervalFacts()
    assert loaded.raw is None


def test_what_is_saved_of_intervals_is_json_without_arrays(tmp_path):
    corrected().save(tmp_path)
    document = json.loads((tmp_path / "posterior.json").read_text())
    assert document["intervals"] == {"is_corrected": True, "caveats": list(CAVEATS)}
    assert document["raw"]["sampler"] == {"kind": "Points"}


def test_diagnostics_look_at_the_chains_and_not_at_corrected_draws():
    posterior = corrected()
    assert diagnose(posterior).r_hat > 1.5  # the chains are far apart
    assert diagnose(posterior) == diagnose(posterior.raw) == diagnose(posterior.raw.kept)
    assert diagnose(posterior.kept).r_hat < 1.05  # corrected draws would have hidden it


def test_a_posterior_that_was_not_corrected_is_diagnosed_itself():
    raw = corrected().raw
    assert raw.chains is raw.kept


def test_predictions_are_made_from_corrected_draws():
    posterior = corrected()
    x = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)
    # All of them; the standard error of the default's 250 draws is at most .5 / sqrt(250).
    every = predict(posterior, x, num_draws=1000).probabilities
    np.testing.assert_allclose(predict(posterior, x).probabilities, every, atol=4 * 0.5 / 250**0.5)
    bare = replace(posterior, raw=None, intervals=IntervalFacts())
    np.testing.assert_array_equal(predict(bare, x).probabilities, every)
    apart = np.abs(predict(posterior.raw, x).probabilities - every)
    assert apart.max() > 0.1


def test_predictions_take_some_corrected_draws_evenly_and_draws_are_all_of_them():
    posterior = corrected()
    indices = np.asarray(posterior.chosen(None).indices)
    assert len(indices) == 250
    assert set(np.diff(indices).tolist()) == {4}
    assert len(posterior.chosen(1000).indices) == 1000
    assert len(posterior.draws()["network"]["dense_0"]["bias"]) == 1000
    assert len(corrected(num_draws=30).chosen(None).indices) == 30


@pytest.mark.parametrize("show", [repr, printed, lambda thing: thing._repr_html_()])
def test_a_posterior_shows_what_its_intervals_are(show):
    text = show(corrected())
    assert "corrected for privacy noise" in text
    plain = show(replace(corrected(), intervals=IntervalFacts(), raw=None))
    assert "interval" not in plain
    assert "corrected" not in plain


@pytest.mark.parametrize("width", [20, 80, 200])
def test_a_terminal_shows_the_parts_and_the_caveats(width):
    lines = printed(corrected(), width).splitlines()
    assert max(map(len, lines)) <= width
    text = printed(corrected(), 200)
    for part in (*CAVEATS, "25 % of their width", "privacy noise", "dense_0.kernel[1, 0]", "∞"):
        assert part in text


def test_a_notebook_escapes_caveats():
    page = corrected()._repr_html_()
    assert "&lt;not&gt;" in page
    assert page.count("<tr") == page.count("</tr>")
    assert "dense_0.bias[0]" in page


def test_many_parameters_are_shown_by_median_and_range():
    params = {"w": jnp.ones(13)}
    parts = parts_like(params)._replace(total={"w": jnp.arange(2.0, 15.0)})
    assert [row[:2] for row in parts.rows] == [
        ("median", "8"),
        ("smallest", "2"),
        ("largest", "14"),
    ]
    few = parts_like({"w": jnp.ones(12)})
    assert [row[0] for row in few.rows] == [f"w[{i}]" for i in range(12)]


def test_shares_lie_between_none_and_all():
    params = {"w": jnp.ones(2)}
    smaller = parts_like(params, total=1.0, without_privacy=1.5)
    assert smaller.privacy_share["w"].tolist() == [0.0, 0.0]
    assert parts_like(params, total=2.0).privacy_share["w"].tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("facts", "rows"),
    [
        (IntervalFacts(), []),
        (
            IntervalFacts(caveats=("Not so.",)),
            [("intervals", "not corrected for privacy noise"), ("caution", "Not so.")],
        ),
    ],
)
def test_facts_without_parts_say_only_what_is_known(facts, rows):
    assert facts.rows == rows
    assert facts.table == []
    assert not facts.is_corrected


def test_names_follow_the_leaves():
    tree = {"b": jnp.ones(()), "a": [jnp.ones((1, 2))]}
    assert parameter_names(tree) == ["a.0[0, 0]", "a.0[0, 1]", "b"]
    assert parameter_names(jnp.ones(2)) == ["[0]", "[1]"]


def test_low_precision_draws_have_intervals():
    low, high = equal_tailed({"w": jnp.arange(5.0, dtype=jnp.bfloat16)}, level=0.5)
    assert (float(low["w"]), float(high["w"])) == (1.0, 3.0)


def test_arviz_gets_corrected_draws_and_raw_chains_apart():
    pytest.importorskip("arviz")
    posterior = replace(corrected(), statement={"epsilon_text": "1.000"})
    exported = posterior.to_arviz()
    assert exported.groups() == ["posterior"]
    assert dict(exported.posterior.sizes)["draw"] == 1000
    assert exported.attrs["epsilon"] == "1.000"
    assert CAVEATS[0] in exported.attrs["intervals"]
    kernel = exported.posterior["network.dense_0.kernel"]
    np.testing.assert_array_equal(kernel, posterior.kept["network"]["dense_0"]["kernel"])
    chains = posterior.raw.to_arviz().posterior
    assert (chains.sizes["chain"], chains.sizes["draw"]) == (2, 20)
    np.testing.assert_array_equal(
        chains["network.dense_0.bias"], posterior.raw.kept["network"]["dense_0"]["bias"]
    )
    assert posterior.to_arviz(num_draws=7).posterior.sizes["draw"] == 7


def test_latents_of_a_program_are_in_their_own_spaces():
    def program(x, y):
        del x
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Normal(0, scale), obs=y)

    model = from_program(program, as_records(jnp.ones((5, 2)), jnp.ones(5)))
    kept = {"scale": jnp.linspace(-1.0, 1.0, 101)[None]}
    posterior = Posterior(model=model, sampler=Points(), kept=kept)
    interval = posterior.credible(0.9)
    np.testing.assert_allclose(interval.low["scale"], np.exp(-0.9), rtol=1e-2)
    np.testing.assert_allclose(interval.high["scale"], np.exp(0.9), rtol=1e-2)
    pytest.importorskip("arviz")
    assert float(posterior.to_arviz().posterior["scale"].min()) > 0
