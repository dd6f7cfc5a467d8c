"""Records: arrays, tables and images, with one row of every leaf for each unit of privacy."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from tacit import _check
from tacit.data.schema import Schema, require_columns
from tacit.errors import InvalidArgumentError
from tacit.typing import Record, Tree

__all__ = ["as_records", "encode_images", "encode_table", "require_finite"]


def as_records(
    x: Tree,
    y: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    max_weight: float = 1.0,
    groups: ArrayLike | None = None,
    max_rows: int | None = None,
    allow_non_finite: bool = False,
) -> Record:
    """Returns the table of records that inputs, targets and weights make up, on the device.

    Without ``groups`` each row is one record, and ``mask`` is None. With ``groups`` a record is
    one person (or household, hospital stay, ...): all rows that share an id, stacked in the order
    in which they stand, in records ordered by their first row. Every leaf then has the shape
    ``(num_units, max_rows, ...)``; rows of padding are zero, have weight 0 and mask False. Of a
    unit with more than ``max_rows`` rows the first ``max_rows`` are kept and the others dropped,
    so put the rows that matter most first, by a rule that looks at one unit at a time.

    Guarantee:
      Rows of one unit never end up in two records, and a record depends on its own unit only.
      Which values occur never decides a shape; the number of units does, and is public.

    An error raised here may depend on the records (it counts bad rows and shows no value): an
    owner may read it, but it is not covered by any epsilon and is not for publication.

    Args:
      x: inputs, an array or a tree of arrays with one row per entry of ``y``. Whole numbers
        become int32 and floating numbers float32.
      y: targets, one per row.
      weight: how much each row's likelihood counts, between 0 and ``max_weight``; 1 by default.
        It acts inside the clip and so does not change the sensitivity.
      max_weight: public upper end for weights.
      groups: one id per row; rows with the same id belong to one unit of privacy. Ids are compared
        exactly: a person under two spellings is two units, each protected on its own only.
      max_rows: rows kept per unit. A public constant, required with ``groups``: the largest
        count that occurs would tell something about one person.
      allow_non_finite: accept rows with NaN or infinity. In training, a record with such a
        row then contributes nothing at all.

    Example:
      >>> visits = as_records(
      ...     np.array([[1.0], [2.0], [3.0]]), [0, 1, 1], groups=["ann", "bob", "ann"], max_rows=2
      ... )
      >>> visits.x[..., 0].tolist(), visits.mask.tolist()
      ([[1.0, 3.0], [2.0, 0.0]], [[True, True], [True, False]])
    """
    _check.positive(max_weight=max_weight)
    y = _device_ready("y", y)
    num_rows = _num_rows("y", y)
    if not jax.tree.leaves(x):
        raise InvalidArgumentError("x must hold at least one array; got an empty tree.")
    x = jax.tree.map(lambda leaf: _device_ready("x", leaf), x)
    for leaf in jax.tree.leaves(x):
        _require_length("x", leaf, num_rows)
    weight = np.ones(num_rows, np.float32) if weight is None else _weights(weight, max_weight)
    _require_length("weight", weight, num_rows)
    if not allow_non_finite:
        require_finite("x", jax.tree.leaves(x))
        require_finite("y", [y])

    mask = None
    if groups is not None:
        stack = _stacking(groups, max_rows, num_rows)
        x, y, weight = jax.tree.map(stack, (x, y, weight))
        mask = jnp.asarray(stack(np.ones(num_rows, np.bool_)))
    elif max_rows is not None:
        raise InvalidArgumentError(
            f"max_rows bounds the rows of one unit and needs groups, one id per row; "
            f"got max_rows={max_rows!r} and no groups."
        )
    x = jax.tree.map(jnp.asarray, x)
    return Record(x=x, y=jnp.asarray(y), weight=jnp.asarray(weight), mask=mask)


def _stacking(
    groups: ArrayLike, max_rows: int | None, num_rows: int
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Returns the function that turns rows into one padded stack per unit."""
    if max_rows is None:
        raise InvalidArgumentError(
            "max_rows is required with groups: state how many rows of one unit are kept, from "
            "public knowledge and not from the table."
        )
    _check.positive_integer(max_rows=max_rows)
    # NumPy would turn a list of text with a gap into text throughout, the gap included.
    ids = np.asarray(groups, dtype=None if hasattr(groups, "dtype") else object)
    _require_length("groups", ids, num_rows)
    if ids.ndim != 1 or pd.api.types.infer_dtype(ids) in ("mixed", "mixed-integer"):
        raise InvalidArgumentError(
            f"groups must be one id per row, all of one kind (1 and '1' would be two units); got "
            f"{ids.dtype} of shape {ids.shape}. Convert it with astype(str)."
        )
    unit, names = pd.factorize(ids)
    nobody = int(np.sum(unit < 0))
    if nobody:
        raise InvalidArgumentError(
            f"groups must say whose each row is; {nobody} of {num_rows} ids are missing. "
            "Leave these rows out, or give each an id of its own."
        )
    place = pd.Series(unit).groupby(unit).cumcount().to_numpy()
    kept = place < max_rows
    shape = (len(names), max_rows)

    def stack(leaf: NDArray[Any]) -> NDArray[Any]:
        stacked = np.zeros(shape + leaf.shape[1:], leaf.dtype)
        stacked[unit[kept], place[kept]] = leaf[kept]
        return stacked

    return stack


