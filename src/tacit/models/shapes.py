"""Shapes: drawings that nobody made, to see what features of images are usually like.

Images of the world have strokes, edges and surfaces in common. So have these, and they are drawn by
chance alone: what is learnt from them is learnt from no one.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_shapes"]

Floats = NDArray[np.float64]


def draw_shapes(num_images: int, shape: tuple[int, int], *, seed: int = 0) -> Floats:
    """Returns drawings of one to six strokes, boxes and ellipses each, with pixels in [0, 1].

    Args:
      num_images: how many.
      shape: height and width.
      seed: the same drawings for the same seed, on every machine.

    Example:
      >>> images = draw_shapes(3, (28, 28))
      >>> images.shape, float(images.min()), bool(images.max() <= 1)
      ((3, 28, 28), 0.0, True)
    """
    rng = np.random.default_rng(seed)
    return np.stack([_drawing(rng, shape) for _ in range(num_images)])


def _drawing(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    image = np.zeros(shape)
    for _ in range(rng.integers(1, 7)):
        kind, brightness = rng.random(), rng.uniform(0.3, 1.0)
        cover = _stroke(rng, shape) if kind < 0.5 else _surface(rng, shape, is_box=kind < 0.75)
        image = image * (1 - cover) + brightness * cover
    return image


def _stroke(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Draws a quadratic Bézier curve with a pen; edges are smooth over one pixel."""
    rows, columns = np.indices(shape)
    ends = rng.uniform(0.1, 0.9, (3, 2)) * shape
    width = rng.uniform(0.7, 2.2)
    time = np.linspace(0, 1, 25)[:, None]
    points = (1 - time) ** 2 * ends[0] + 2 * time * (1 - time) * ends[1] + time**2 * ends[2]
    squares = (rows[..., None] - points[:, 0]) ** 2 + (columns[..., None] - points[:, 1]) ** 2
    return np.clip(width + 0.5 - np.sqrt(squares.min(axis=-1)), 0, 1)


def _surface(rng: np.random.Generator, shape: tuple[int, int], *, is_box: bool) -> Floats:
    """Draws a box or an ellipse, turned by any angle."""
    rows, columns = np.indices(shape)
    centre = rng.uniform(0.2, 0.8, 2) * shape
    half = rng.uniform(0.07, 0.4, 2) * min(shape)
    angle = rng.uniform(0, np.pi)
    down, right = rows - centre[0], columns - centre[1]
    along = np.abs(down * np.cos(angle) + right * np.sin(angle)) / half[0]
    across = np.abs(right * np.cos(angle) - down * np.sin(angle)) / half[1]
    distance = np.maximum(along, across) if is_box else np.hypot(along, across)
    return np.clip((1 - distance) * half.min() + 0.5, 0, 1)
