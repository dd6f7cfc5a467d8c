"""The thesis' figures 5.19 to 5.22 (Ghitu): the studies of IBP-DP-HMC on PneumoniaMNIST."""

from experiments.cells import Experiment, main
from experiments.thesis_mnist import measure
from experiments.thesis_pneumonia import EXPERIMENT as MAIN
from experiments.thesis_pneumonia import private_cell
from experiments.thesis_studies import study

__all__ = ["BASE", "EXPERIMENT", "RADII"]

RADII = (0.005, 0.015)
BASE = private_cell("pneumonia", "IBP-DP-HMC")
"""What is varied: the row of the main table."""

EXPERIMENT = Experiment(
    name="thesis_pneumonia_studies",
    cells=study(BASE, RADII),
    num_seeds=5,
    measure=measure,
    quick=MAIN.quick,
)

if __name__ == "__main__":
    main(EXPERIMENT)
