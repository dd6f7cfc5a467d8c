"""How often private credible intervals hold the truth, where the truth is drawn from the prior."""

from examples.coverage.cells import Cell, exact_row, measure, scores
from examples.coverage.methods import METHODS
from examples.coverage.pages import figure, tables
from examples.coverage.problem import Problem
from examples.coverage.problems import PROBLEMS, exponential_rates, normal_mean
from examples.coverage.simulation import Reference, Simulated, optimum, reference, simulate

__all__ = [
    "METHODS",
    "PROBLEMS",
    "Cell",
    "Problem",
    "Reference",
    "Simulated",
    "exact_row",
    "exponential_rates",
    "figure",
    "measure",
    "normal_mean",
    "optimum",
    "reference",
    "scores",
    "simulate",
    "tables",
]
