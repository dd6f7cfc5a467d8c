"""Recalibration after a fit: on public records for nothing, on private ones for a price."""

from tacit.recalibration.conformal import (
    PrivateThreshold,
    aps_scores,
    conformal_interval,
    lac_scores,
    prediction_sets,
    private_threshold,
    public_threshold,
    residual_scores,
    scores_of_labels,
)
from tacit.recalibration.temperature import (
    apply_temperature,
    private_temperature,
    public_temperature,
)

__all__ = [
    "PrivateThreshold",
    "apply_temperature",
    "aps_scores",
    "conformal_interval",
    "lac_scores",
    "prediction_sets",
    "private_temperature",
    "private_threshold",
    "public_temperature",
    "public_threshold",
    "residual_scores",
    "scores_of_labels",
]
