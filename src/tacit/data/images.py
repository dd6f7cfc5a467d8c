"""Images: bytes become records, scaled by the largest byte and not by what occurs."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _check
from tacit.data.records import as_records
from tacit.errors import InvalidArgumentError
from tacit.typing import Record

__all__ = ["encode_images"]


def encode_images(
    images: NDArray[np.uint8],
    labels: ArrayLike,
    *,
    num_classes: int,
    flatten: bool = False,
    groups: ArrayLike | None = None,
    max_rows: int | None = None,
) -> Record:
    """Returns records with ``x`` in [0, 1], of shape ``(n, height, width, channels)``.

    Guarantee:
      A record depends on its own image and label (with ``groups``, on those of its unit) and on
      public arguments only. Errors may depend on the records and are not for publication.

    Args:
      images: bytes of shape ``(n, height, width)`` or ``(n, height, width, channels)``.
      labels: whole numbers from 0 to ``num_classes - 1``.
      num_classes: the public number of classes.
      flatten: make each image one vector, as a dense network wants it.
      groups: one id per image, if a unit of privacy (a patient) has several.
      max_rows: public number of images kept per unit; required with ``groups``.

    Example:
      >>> black = np.zeros((2, 28, 28), np.uint8)
      >>> encode_images(black, [7, 9], num_classes=10).x.shape
      (2, 28, 28, 1)
      >>> encode_images(black, [7, 9], num_classes=10, flatten=True).x.shape
      (2, 784)
    """
    _check.positive_integer(num_classes=num_classes)
    pixels: NDArray[Any] = np.asarray(images)
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
        raise InvalidArgumentError(
            "images must be bytes (uint8) of shape (n, height, width) or (n, height, width, "
            f"channels); got {pixels.dtype} of shape {pixels.shape}. Arrays that are scaled "
            "already go to as_records."
        )
    classes = np.asarray(labels)
    if classes.dtype.kind not in "iu" or classes.ndim != 1:
        raise InvalidArgumentError(
            "labels must be one whole number per image; "
            f"got {classes.dtype} of shape {classes.shape}. Use labels.ravel() for a column."
        )
    outside = int(np.sum((classes < 0) | (classes >= num_classes)))
    if outside:
        raise InvalidArgumentError(
            f"labels must lie between 0 and num_classes - 1 = {num_classes - 1}; {outside} of "
            f"{classes.size} do not. Correct num_classes or the labels."
        )
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if flatten:
        pixels = pixels.reshape(len(pixels), math.prod(pixels.shape[1:]))
    scaled = pixels.astype(np.float32) / np.float32(255)
    return as_records(scaled, classes, groups=groups, max_rows=max_rows)
