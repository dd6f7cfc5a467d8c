"""What predictions and targets must look like before anything is measured."""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidArgumentError

__all__ = ["Floats", "Ints", "classified", "draws_of", "numbers"]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

# Softmax in float32 or float16 misses one by less; logits and counts miss it by far more.
_TOLERANCE = 1e-3


def numbers(name: str, values: ArrayLike) -> Floats:
    """Returns ``values`` in float64, or raises unless there are some and all are finite."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} must be one array of numbers: {error}.") from error
    if array.size == 0:
        raise InvalidArgumentError(
            f"{name} is empty (shape {array.shape}); there is nothing to measure."
        )
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InvalidArgumentError(
            f"{name} must be finite; got {array[where]} at index {where}. "
            "A diverged fit predicts NaN: lower the step size, or drop those draws."
        )
    return array


def _distributions(name: str, values: ArrayLike, axes: tuple[str, ...]) -> Floats:
    array = numbers(name, values)
    if array.ndim != len(axes):
        remedy = "For a binary model stack [1 - p, p]." if array.ndim == len(axes) - 1 else ""
        raise InvalidArgumentError(
            f"{name} must have shape ({', '.join(axes)}); got {array.shape}. {remedy}".rstrip()
        )
    low, high = array.min(), array.max()
    if low < -_TOLERANCE or high > 1 + _TOLERANCE:
        raise InvalidArgumentError(
            f"{name} must lie in [0, 1]; got values from {low:.6g} to {high:.6g}. "
            "Apply a softmax to logits first."
        )
    totals = array.sum(axis=-1)
    worst = np.unravel_index(np.abs(totals - 1).argmax(), totals.shape)
    if abs(totals[worst] - 1) > _TOLERANCE:
        where = tuple(int(i) for i in worst)
        raise InvalidArgumentError(
            f"{name} must sum to 1 over the classes; got {totals[worst]:.6g} at index {where}. "
            "Divide each row by its sum, or apply a softmax to logits."
        )
    return np.clip(array, 0.0, 1.0)


def classified(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    """Returns one distribution over classes and one label for each record, or raises."""
    distributions = _distributions("probabilities", probabilities, ("num_records", "num_classes"))
    classes = np.asarray(labels)
    if classes.shape != distributions.shape[:1]:
        remedy = "Use labels.argmax(-1) for one-hot rows." if classes.ndim == 2 else ""
        raise InvalidArgumentError(
            f"labels must have shape ({len(distributions)},), one for each row of probabilities; "
            f"got {classes.shape}. {remedy}".rstrip()
        )
    if classes.dtype.kind not in "iub":
        raise InvalidArgumentError(
            f"labels must be integers; got dtype {classes.dtype}. Number the classes from 0."
        )
    num_classes = distributions.shape[1]
    if classes.min() < 0 or classes.max() >= num_classes:
        raise InvalidArgumentError(
            f"labels must lie in 0..{num_classes - 1}, the columns of probabilities; "
            f"got {classes.min()} to {classes.max()}."
        )
    return distributions, classes.astype(np.int64)


def draws_of(probabilities: ArrayLike) -> Floats:
    """Returns one distribution over classes for each draw and input, or raises."""
    return _distributions(
        "probabilities", probabilities, ("num_draws", "num_inputs", "num_classes")
    )
