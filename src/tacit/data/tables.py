"""Tables: a data frame and its public schema become records."""

import pandas as pd

from tacit.data.records import as_records
from tacit.data.schema import Schema, require_columns
from tacit.typing import Record

__all__ = ["encode_table"]


def encode_table(
    frame: pd.DataFrame,
    schema: Schema,
    *,
    weight: str | None = None,
    max_weight: float = 1.0,
    groups: str | None = None,
    max_rows: int | None = None,
) -> Record:
    """Returns the records of a table with labels; ``x`` are features, ``y`` class numbers.

    Where the target is numeric, ``y`` is in ``[-1, 1]``.

    For rows without labels ``schema.encode(frame)`` gives the same features.

    Guarantee:
      A record depends on its own row (with ``groups``, on the rows of its unit) and on public
      arguments only. Errors may depend on the records and are not for publication.

    Args:
      frame: the table; its index and further columns are ignored.
      schema: the public description of the table.
      weight: the column that holds weights between 0 and ``max_weight``, if any.
      max_weight: public upper end for weights.
      groups: the column that says whose each row is, if a unit of privacy has several rows.
      max_rows: public number of rows kept per unit; required with ``groups``.

    Example:
      >>> from tacit.data import Numeric, Target
      >>> schema = Schema(
      ...     columns=(Numeric(name="dose", low=0, high=10),),
      ...     target=Target(name="ill", classes=("no", "yes")),
      ... )
      >>> frame = pd.DataFrame({"dose": [0, 10], "ill": ["yes", "no"]})
      >>> records = encode_table(frame, schema)
      >>> records.x.tolist(), records.y.tolist()
      ([[-1.0, 0.0], [1.0, 0.0]], [1, 0])
    """
    require_columns(frame, [name for name in (weight, groups) if name is not None])
    return as_records(
        schema.encode(frame),
        schema.encode_target(frame),
        weight=None if weight is None else frame[weight].to_numpy(),
        max_weight=max_weight,
        groups=None if groups is None else frame[groups].to_numpy(),
        max_rows=max_rows,
    )
