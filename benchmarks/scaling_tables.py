"""Tables and networks of the scaling measurements."""

from pathlib import Path

import numpy as np

from tacit.data import as_records
from tacit.data.record_source import StoredRecords, map_arrays
from tacit.models import MLP, Categorical, GaussianPrior, Model, bayesian
from tacit.typing import Record

__all__ = ["classifier", "make_table", "mapped_table", "table_in_memory"]

_BLOCK, _EVERY = 1024, 100


def classifier(num_inputs: int, hidden: tuple[int, ...], num_classes: int) -> Model:
    """Returns a Bayesian network that tells classes apart."""
    return bayesian(
        MLP(num_inputs=num_inputs, hidden=tuple(hidden), num_outputs=num_classes),
        prior=GaussianPrior(std=0.1),
        likelihood=Categorical(num_classes=num_classes),
    )


def table_in_memory(num_records: int, num_columns: int, num_classes: int) -> Record:
    """Returns random numbers."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((num_records, num_columns), np.float32)
    return as_records(x, generator.integers(num_classes, size=num_records))


def make_table(folder: Path, num_records: int, num_columns: int) -> None:
    """Writes files of which one block in a hundred has values and the others are holes.

    They have their full size for whoever reads them, and take little room on the disk: ten million
    rows are there within a second.
    """
    folder.mkdir(parents=True)
    x = np.lib.format.open_memmap(
        folder / "x.npy", mode="w+", dtype=np.float32, shape=(num_records, num_columns)
    )
    y = np.lib.format.open_memmap(folder / "y.npy", mode="w+", dtype=np.int32, shape=(num_records,))
    generator = np.random.default_rng(0)
    for start in range(0, num_records, _BLOCK * _EVERY):
        rows = x[start : start + _BLOCK]
        rows[...] = generator.standard_normal(rows.shape, np.float32)
        y[start : start + _BLOCK] = rows[:, 0] > 0


def mapped_table(folder: Path) -> StoredRecords:
    """Opens what `make_table` wrote."""
    return map_arrays(
        np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")
    )
