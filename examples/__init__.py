"""One short script for each method, on real records: ``python -m examples.sgld``."""
