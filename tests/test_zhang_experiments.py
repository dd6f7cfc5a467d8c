"""The experiments on Zhang et al.'s tables choose honestly and draw what was measured."""

import numpy as np
import pytest
from experiments import choosing_zhang, zhang_digits, zhang_family, zhang_headline
from experiments.cells import read_rows
from experiments.markdown import at

import tacit

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
