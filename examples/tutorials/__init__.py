"""Tutorials: complete, short, and run by the tests."""
