import numpy as np
import pytest

from tacit.data import encode_images
from tacit.errors import InvalidArgumentError

GREY = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
COLOUR = np.random.default_rng(0).integers(0, 256, (5, 4, 3, 2), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 2, 0], dtype=np.uint8)


def test_images_get_a_channel_axis_and_are_divided_by_255():
    records = encode_images(GREY, LABELS, num_classes=3)
    assert records.x.shape == (5, 4, 3, 1)
    np.testing.assert_allclose(records.x[..., 0], GREY / 255, rtol=1e-6)
    assert records.y.tolist() == LABELS.tolist()
    assert encode_images(COLOUR, LABELS, num_classes=3).x.shape == COLOUR.shape


def test_scaling_does_not_depend_on_the_brightness_that_occurs():
    dark = np.full((5, 4, 3), 51, np.uint8)
    np.testing.assert_allclose(encode_images(dark, LABELS, num_classes=3).x, 0.2, rtol=1e-6)


@pytest.mark.parametrize("images", [GREY, COLOUR])
def test_flat_images_hold_the_same_numbers_in_the_same_order(images):
    flat = encode_images(images, LABELS, num_classes=3, flatten=True).x
    assert flat.ndim == 2
    np.testing.assert_array_equal(
        flat.ravel(), encode_images(images, LABELS, num_classes=3).x.ravel()
    )


def test_the_images_of_one_patient_are_one_record():
    records = encode_images(GREY, LABELS, num_classes=3, groups=[1, 2, 1, 2, 3], max_rows=2)
    assert records.x.shape == (3, 2, 4, 3, 1)
    assert records.mask.tolist() == [[True, True], [True, True], [True, False]]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (GREY / 255, LABELS, "images must be bytes"),
        (GREY[0], LABELS, "images must be bytes"),
        (GREY, LABELS[:, None], r"ravel\(\)"),
        (GREY, LABELS / 2, "whole number per image"),
        (GREY, LABELS + 1, "2 of 5 do not"),
        (GREY, LABELS.astype(int) - 1, "2 of 5 do not"),
        (GREY, LABELS[:4], "x must have as many rows as y, 4; got 5"),
        (GREY[:0], LABELS[:0], "at least one"),
    ],
)
def test_wrong_images_and_labels_are_refused_with_the_remedy(images, labels, message):
    with pytest.raises(InvalidArgumentError, match=message):
        encode_images(images, labels, num_classes=3)
