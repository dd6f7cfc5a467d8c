"""All experiments, in the order in which they are best run: those that decide come first."""

from experiments import (
    adult_twin,
    choosing_front_end,
    choosing_knolle,
    choosing_pneumonia,
    choosing_regression,
    choosing_robust,
    choosing_thesis,
    choosing_zhang,
    d3p_hierarchical,
    d3p_mixture,
    d3p_speed,
    d3p_vae,
    knolle_mnist,
    knolle_pneumonia,
    mnist_front_end,
    pneumonia,
    robust_mnist,
    robust_pneumonia,
    shipped_programs,
    thesis_mnist,
    thesis_pneumonia,
    thesis_studies,
    together,
    together_coverage,
    zhang_family,
    zhang_headline,
    zhang_regression,
    zhang_tables,
)
from experiments.cells import Experiment

__all__ = ["EXPERIMENTS", "WITHOUT_REPEATS"]

EXPERIMENTS: tuple[Experiment, ...] = (
    choosing_front_end.EXPERIMENT,
    mnist_front_end.EXPERIMENT,
    d3p_vae.EXPERIMENT,
    d3p_mixture.EXPERIMENT,
    d3p_speed.EXPERIMENT,
    d3p_hierarchical.EXPERIMENT,
    adult_twin.EXPERIMENT,
    shipped_programs.EXPERIMENT,
    choosing_regression.EXPERIMENT,
    zhang_regression.EXPERIMENT,
    choosing_zhang.EXPERIMENT,
    zhang_headline.EXPERIMENT,
    zhang_tables.EXPERIMENT,
    zhang_family.EXPERIMENT,
    choosing_pneumonia.EXPERIMENT,
    pneumonia.EXPERIMENT,
    choosing_knolle.EXPERIMENT,
    knolle_pneumonia.EXPERIMENT,
    knolle_mnist.EXPERIMENT,
    choosing_thesis.EXPERIMENT,
    thesis_mnist.EXPERIMENT,
    thesis_pneumonia.EXPERIMENT,
    thesis_studies.EXPERIMENT,
    choosing_robust.EXPERIMENT,
    robust_mnist.EXPERIMENT,
    robust_pneumonia.EXPERIMENT,
    together.EXPERIMENT,
    together_coverage.EXPERIMENT,
)

WITHOUT_REPEATS = tuple({experiment.measure: experiment for experiment in EXPERIMENTS}.values())
"""One experiment for each way of measuring: enough to see that all of them work."""
