"""Two test digits, an easy one and a hard one, and what each draw of a posterior says of them."""

from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

import tacit
from tacit.rng import seeded_key
from tacit.typing import Array

__all__ = ["DIGITS", "NUM_BINS", "digit_series", "histogram", "packed_image", "unpacked_image"]

DIGITS = {"easy 2": 1, "hard 3": 18}
"""Rows of MNIST's test images, picked by eye; the paper shows a 2 and a 3 without their rows."""

NUM_BINS = 10
_NUM_DRAWS = 50
_GREYS = "0123456789abcdef"


def digit_series(posterior: tacit.Posterior, x: Array) -> dict[str, Any]:
    """Returns how often draws give each class a probability in each of ten equal bins."""
    return {
        name: histogram(_draw_probabilities(posterior, x[row])).tolist()
        for name, row in DIGITS.items()
    }


def histogram(probabilities: ArrayLike) -> np.ndarray:
    """Returns counts of shape (classes, bins) from probabilities of shape (draws, classes).

    Example:
      >>> histogram([[0.05, 0.95], [0.0, 1.0]])[1]
      array([0, 0, 0, 0, 0, 0, 0, 0, 0, 2])
    """
    values = np.asarray(probabilities)
    bins = np.clip((values * NUM_BINS).astype(int), 0, NUM_BINS - 1)
    return (bins[..., None] == np.arange(NUM_BINS)).sum(axis=0)


def packed_image(image: ArrayLike) -> list[str]:
    """Returns an image in [0, 1] as rows of hexadecimal greys, for a small file.

    Example:
      >>> packed_image([[0.0, 1.0], [0.5, 0.0]])
      ['0f', '80']
    """
    levels = np.rint(np.asarray(image) * 15).astype(int)
    return ["".join(_GREYS[level] for level in row) for row in levels]


def unpacked_image(rows: list[str]) -> np.ndarray:
    """Returns what `packed_image` packed.

    Example:
      >>> unpacked_image(["0f"])
      array([[0., 1.]])
    """
    return np.array([[int(grey, 16) for grey in row] for row in rows]) / 15


def _draw_probabilities(posterior: tacit.Posterior, image: Array) -> Array:
    total = posterior.num_chains * posterior.num_kept
    draws = posterior.draws(max(total, _NUM_DRAWS))
    keys = jax.random.split(seeded_key(0), len(jax.tree.leaves(draws)[0]))

    def of_one(draw: tuple[Any, Array]) -> Any:
        params, key = draw
        return posterior.model.predict(params, image, key)

    return jax.lax.map(of_one, (draws, keys))
