"""Scores: how good predictions are, one number each, computed in float64.

On records that were not trained on, a score costs no privacy. On private records it is a
release like any other: charge it or do not publish it.

scikit-learn computes the ROC curve's area. The other scores are a line each, written here because
scikit-learn's clip probabilities in silence and number the classes by the labels that occur.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError

__all__ = [
    "Floats",
    "Ints",
    "accuracy",
    "auroc",
    "brier",
    "classified",
    "draws_of",
    "gaussian_nll",
    "mse",
    "nll",
    "numbers",
    "rmse",
]

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


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Returns the fraction of records whose most probable class is their label.

    Of equally probable classes the first counts as predicted.

    Args:
      probabilities: of shape ``(num_records, num_classes)``; every row sums to one.
      labels: integers of shape ``(num_records,)``.

    Example:
      >>> accuracy([[0.9, 0.1], [0.6, 0.4]], [0, 1])
      0.5
    """
    predictive, classes = classified(probabilities, labels)
    return float(np.mean(predictive.argmax(axis=1) == classes))


def nll(probabilities: ArrayLike, labels: ArrayLike, *, floor: float = 0.0) -> float:
    """Returns the mean negative log probability of the labels, in nats.

    Nothing is clipped in silence: a label that was given probability zero makes the score
    infinite, unless ``floor`` says which probability to count instead.

    Args:
      probabilities: of shape ``(num_records, num_classes)``; every row sums to one.
      labels: integers of shape ``(num_records,)``.
      floor: the least probability that a label counts with.

    Example:
      >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
      0.4904
      >>> nll([[1.0, 0.0]], [1])
      inf
      >>> round(nll([[1.0, 0.0]], [1], floor=1e-6), 4)
      13.8155
    """
    _check.fraction(zero=True, one=False, floor=floor)
    predictive, classes = classified(probabilities, labels)
    likelihood = np.maximum(predictive[np.arange(len(classes)), classes], floor)
    with np.errstate(divide="ignore"):
        return float(np.mean(-np.log(likelihood)))


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Returns the mean squared distance from the prediction to the one-hot label, in [0, 2].

    The distance is summed over classes, so for two classes the score is twice that of the
    single-probability form.

    Args:
      probabilities: of shape ``(num_records, num_classes)``; every row sums to one.
      labels: integers of shape ``(num_records,)``.

    Example:
      >>> brier([[0.5, 0.5], [0.0, 1.0]], [0, 1])
      0.25

    Reference:
      Brier, Verification of forecasts expressed in terms of probability, 1950.
    """
    predictive, classes = classified(probabilities, labels)
    one_hot = np.eye(predictive.shape[1])[classes]
    return float(np.mean(np.sum((predictive - one_hot) ** 2, axis=1)))


def auroc(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Returns the area under the ROC curve: of class 1 for two classes, else averaged.

    With more than two classes it is the unweighted mean over classes of that class against
    the rest. Every class needs a record.

    Args:
      probabilities: of shape ``(num_records, num_classes)``; every row sums to one.
      labels: integers of shape ``(num_records,)``.

    Example:
      >>> auroc([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8]], [0, 0, 1, 1])
      0.75
    """
    predictive, classes = classified(probabilities, labels)
    num_classes = predictive.shape[1]
    missing = sorted(set(range(num_classes)) - set(classes.tolist()))
    if missing:
        raise InvalidArgumentError(
            f"labels must contain every class for a ROC curve; class {missing[0]} is missing. "
            "Drop its column and renormalise, or measure more records."
        )
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 (slow to import)

    # Column 0 of two holds 1 - p, where rounding merges small p into ties.
    positives = [1] if num_classes == 2 else range(num_classes)
    return float(np.mean([roc_auc_score(classes == k, predictive[:, k]) for k in positives]))


def mse(predictions: ArrayLike, targets: ArrayLike) -> float:
    """Returns the mean squared error of predictions, of the same shape as the targets.

    Example:
      >>> mse([1.0, 2.0], [1.0, 4.0])
      2.0
    """
    predicted, observed = _matching(predictions=predictions, targets=targets)
    return float(np.mean((predicted - observed) ** 2))


def rmse(predictions: ArrayLike, targets: ArrayLike) -> float:
    """Returns the root of the mean squared error, in the unit of the targets.

    Example:
      >>> rmse([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 8.0])
      2.0
    """
    return float(np.sqrt(mse(predictions, targets)))


def gaussian_nll(mean: ArrayLike, variance: ArrayLike, targets: ArrayLike) -> float:
    """Returns the mean negative log density of the targets under independent Gaussians, in nats.

    For a posterior predictive pass its mean and *total* variance: this scores the Gaussian
    with those moments, not the mixture over draws.

    Args:
      mean: predictive means, of the same shape as the targets.
      variance: predictive variances, positive, of the same shape.
      targets: what was observed.

    Example:
      >>> round(gaussian_nll([0.0], [1.0], [0.0]), 4)
      0.9189
    """
    centre, spread, observed = _matching(mean=mean, variance=variance, targets=targets)
    if spread.min() <= 0:
        raise InvalidArgumentError(
            f"variance must be positive; got {spread.min():.6g}. Add the observation noise."
        )
    return float(np.mean(0.5 * (np.log(2 * np.pi * spread) + (observed - centre) ** 2 / spread)))


def _matching(**arrays: ArrayLike) -> list[Floats]:
    checked = {name: numbers(name, values) for name, values in arrays.items()}
    shapes = {name: array.shape for name, array in checked.items()}
    if len(set(shapes.values())) != 1:
        # (n,) against (n, 1) would broadcast to a plausible, wrong number.
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InvalidArgumentError(f"arrays must have one shape; got {listed}. Reshape them.")
    return list(checked.values())
