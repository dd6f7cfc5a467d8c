"""Corrected posteriors of programs: as wide as prior, records and known noise make them."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

from numpyro_cases import KEY, amortised, factor_model, non_private, private, regression, table
from tacit.errors import IntervalWarning
from tacit.inference.evidence import MAX_PARAMETERS
from tacit.numpyro import load_program_posterior, to_arviz

pytestmark = [
    pytest.mark.filterwarnings("ignore:the loss is NaN:tacit.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore:this posterior is INSECURE:tacit.errors.PrivacyWarning"),
]
NUM_RECORDS, NUM_STEPS, NOISE, CLIP_NORM = 400, 300, 20.0, 10.0


def groups(y):
    """Means of two groups around a common one; records see the groups' only."""
    top = numpyro.sample("top", dist.Normal(0.0, 1.0))
    means = numpyro.sample("means", dist.Normal(top, 0.5).expand([2]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(means, 1.0).to_event(1), obs=y)


@pytest.fixture(scope="module")
def fitted():
    """A run on records with means of 0.6 and -0.2, and its posterior."""
    y = np.random.default_rng(0).normal(loc=[0.6, -0.2], size=(NUM_RECORDS, 2))
    svi = private(
        groups,
        AutoNormal(groups, init_scale=0.1),
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE,
        num_steps=NUM_STEPS,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = svi.run(KEY, NUM_STEPS, jnp.asarray(y, jnp.float32), progress_bar=False).state
    return svi, state, svi.posterior(state), y


def noise_aware_gaussian(y, num_releases):
    """The exact posterior of all three latents given the averaged gradient, were it at one point.

    With curvature n and noise of variance v on the averaged gradient, the releases are an
    observation of the groups' means with variance 1 / n + v / n^2.
    """
    n = len(y)
    variance = 1 / n + (NOISE * CLIP_NORM) ** 2 / num_releases / n**2
    prior = np.array([[1 + 2 / 0.25, -4, -4], [-4, 4, 0], [-4, 0, 4.0]])
    return np.linalg.inv(prior + np.diag([0, 1 / variance, 1 / variance]))


def test_draws_are_as_wide_as_the_noise_aware_posterior_of_a_normal_model(fitted):
    *_, posterior, y = fitted
    draws = posterior.draws()
    found = np.concatenate([draws["top"][:, None], draws["means"]], axis=1)
    wanted = np.sqrt(np.diag(noise_aware_gaussian(y, NUM_STEPS)))
    # Releases of the first steps are far away and weigh less, and the curvature is not known.
    ratio = found.std(axis=0) / wanted
    assert np.all((ratio > 0.85) & (ratio < 1.3)), ratio
    offset = found[:, 1:].mean(axis=0) - y.mean(axis=0)
    assert np.all(np.abs(offset) < 4 * wanted[1:])


def test_the_parts_say_what_the_widths_are_made_of(fitted):
    *_, posterior, y = fitted
    parts = posterior.intervals.parts
    np.testing.assert_allclose(parts.total["means"], posterior.draws()["means"].std(0), rtol=0.1)
    np.testing.assert_allclose(parts.prior["means"], math.sqrt(1.25), rtol=1e-3)
    np.testing.assert_allclose(parts.data["means"], len(y) ** -0.5, rtol=0.35)
    assert np.all(parts.total["means"] > parts.without_privacy["means"])
    assert float(parts.privacy["top"]) > 0
    assert "of their width" in str(posterior.intervals.rows)


def test_parameters_are_averaged_and_the_guides_own_draws_stay_at_hand(fitted):
    svi, state, posterior, _ = fitted
    latest = svi.get_params(state)
    assert latest.keys() == posterior.params.keys()
    assert not np.array_equal(latest["means_auto_loc"], posterior.params["means_auto_loc"])
    raw = posterior.raw
    assert raw.raw is None
    assert raw.intervals.parts is None
    drawn = raw.draws(jnp.zeros((2, 2)))["means"]
    np.testing.assert_allclose(drawn.mean(0), posterior.params["means_auto_loc"], atol=0.05)


def test_intervals_predictions_and_exports_use_the_corrected_draws(fitted):
    *_, posterior, _ = fitted
    low, high = posterior.credible(0.9)
    assert low["means"].shape == (2,)
    np.testing.assert_allclose(
        (high["means"] - low["means"]) / posterior.draws()["means"].std(0), 3.29, rtol=0.1
    )
    drawn = posterior.draws(num_draws=1500)["means"]
    assert len(drawn) == 1500
    assert len(np.unique(drawn[:, 0])) > 950  # all of them before any comes again
    assert posterior.predictive(num_draws=7).num_samples == 7
    few = posterior.draws(num_draws=7)["means"]
    np.testing.assert_array_equal(posterior.predictive(num_draws=7).posterior_samples["means"], few)


def test_a_saved_posterior_keeps_draws_intervals_and_caveats(fitted, tmp_path):
    svi, _, posterior, y = fitted
    posterior.save(tmp_path)
    loaded = load_program_posterior(tmp_path, groups, svi.guide)
    jax.tree.map(np.testing.assert_array_equal, loaded.corrected, dict(posterior.corrected))
    jax.tree.map(np.testing.assert_array_equal, loaded.intervals.parts, posterior.intervals.parts)
    assert loaded.intervals.caveats == posterior.intervals.caveats
    jax.tree.map(np.testing.assert_array_equal, loaded.credible(0.5), posterior.credible(0.5))
    assert "corrected for privacy noise" in repr(loaded)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(row.astype("f").tobytes() in written for row in y)


def test_arviz_is_given_corrected_draws_and_is_told_so(clip_unverified):
    pytest.importorskip("arviz")
    svi = private(guide=AutoNormal(regression), num_steps=20)
    state = svi.run(KEY, 20, *table(), progress_bar=False).state
    posterior = svi.posterior(state)
    data = to_arviz(posterior, table(5, seed=7)[0], num_draws=5)
    drawn = posterior.draws(num_draws=5)
    np.testing.assert_array_equal(data.posterior["weights"].values[0], drawn["weights"])
    assert np.all(data.posterior["scale"].values > 0)
    assert "corrected for privacy noise" in data.attrs["intervals"]


def test_a_guide_that_reads_records_keeps_its_draws_and_warns_of_them():
    svi = private(factor_model, amortised, num_steps=2)
    x = table()[0]
    posterior = svi.posterior(svi.run(KEY, 2, x, progress_bar=False).state)
    assert posterior.corrected is None
    assert posterior.raw is None
    with pytest.warns(IntervalWarning, match="'z' is a function of the record"):
        posterior.credible(0.9, x[:2])


def test_more_latents_than_a_curvature_can_be_learnt_for_keep_the_guides_draws():
    def wide(y):
        means = numpyro.sample("means", dist.Normal(0, 1).expand([MAX_PARAMETERS + 1]).to_event(1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Normal(means.sum(), 1.0), obs=y)

    svi = private(wide, AutoNormal(wide), num_steps=1)
    state = svi.init(KEY, jnp.zeros(10))
    assert state.evidence.points.shape[1] == 0
    (caveat,) = svi.posterior(state).intervals.caveats
    assert f"records see {MAX_PARAMETERS + 1} numbers" in caveat


def test_without_privacy_there_is_nothing_to_correct_nor_to_warn_of():
    svi = non_private(guide=AutoNormal(regression))
    state = svi.init(KEY, *table())
    assert state.evidence is None
    posterior = svi.posterior(state)
    assert posterior.corrected is None
    assert posterior.intervals.caveats == ()


def test_a_state_without_a_step_says_so():
    svi = private(guide=AutoNormal(regression), num_steps=1)
    (caveat,) = svi.posterior(svi.init(KEY, *table())).intervals.caveats
    assert "no step was made" in caveat
