"""Figures: they show every bin truthfully, on one scale, without global state."""

import os
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from tacit.errors import InvalidArgumentError
from tacit.metrics import reliability
from tacit.metrics.confidence import wilson_interval
from tacit.report.figures import reliability_diagram


def table(sharpness, num_records=500, num_classes=4, seed=0):
    """Predictions that are overconfident when sharpness exceeds one, calibrated at one."""
    rng = np.random.default_rng(seed)
    truth = rng.dirichlet(np.ones(num_classes), size=num_records)
    labels = (truth.cumsum(axis=1) < rng.random((num_records, 1))).sum(axis=1)
    stated = truth**sharpness
    return reliability(stated / stated.sum(axis=1, keepdims=True), labels)


def panels(figure):
    """Pairs of (gaps, shares) axes, one for each method."""
    return list(zip(figure.axes[::2], figure.axes[1::2], strict=True))


def dots(axes):
    return next(line for line in axes.lines if line.get_marker() == "o").get_xydata()


def texts(figure):
    drawn = [t.get_text() for axes in figure.axes for t in (axes.title, *axes.texts)]
    return "\n".join(drawn)


def test_there_is_a_dot_for_each_filled_bin_at_its_confidence_and_accuracy():
    shown = table(2.0)
    ((gaps, _),) = panels(reliability_diagram({"SGD": shown}))
    filled = shown.counts > 0
    expected = np.stack([shown.confidence[filled], shown.accuracy[filled]], axis=1)
    np.testing.assert_array_equal(dots(gaps), expected)


def test_bars_reach_from_the_diagonal_to_the_accuracy():
    shown = table(2.0)
    ((gaps, _),) = panels(reliability_diagram({"SGD": shown}))
    for bar, (confidence, accuracy) in zip(gaps.patches, dots(gaps), strict=True):
        assert bar.get_y() == pytest.approx(confidence)
        assert bar.get_y() + bar.get_height() == pytest.approx(accuracy)


def test_overconfident_and_underconfident_bars_have_different_colours():
    colours = []
    for sharpness in (3.0, 0.3):
        ((gaps, _),) = panels(reliability_diagram({"SGD": table(sharpness, 5000)}))
        colours.append({bar.get_facecolor() for bar in gaps.patches if abs(bar.get_height()) > 0.1})
    over, under = colours
    assert len(over) == len(under) == 1
    assert over != under


def test_whiskers_are_wilson_intervals_of_the_accuracy():
    shown = table(1.0)
    ((gaps, _),) = panels(reliability_diagram({"SGD": shown}))
    filled = shown.counts > 0
    low, high = wilson_interval(
        np.rint(shown.accuracy[filled] * shown.counts[filled]), shown.counts[filled]
    )
    segments = np.array(gaps.collections[0].get_segments())
    np.testing.assert_allclose(segments[:, :, 1], np.stack([low, high], axis=1))


def test_shares_of_records_sum_to_one_and_their_lines_are_the_overall_means():
    shown = table(2.0)
    ((_, shares),) = panels(reliability_diagram({"SGD": shown}))
    assert sum(bar.get_height() for bar in shares.patches) == pytest.approx(1.0)
    confidence, accuracy = (line.get_xdata()[0] for line in shares.lines)
    weights, filled = shown.counts[shown.counts > 0], shown.counts > 0
    assert confidence == pytest.approx(np.average(shown.confidence[filled], weights=weights))
    assert accuracy == pytest.approx(np.average(shown.accuracy[filled], weights=weights))


def test_titles_labels_and_ece_are_shown_for_every_method():
    shown = {"DP-SGD, ε = 1": table(2.0), "DP-SGLD, ε = 1": table(1.0)}
    written = texts(reliability_diagram(shown))
    for title, method in shown.items():
        assert title in written
        assert f"ECE {method.ece:.3f}" in written


def test_all_methods_share_one_scale_that_hides_no_dot_and_no_interval():
    shown = {
        "a": table(2.0),
        "b": table(0.5, num_classes=2),
        "c": table(1.0, num_records=5),
        "d": table(1.0),
    }
    figure = reliability_diagram(shown)
    figure.canvas.draw()
    assert len({(gaps.get_xlim(), gaps.get_ylim()) for gaps, _ in panels(figure)}) == 1
    assert len({(shares.get_xlim(), shares.get_ylim()) for _, shares in panels(figure)}) == 1
    for gaps, shares in panels(figure):
        assert gaps.get_xlim() == shares.get_xlim()
        assert gaps.get_position().x0 == pytest.approx(shares.get_position().x0)
        assert gaps.get_position().x1 == pytest.approx(shares.get_position().x1)
        ends = np.array(gaps.collections[0].get_segments())
        assert ends[:, :, 0].min() >= gaps.get_xlim()[0]
        assert ends[:, :, 1].min() >= gaps.get_ylim()[0]
        assert max(bar.get_height() for bar in shares.patches) <= shares.get_ylim()[1]


@pytest.mark.parametrize("num_methods", [1, 2, 3, 5])
def test_the_picture_fits_800_pixels_and_nothing_is_cut_off(num_methods, tmp_path):
    figure = reliability_diagram({f"method {i}": table(1.0 + i) for i in range(num_methods)})
    figure.savefig(tmp_path / "reliability.png")
    picture = imread(tmp_path / "reliability.png")
    assert picture.shape[1] <= 800
    for border in (picture[[0, -1], :, :3], picture[:, [0, -1], :3]):
        assert (border == 1).all()
    for gaps, _ in panels(figure):
        (subtitle,) = gaps.texts
        title = gaps.title.get_window_extent()
        # The title's second line is blank, to hold the subtitle; one pixel for rounding.
        assert subtitle.get_window_extent().y1 <= (title.y0 + title.y1) / 2 + 1


def test_a_figure_needs_neither_pyplot_nor_a_display():
    program = (
        "import sys; from tacit.metrics import reliability;"
        "from tacit.report.figures import reliability_diagram;"
        "reliability_diagram({'a': reliability([[.9, .1]], [0])}).canvas.draw();"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    headless = {k: v for k, v in os.environ.items() if k not in {"DISPLAY", "MPLBACKEND"}}
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, env=headless)


def test_no_methods_are_refused():
    with pytest.raises(InvalidArgumentError, match="at least one method"):
        reliability_diagram({})