def _device_ready(name: str, values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind in "biu":
        limits = np.iinfo(np.int32)
        if array.dtype.itemsize >= 4 and array.size:
            outside = np.sum((array < limits.min) | (array > limits.max))
            if outside:
                raise InvalidArgumentError(
                    f"{name} must fit 32 bits; {outside} of {array.size} whole numbers do not. "
                    "Convert it to float32, or use smaller codes."
                )
        return array.astype(np.int32)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # becomes infinite, which is reported as such
            return array.astype(np.float32)
    raise InvalidArgumentError(
        f"{name} must hold numbers; got dtype {array.dtype}. "
        "Text and categories are encoded by a Schema, see encode_table."
    )


def _num_rows(name: str, array: NDArray[Any]) -> int:
    if array.ndim == 0 or array.shape[0] == 0:
        raise InvalidArgumentError(
            f"{name} must have one entry per row and at least one; got shape {array.shape}."
        )
    return int(array.shape[0])


def _require_length(name: str, array: Any, num_rows: int) -> None:
    if np.ndim(array) == 0:
        raise InvalidArgumentError(
            f"{name} must have a row axis; got a single number. "
            "Lists of numbers count as trees: turn them into arrays with numpy.asarray."
        )
    if len(array) != num_rows:
        raise InvalidArgumentError(
            f"{name} must have as many rows as y, {num_rows}; got {len(array)}."
        )


def _weights(weight: ArrayLike, max_weight: float) -> NDArray[np.float32]:
    array = _device_ready("weight", weight).astype(np.float32)
    if array.ndim != 1:
        raise InvalidArgumentError(f"weight must be one number per row; got shape {array.shape}.")
    # The comparison is in float32, and its negation also catches NaN.
    outside = int(np.sum(~((array >= 0) & (array <= np.float32(max_weight)))))
    if outside:
        raise InvalidArgumentError(
            f"weight must lie in [0, max_weight={max_weight!r}]; {outside} of {array.size} "
            "do not. Clip them, or raise max_weight, which is public."
        )
    return array


def require_finite(name: str, leaves: list[NDArray[Any]]) -> None:
    """Raises unless all numbers are finite; counts rows and shows none."""
    bad = np.zeros(len(leaves[0]), np.bool_)
    for leaf in leaves:
        bad |= ~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
    if bad.any():
        raise InvalidArgumentError(
            f"{name} must be finite; {int(bad.sum())} of {bad.size} rows hold NaN or infinity "
            "(or exceed float32). Fill or remove them by a rule that looks at one row at a time, "
            "or pass allow_non_finite=True to have their records contribute nothing."
        )


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
      >>> from tacit.data import NumericColumn, Target
      >>> schema = Schema(
      ...     columns=(NumericColumn(name="dose", low=0, high=10),),
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
