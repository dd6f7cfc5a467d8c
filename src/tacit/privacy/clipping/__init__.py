"""Clipped per-record sums: a slow, obvious reference and the rules it obeys."""

from tacit.privacy.clipping.bounds import (
    Clipping,
    Flat,
    Normalised,
    PerLayer,
    clip_by_norm,
    squared_norms,
)
from tacit.privacy.clipping.isolation import require_isolated
from tacit.privacy.clipping.reference import clipped_gradient_sum, clipped_sum

__all__ = [
    "Clipping",
    "Flat",
    "Normalised",
    "PerLayer",
    "clip_by_norm",
    "clipped_gradient_sum",
    "clipped_sum",
    "require_isolated",
    "squared_norms",
]
