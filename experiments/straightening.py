"""Images that are stood upright, each by its own moments.

A digit that leans is sheared back, and its centre of mass is put into the middle. Nothing is looked
at but the image itself, so that it costs no privacy.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tacit.typing import Array

__all__ = ["straightened"]


def straightened(images: Array) -> NDArray[np.float32]:
    """Returns images of shape ``(n, height, width, 1)``, each sheared until it does not lean.

    Example:
      >>> leaning = np.eye(9)[None, :, :, None]
      >>> upright = straightened(leaning)[0, :, :, 0]
      >>> upright.sum(axis=0).round(2).tolist()
      [0.0, 0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0]
    """
    pixels = np.asarray(images, np.float64)[..., 0]
    return np.stack([_upright(image) for image in pixels]).astype(np.float32)[..., None]


def _upright(image: NDArray[np.float64]) -> NDArray[Any]:
    ink = image.sum()
    middle = (np.array(image.shape) - 1) / 2
    if ink == 0:
        return image
    rows, columns = np.indices(image.shape)
    row, column = (rows * image).sum() / ink, (columns * image).sum() / ink
    height = ((rows - row) ** 2 * image).sum()
    lean = ((rows - row) * (columns - column) * image).sum() / height if height > 0 else 0.0
    shear = np.array([[1.0, 0.0], [lean, 1.0]])
    return ndimage.affine_transform(image, shear, np.array([row, column]) - shear @ middle, order=1)
