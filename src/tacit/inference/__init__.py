"""Inference methods: the only layer that knows both privacy and models."""
