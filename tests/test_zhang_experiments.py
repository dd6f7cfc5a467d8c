"""The experiments on Zhang et al.'s tables choose honestly and draw what was measured."""

import numpy as np
import pytest
from experiments import choosing_zhang, zhang_digits, zhang_family, zhang_headline
from experiments.cells import read_rows
from experiments.markdown import at
from experiments.scoring import zhang_ece, zhang_mce

import tacit
from tacit.errors import InvalidArgumentError
from tacit.metrics import accuracy, ece
from tacit.metrics.calibration import mce

ROWS = read_rows("choosing_zhang")


@pytest.mark.parametrize("key", zhang_headline.CHOSEN)
def test_headline_settings_won_on_the_stand_in(key):
    stand_in, network = key
    own = {"data": stand_in, "inputs": "standardised"} | zhang_headline.NETWORKS[network]
    tried = at(ROWS, own)
    assert choosing_zhang.best(tried) == zhang_headline.cell(*key, zhang_headline.CHOSEN[key])


@pytest.mark.parametrize("method", ["SGD", "SGLD"])
def test_a_point_of_the_family_is_run_with_the_noise_that_it_states(method):
    settings = zhang_family.cell(method, batch_size=512)
    found = zhang_family.method_of(settings, 60_000).release.noise_multiplier
    assert found == pytest.approx(settings["noise_multiplier"], abs=5e-5)


def test_the_paper_s_noise_follows_from_its_batch_size_rate_and_clip():
    sampling = zhang_family.papers_batch(60_000, 256)
    method = tacit.SGLD.zhang(sampling=sampling, clip_norm=1.5, learning_rate=5e-6)
    assert zhang_family.coupled_noise(256, 0.3, 1.5) == pytest.approx(
        method.release.noise_multiplier, rel=1e-5
    )


def test_a_histogram_counts_each_draw_once_for_every_class():
    counts = zhang_digits.histogram([[0.05, 0.95], [0.0, 1.0], [0.1, 0.9]])
    assert counts.sum(axis=1).tolist() == [3, 3]
    assert counts[0, :2].tolist() == [2, 1]
    assert counts[1, 9] == 3


def test_a_packed_image_comes_back_within_half_a_grey():
    image = np.random.default_rng(0).random((4, 5))
    found = zhang_digits.unpacked_image(zhang_digits.packed_image(image))
    assert np.abs(found - image).max() <= 0.5 / 15 + 1e-9


def binary(confidence):
    confidence = np.asarray(confidence, dtype=float)
    return np.stack([confidence, 1 - confidence], axis=1)


def test_zhang_ece_is_the_overall_gap():
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(3), size=40)
    labels = generator.integers(0, 3, size=40)
    overall = abs(accuracy(probabilities, labels) - probabilities.max(axis=1).mean())
    assert zhang_ece(probabilities, labels) == pytest.approx(overall, abs=1e-12)


def test_zhang_ece_cancels_what_ece_sees():
    probabilities, labels = binary([0.6, 0.6, 1.0, 1.0, 1.0]), [0, 0, 0, 0, 1]
    assert zhang_ece(probabilities, labels) == pytest.approx(abs(0.8 - 4.2 / 5))
    assert ece(probabilities, labels, num_bins=2) == pytest.approx(0.04)
    assert ece(probabilities, labels, num_bins=10) == pytest.approx((2 * 0.4 + 3 / 3) / 5)


def test_zhang_mce_measures_from_the_midpoint_of_the_bin():
    probabilities, labels = binary([0.8, 0.8]), [0, 1]
    assert zhang_mce(probabilities, labels, num_bins=4) == pytest.approx(0.875 - 0.5)
    assert mce(probabilities, labels, num_bins=4) == pytest.approx(0.8 - 0.5)


@pytest.mark.parametrize("num_bins", [0, -1, 2.5, True])
def test_zhang_mce_refuses_a_number_of_bins_that_is_no_count(num_bins):
    with pytest.raises(InvalidArgumentError, match="num_bins"):
        zhang_mce(binary([0.9]), [0], num_bins=num_bins)
