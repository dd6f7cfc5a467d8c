"""Clipped per-record sums: a slow, obvious reference and what builds on it."""
