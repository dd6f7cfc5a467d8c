"""Adult: the census-income table of the UCI repository, shipped with its public schema."""

import io
import lzma
from importlib.resources import files

import pandas as pd

from tacit.data.schema import Schema

__all__ = ["ADULT_SCHEMA", "load_adult"]

_FOLDER = files("tacit.data") / "adult"

ADULT_SCHEMA: Schema = Schema.from_toml((_FOLDER / "schema.toml").read_text(encoding="utf-8"))
"""Ranges and categories of Adult, from its documentation; the file says why each was chosen."""


def load_adult() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the official training (32561 rows) and test (16281 rows) parts of UCI Adult.

    Each row is a person questioned for the 1994 census; ``income`` is ``<=50K`` or ``>50K``. A
    missing category is written ``?``, as in the original.

    Example:
      >>> from tacit.data import ADULT_SCHEMA, encode_table
      >>> train, test = load_adult()
      >>> encode_table(train, ADULT_SCHEMA).x.shape
      (32561, 87)

    Reference:
      B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository, 1996,
      https://doi.org/10.24432/C5XW20, licence CC BY 4.0.
    """
    return _read("train"), _read("test")


def _read(part: str) -> pd.DataFrame:
    text = lzma.decompress((_FOLDER / f"adult_{part}.csv.xz").read_bytes())
    return pd.read_csv(io.BytesIO(text), keep_default_na=False)
