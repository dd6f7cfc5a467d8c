"""Clipped per-record sums: a slow, obvious reference, and a fast exact way beside it."""

from tacit.privacy.clipping.bounds import (
    Adding,
    Clipping,
    Flat,
    Normalised,
    PerLayer,
    clip_by_norm,
    clipped_sum,
    squared_norms,
)
from tacit.privacy.clipping.gradient import (
    ClippingReport,
    Summation,
    clipped_gradient_sum,
    explain_clipping,
    gradient_summation_of,
    summation_of,
)
from tacit.privacy.clipping.isolation import require_isolated

__all__ = [
    "Adding",
    "Clipping",
    "ClippingReport",
    "Flat",
    "Normalised",
    "PerLayer",
    "Summation",
    "clip_by_norm",
    "clipped_gradient_sum",
    "clipped_sum",
    "explain_clipping",
    "gradient_summation_of",
    "require_isolated",
    "squared_norms",
    "summation_of",
]
