"""Images stand upright after straightening, whatever they leaned before."""

import numpy as np
import pytest
from experiments.straightening import straightened
from scipy import ndimage

MIDDLE = np.array([13.5, 13.5])


def bar():
    image = np.zeros((28, 28))
    image[6:22, 12:16] = 1.0
    return image


def moved(image, *, lean, shift):
    shear = np.array([[1.0, 0.0], [lean, 1.0]])
    return ndimage.affine_transform(image, shear, MIDDLE + shift - shear @ MIDDLE, order=1)


@pytest.mark.parametrize("lean", [-0.4, 0.0, 0.3])
@pytest.mark.parametrize("shift", [(0.0, 0.0), (2.0, -1.5)])
def test_a_bar_that_leans_and_lies_off_the_middle_comes_back(lean, shift):
    found = straightened(moved(bar(), lean=lean, shift=np.array(shift))[None, ..., None])
    assert np.abs(found[0, :, :, 0] - bar()).mean() < 0.03  # edges are interpolated twice


def test_an_image_is_changed_by_itself_alone():
    images = np.stack([bar(), moved(bar(), lean=0.3, shift=np.zeros(2))])[..., None]
    together = straightened(images)
    alone = np.concatenate([straightened(image[None]) for image in images])
    np.testing.assert_array_equal(together, alone)


def test_an_empty_image_stays_as_it_is():
    empty = np.zeros((1, 28, 28, 1))
    np.testing.assert_array_equal(straightened(empty), empty)


def test_one_row_of_ink_has_no_lean():
    image = np.zeros((28, 28))
    image[3, 4:9] = 1.0
    assert np.isfinite(straightened(image[None, ..., None])).all()
