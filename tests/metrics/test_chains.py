"""Chain diagnostics against ArviZ's numbers, closed forms and NumPyro."""

import numpy as np
import numpyro.diagnostics
import pytest
from scipy import signal

from tacit.errors import InvalidArgumentError
from tacit.metrics import diagnose
from tacit.metrics.chains import _ess, ess_bulk, ess_tail, mcse, r_hat


def autoregressive(phi, num_chains, num_kept, seed):
    """Chains with autocorrelation phi**lag and variance one, from their stationary law."""
    noise = np.random.default_rng(seed).normal(size=(num_chains, num_kept))
    noise[:, 1:] *= np.sqrt(1 - phi**2)
    return signal.lfilter([1.0], [1.0, -phi], noise, axis=1)


def chains(name):
    generator = np.random.default_rng(7)
    return {
        "independent": lambda: generator.normal(size=(4, 100)),
        "correlated": lambda: autoregressive(0.9, 4, 400, seed=1),
        "alternating": lambda: autoregressive(-0.7, 3, 301, seed=2),
        "heavy tails": lambda: generator.standard_cauchy((4, 250)),
        "other places": lambda: generator.normal(size=(4, 120)) + 0.3 * np.arange(4)[:, None],
        "other widths": lambda: generator.normal(size=(4, 120)) * (1 + np.arange(4))[:, None],
        "a trend": lambda: generator.normal(size=(2, 200)) + np.linspace(0, 2, 200),
        "rejections": lambda: np.repeat(generator.normal(size=(4, 30)), 7, axis=1),
        "few": lambda: generator.normal(size=(2, 6)),
        "few and correlated": lambda: autoregressive(0.95, 4, 20, seed=3),
    }[name]()


# R-hat, bulk and tail effective size and the error of the mean, as ArviZ 0.23.4 gives them.
ARVIZ = {
    "independent": (0.9983889, 412.80921, 338.60917, 0.04557783),
    "correlated": (1.0527647, 86.269794, 185.90242, 0.10760517),
    "alternating": (1.0015322, 2658.8183, 762.03963, 0.019363019),
    "heavy tails": (1.0045484, 907.48414, 921.97321, 1.2776933),
    "other places": (1.0744577, 42.556728, 238.91416, 0.15228625),
    "other widths": (1.1480121, 519.58961, 228.92678, 0.11551929),
    "a trend": (1.1833279, 7.9819819, 79.625013, 0.39885205),
    "rejections": (1.0387924, 122.30081, 85.957201, 0.078294235),
    "few": (1.1625127, 12.950175, 12.950175, 0.18407205),
    "few and correlated": (1.6398653, 10.0333, 22.556391, 0.37275445),
}


@pytest.mark.parametrize("name", ARVIZ)
def test_all_four_are_those_of_arviz(name):
    draws = chains(name)
    ours = [float(diagnostic(draws)) for diagnostic in (r_hat, ess_bulk, ess_tail, mcse)]
    np.testing.assert_allclose(ours, ARVIZ[name], rtol=1e-6)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_the_effective_size_of_an_autoregression_is_the_closed_form(phi):
    draws = autoregressive(phi, 8, 20_000, seed=4)
    expected = draws.size * (1 - phi) / (1 + phi)
    # The sum of autocorrelations up to M lags has a relative error of about sqrt(4 M / size)
    # (Priestley); here M is some 20 correlation times.
    error = np.sqrt(4 * 20 * (1 + phi) / (1 - phi) / draws.size)
    assert float(ess_bulk(draws)) == pytest.approx(expected, rel=4 * error)
    assert float(mcse(draws)) == pytest.approx(expected**-0.5, rel=4 * error)


def test_the_standard_error_is_how_far_means_of_such_chains_scatter():
    draws = autoregressive(0.6, 1600, 200, seed=5).reshape(400, 4, 200)
    means = draws.mean(axis=(1, 2))
    stated = np.mean([float(mcse(one)) for one in draws])
    # Spread of 400 means, 5 sigma; the stated error is a few per cent off at 800 draws.
    assert means.std() == pytest.approx(stated, rel=5 / np.sqrt(2 * 400) + 0.05)


def test_before_ranks_are_taken_the_effective_size_is_numpyros():
    draws = autoregressive(0.8, 4, 500, seed=6)
    # The two end the sum of autocorrelations a little differently.
    assert float(_ess(draws[..., None])[0]) == pytest.approx(
        float(numpyro.diagnostics.effective_sample_size(draws)), rel=0.03
    )


def test_ranks_make_the_bulk_unmoved_by_monotone_changes():
    draws = autoregressive(0.5, 4, 300, seed=8)
    np.testing.assert_allclose(ess_bulk(np.exp(draws)), ess_bulk(draws), rtol=1e-9)
    np.testing.assert_allclose(ess_tail(np.exp(draws)), ess_tail(draws), rtol=1e-9)


def test_r_hat_finds_chains_that_differ_in_place_in_width_or_over_time():
    same = np.random.default_rng(0).normal(size=(4, 400))
    assert r_hat(same) < 1.01
    assert r_hat(same + np.array([0, 0, 0, 1.0])[:, None]) > 1.05
    assert r_hat(same * np.array([1, 1, 1, 3.0])[:, None]) > 1.05
    assert r_hat(same + np.linspace(0, 2, 400)) > 1.05


def test_every_coordinate_is_diagnosed_by_itself():
    draws = np.stack([chains("other places"), chains("other widths")], axis=-1)[:, :, None]
    for diagnostic in (r_hat, ess_bulk, ess_tail, mcse):
        together = diagnostic(draws)
        assert together.shape == (1, 2)
        alone = [diagnostic(draws[:, :, 0, i]) for i in range(2)]
        np.testing.assert_allclose(together[0], alone, rtol=1e-12)


def test_a_quantity_that_never_moved_has_no_diagnostic():
    stuck = np.full((4, 50), 0.1)
    for diagnostic in (r_hat, ess_bulk, ess_tail, mcse):
        assert np.isnan(diagnostic(stuck))
    worst = diagnose({"w": np.random.default_rng(0).normal(size=(4, 50)), "fixed": stuck})
    assert all(np.isfinite(worst))
    assert diagnose(stuck) == (np.inf, 1.0, 1.0)


def test_frozen_chains_are_worth_one_draw_wherever_each_of_them_stands():
    starts = np.random.default_rng(0).normal(size=(3, 1, 5))
    assert diagnose(np.repeat(starts[:1], 20, axis=1)) == (np.inf, 1.0, 1.0)
    assert diagnose(np.repeat(starts, 20, axis=1)) == (np.inf, 1.0, 1.0)
    assert np.all(ess_bulk(np.repeat(starts, 20, axis=1)) == 1.0)


def test_the_worst_coordinate_of_a_tree_is_reported():
    draws = {"good": chains("independent"), "bad": chains("correlated")}
    worst = diagnose(draws)
    assert worst.r_hat == float(r_hat(draws["bad"]))
    assert worst.ess_bulk == float(ess_bulk(draws["bad"]))
    assert worst.ess_tail == float(ess_tail(draws["bad"]))


@pytest.mark.parametrize("shape", [(10,), (4, 3), (2, 3, 100)])
def test_too_few_draws_are_refused_with_the_remedy(shape):
    with pytest.raises(InvalidArgumentError, match="smaller thinning"):
        r_hat(np.ones(shape))


def test_draws_that_are_not_finite_are_refused():
    draws = np.ones((2, 8))
    draws[1, 3] = np.nan
    with pytest.raises(InvalidArgumentError, match="draws must be finite"):
        ess_bulk(draws)
