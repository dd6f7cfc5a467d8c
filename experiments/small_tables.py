"""Six public tables with schemas from public knowledge, and random parts of them.

Ranges and codes follow the published descriptions of the columns (code books, the documentation
of scikit-learn), rounded; none is the minimum or maximum of the rows at hand. Heart and Pima are
CSV files in the folder that TACIT_DATA names; Adult ships with tacit, and the others with
scikit-learn.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import train_test_split

from tacit.data import (
    ADULT_SCHEMA,
    CategoricalColumn,
    NumericColumn,
    NumericTarget,
    Schema,
    Target,
    encode_table,
    load_adult,
)
from tacit.errors import TacitError
from tacit.typing import Record

__all__ = ["TABLES", "Parts", "parts_of", "schema_of", "whole"]

_TEST_SHARE = 0.25


class Parts(NamedTuple):
    """Records to fit and others to score, encoded."""

    train: Record
    test: Record


def schema_of(name: str) -> Schema:
    """Returns the public description of a table."""
    return TABLES[name][0]


@functools.lru_cache(maxsize=1)
def whole(name: str) -> Record:
    """Returns all records of a table, encoded."""
    schema, load = TABLES[name]
    return encode_table(load(), schema)


def parts_of(name: str, seed: int) -> Parts:
    """Returns a random quarter of the records to score and the others to fit, by classes."""
    records = whole(name)
    labels = np.asarray(records.y)
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=_TEST_SHARE,
        random_state=seed,
        stratify=labels if isinstance(schema_of(name).target, Target) else None,
    )
    return Parts(
        *(Record(records.x[rows], records.y[rows], records.weight[rows]) for rows in (train, test))
    )


def _adult() -> pd.DataFrame:
    return pd.concat(load_adult(), ignore_index=True)


def _csv(name: str, origin: str) -> pd.DataFrame:
    folder = Path(os.environ.get("TACIT_DATA") or "data")
    if not (folder / name).is_file():
        raise TacitError(f"{name} is not in {folder} (set TACIT_DATA to its folder). {origin}.")
    return pd.read_csv(folder / name, na_values="?")


def _heart() -> pd.DataFrame:
    frame = _csv("heart_cleveland.csv", "It is processed.cleveland.data of UCI, with a header")
    return frame.assign(ill=(frame.pop("num") > 0).astype(int))


def _pima() -> pd.DataFrame:
    frame = _csv("pima_diabetes.csv", "It is PimaIndiansDiabetes of the R package mlbench")
    # A zero stands for what was not measured.
    holes = ["glucose", "blood_pressure", "skin_thickness", "insulin", "bmi"]
    return frame.assign(**{name: frame[name].replace(0, np.nan) for name in holes})


def _breast() -> pd.DataFrame:
    return load_breast_cancer(as_frame=True).frame


def _digits() -> pd.DataFrame:
    """Returns the means of blocks of two by two pixels, and whether a digit is odd."""
    data = load_digits()
    blocks = data.images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    frame = pd.DataFrame(blocks, columns=[f"block_{i}" for i in range(16)])
    return frame.assign(odd=data.target % 2)


def _diabetes() -> pd.DataFrame:
    return load_diabetes(as_frame=True, scaled=False).frame


def _numbers(**ranges: tuple[float, float]) -> tuple[NumericColumn, ...]:
    return tuple(
        NumericColumn(name=name.replace("__", " "), low=low, high=high)
        for name, (low, high) in ranges.items()
    )


def _codes(**codes: tuple[int, ...]) -> tuple[CategoricalColumn, ...]:
    return tuple(CategoricalColumn(name=name, categories=each) for name, each in codes.items())


# Of a nucleus in a digitised image.
_NUCLEUS = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity"),
    *("concave points", "symmetry", "fractal dimension"),
)
_NUCLEUS_HIGH = {
    "mean {}": (30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1),
    "{} error": (3, 5, 25, 600, 0.05, 0.2, 0.4, 0.06, 0.1, 0.03),
    "worst {}": (40, 50, 270, 4500, 0.25, 1.1, 1.3, 0.3, 0.7, 0.25),
}

TABLES: dict[str, tuple[Schema, Callable[[], pd.DataFrame]]] = {
    "heart": (
        Schema(
            columns=(
                *_numbers(age=(20, 90), trestbps=(80, 220), chol=(100, 600)),
                *_numbers(thalach=(60, 220), oldpeak=(0, 7)),
                *_codes(sex=(0, 1), cp=(1, 2, 3, 4), fbs=(0, 1), restecg=(0, 1, 2)),
                *_codes(exang=(0, 1), slope=(1, 2, 3), ca=(0, 1, 2, 3), thal=(3, 6, 7)),
            ),
            target=Target(name="ill", classes=(0, 1)),
        ),
        _heart,
    ),
    "Pima": (
        Schema(
            columns=_numbers(
                pregnancies=(0, 20),
                glucose=(40, 200),
                blood_pressure=(20, 140),
                skin_thickness=(5, 100),
                insulin=(10, 900),
                bmi=(15, 70),
                pedigree=(0, 2.5),
                age=(20, 90),
            ),
            target=Target(name="outcome", classes=(0, 1)),
        ),
        _pima,
    ),
    "breast cancer": (
        Schema(
            columns=tuple(
                NumericColumn(name=title.format(feature), low=0, high=high)
                for title, limits in _NUCLEUS_HIGH.items()
                for feature, high in zip(_NUCLEUS, limits, strict=True)
            ),
            target=Target(name="target", classes=(0, 1)),
        ),
        _breast,
    ),
    "digits, odd": (
        Schema(
            columns=tuple(NumericColumn(name=f"block_{i}", low=0, high=16) for i in range(16)),
            target=Target(name="odd", classes=(0, 1)),
        ),
        _digits,
    ),
    "diabetes": (
        Schema(
            columns=(
                *_numbers(age=(18, 90), bmi=(15, 50), bp=(50, 150), s1=(80, 320), s2=(30, 250)),
                *_numbers(s3=(15, 110), s4=(1, 10), s5=(3, 6.5), s6=(50, 150)),
                *_codes(sex=(1, 2)),
            ),
            target=NumericTarget(name="target", low=0, high=350),
        ),
        _diabetes,
    ),
    "Adult": (ADULT_SCHEMA, _adult),
}
"""The schema of each table, and what reads its rows."""
