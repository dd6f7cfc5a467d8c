"""All experiments, in the order in which they are best run: those that decide come first."""

from experiments import adult_twin, d3p_hierarchical, d3p_mixture, d3p_vae, shipped_programs
from experiments.cells import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: tuple[Experiment, ...] = (
    d3p_vae.EXPERIMENT,
    d3p_mixture.EXPERIMENT,
    d3p_hierarchical.EXPERIMENT,
    adult_twin.EXPERIMENT,
    shipped_programs.EXPERIMENT,
)
