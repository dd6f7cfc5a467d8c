"""One script for each published figure or table: ``python -m experiments.d3p_hierarchical``."""
