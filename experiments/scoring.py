"""Scores of a posterior on public images: right, calibrated, and aware of what it does not know."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import tacit
from tacit import metrics
from tacit.metrics.calibration import mce
from tacit.metrics.selection import fpr95, ood_scores
from tacit.metrics.uncertainty import ClassificationUncertainty
from tacit.typing import Array, Record

__all__ = [
    "class_scores",
    "foreign_scores",
    "predictions",
    "reliability_series",
    "zhang_ece",
    "zhang_mce",
]

_NLL_FLOOR = 1e-7


def predictions(
    posterior: tacit.Posterior, x: Array, *, num_draws: int | None = None
) -> ClassificationUncertainty[NDArray[np.float64]]:
    """Returns the predictive of images; rows add up to one in double precision."""
    found: Any = tacit.predict(posterior, x, num_draws=num_draws)
    probabilities = np.asarray(found.probabilities, np.float64)
    probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
    return found._replace(probabilities=probabilities)


def class_scores(found: ClassificationUncertainty[Any], test: Record) -> dict[str, float]:
    """Returns accuracy, likelihood and calibration; Zhang's definitions beside ours."""
    probabilities, labels = found.probabilities, np.asarray(test.y)
    return {
        "accuracy": metrics.accuracy(probabilities, labels),
        "AUROC": metrics.auroc(probabilities, labels),
        "NLL": metrics.nll(probabilities, labels, floor=_NLL_FLOOR),
        "Brier": metrics.brier(probabilities, labels),
        "ECE": metrics.ece(probabilities, labels),
        "MCE": mce(probabilities, labels),
        "ECE of Zhang": zhang_ece(probabilities, labels),
        "MCE of Zhang": zhang_mce(probabilities, labels),
        "mean confidence": float(probabilities.max(axis=1).mean()),
    }


def zhang_ece(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Returns ``|accuracy - mean confidence|``, which Zhang et al. tabulate as ECE.

    Only for comparison with their tables 2 and 4. With a single bin, over- and underconfident
    records cancel: it is a lower bound of ``ece`` and zero for many miscalibrated models.

    Example:
      >>> round(zhang_ece([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1]), 3)
      0.1

    Reference:
      Zhang et al., Differentially private Bayesian neural networks on accuracy, privacy and
      reliability, ECML PKDD 2022. The text defines the usual ECE; the tables hold this.
    """
    return metrics.ece(probabilities, labels, num_bins=1)


def zhang_mce(probabilities: ArrayLike, labels: ArrayLike, *, num_bins: int = 15) -> float:
    """Returns the largest distance from a bin's accuracy to its midpoint, Zhang et al.'s MCE.

    Only for comparison with their tables 2 and 4, which do not state the number of bins. A
    calibrated model scores up to half a bin width, since the midpoint is not its confidence.

    Example:
      >>> round(zhang_mce([[1.0, 0.0], [1.0, 0.0]], [0, 0], num_bins=10), 3)
      0.05

    Reference:
      Zhang et al., as for ``zhang_ece``.
    """
    table = metrics.reliability(probabilities, labels, num_bins=num_bins)
    midpoints = (table.edges[1:] + table.edges[:-1]) / 2
    return float(np.nanmax(np.abs(table.accuracy - midpoints)))


def foreign_scores(
    inside: ClassificationUncertainty[Any], outside: ClassificationUncertainty[Any]
) -> dict[str, float]:
    """Returns how well each score tells foreign images from one's own."""
    own, foreign = ood_scores(inside), ood_scores(outside)
    found = {}
    for name in own._fields:
        scores = getattr(own, name), getattr(foreign, name)
        found[f"OOD AUROC, {name.replace('_', ' ')}"] = metrics.ood_auroc(*scores)
        found[f"OOD FPR95, {name.replace('_', ' ')}"] = fpr95(*scores)
    return found


def reliability_series(found: ClassificationUncertainty[Any], labels: ArrayLike) -> dict[str, Any]:
    """Returns the filled bins of a reliability diagram."""
    bins = metrics.reliability(found.probabilities, labels)
    filled = bins.counts > 0
    return {
        "confidence": bins.confidence[filled].round(4).tolist(),
        "accuracy": bins.accuracy[filled].round(4).tolist(),
        "count": bins.counts[filled].tolist(),
    }
