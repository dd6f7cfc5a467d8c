"""What the thesis asks of a posterior: accuracy, attacks, certificates, uncertainty, a real chain.

Certificates are sound for the predictive whose accuracy is reported (mean softmax over the same
draws), by linear bounds between intervals. The thesis' certified accuracy averages the softmax of
worst-case logits, which certifies nothing for a mean of draws.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import tacit
from experiments.scoring import class_scores, foreign_scores, predictions
from experiments.thesis_fitting import ball
from experiments.thesis_inputs import Inputs
from tacit.certify import certify_predictive
from tacit.metrics.chains import ess_bulk
from tacit.metrics.uncertainty import ClassificationUncertainty
from tacit.robust import FGSM, PGD

__all__ = ["NUM_EXAMINED", "acceptance_series", "chain_scores", "posterior_scores"]

NUM_EXAMINED = 500
"""How many test images are attacked and certified."""

_NUM_DRAWS = 10
_THRESHOLDS = {2: 0.65, 10: 0.5}
"""Where the thesis cuts the largest probability, by the number of classes."""


def posterior_scores(
    posterior: tacit.Posterior, inputs: Inputs, radius: float | None
) -> dict[str, float]:
    """Returns all scores of a posterior on public test images; without a radius no robust ones."""
    num_draws, test = min(_NUM_DRAWS, posterior.num_kept), inputs.test
    inside = predictions(posterior, test.x, num_draws=num_draws)
    outside = predictions(posterior, inputs.foreign, num_draws=num_draws)
    found = class_scores(inside, test) | foreign_scores(inside, outside)
    found["OOD balanced accuracy"] = _balanced_accuracy(inside, outside)
    if radius is None:
        return found
    # In another order than the file's, which may be sorted by class.
    rows = np.random.default_rng(0).permutation(len(test.y))[:NUM_EXAMINED]
    x, y = test.x[rows], test.y[rows]
    for attack in (FGSM(ball=ball(radius)), PGD(ball=ball(radius), num_steps=20)):
        attacked = tacit.robust_accuracy(posterior, attack, x, y, num_draws=num_draws)
        found[f"accuracy under {type(attack).__name__}"] = float(attacked.accuracy)
    certificate = certify_predictive(posterior, x, y, ball(radius), num_draws=num_draws)
    found["certified accuracy"] = certificate.certified_accuracy.estimate
    found["accuracy on the examined"] = certificate.accuracy.estimate
    return found


def chain_scores(fits: Sequence[tacit.Fit]) -> dict[str, float]:
    """Returns whether the chain really is one; effective sizes are medians over the weights."""
    kept = fits[-1].posterior.kept
    earlier = [np.mean(_accepted(fit)) for fit in fits[:-1] if _proposes(fit)]
    weights = np.concatenate(
        [np.reshape(leaf, (*leaf.shape[:2], -1))[0] for leaf in jax.tree.leaves(kept)], axis=1
    )
    moves = np.linalg.norm(np.diff(weights, axis=0), axis=1)
    every = max(1, weights.shape[1] // 1000)
    with np.errstate(all="ignore"):
        sizes = ess_bulk(weights[None, :, ::every])
    return {
        **({"acceptance before": float(np.mean(earlier))} if earlier else {}),
        "acceptance": float(np.mean(_accepted(fits[-1]))),
        "proposals kept": float(len(weights)),
        "distinct states": float(1 + np.count_nonzero(moves)),
        "effective size": float(np.nanmedian(sizes)) if moves.any() else 1.0,
        "distance of a move": float(np.mean(moves[moves > 0])) if moves.any() else 0.0,
        "norm of the weights": float(np.linalg.norm(weights[-1])),
    }


def acceptance_series(fits: Sequence[tacit.Fit]) -> dict[str, Any]:
    """Returns with which probability each proposal was accepted, phase by phase."""
    found = [
        np.ravel(fit.info.acceptance_probability).round(3).tolist()
        for fit in fits
        if _proposes(fit)
    ]
    return {"acceptance probability": found}


def _proposes(fit: tacit.Fit) -> bool:
    return isinstance(fit.plan.method, tacit.HMC)


def _accepted(fit: tacit.Fit) -> np.ndarray[Any, np.dtype[Any]]:
    return np.asarray(fit.info.acceptance)


def _balanced_accuracy(
    inside: ClassificationUncertainty[Any], outside: ClassificationUncertainty[Any]
) -> float:
    """Returns what the thesis calls AUROC: the mean share of right decisions at its threshold."""
    threshold = _THRESHOLDS[inside.probabilities.shape[1]]
    own, foreign = (each.probabilities.max(axis=1) > threshold for each in (inside, outside))
    return float((np.mean(own) + np.mean(~foreign)) / 2)
