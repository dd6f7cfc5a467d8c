"""The thesis' figures 5.14 to 5.18 (Ghitu): what epsilon, clip and radius do to IBP-DP-HMC.

Everything is as in the row of the main table on averages of 2 x 2 pixels of MNIST, but for what is
varied. Where epsilon is varied, each phase keeps its share. The thesis varies the number of
proposals for figure 5.14, and so the epsilon of its formula; the chain starts from a network that
was trained without privacy, and stays there.
"""

from typing import Any

from experiments.cells import Experiment, Settings, main
from experiments.thesis_chains import RADIUS, ROBUST, private_cell
from experiments.thesis_mnist import QUICK, measure

__all__ = ["CLIPS", "EPSILONS", "EXPERIMENT", "RADII", "varied"]

EPSILONS = (1.0, 2.0, 4.0)
CLIPS = (0.1, 0.3)
RADII = (0.04, 0.12)


def varied(*, epsilon: float = 8.0, clip: float = 1.0, radius: float = 1.0) -> Settings:
    """Returns the settings with epsilon, and with clips and radii multiplied.

    Args:
      epsilon: of the whole chain.
      clip: times the clip norm of all gradients.
      radius: times that of all phases; the radius of the test stays.
    """

    def phase(own: Settings) -> dict[str, Any]:
        return own | {
            "epsilon": own["epsilon"] * epsilon / 8.0,
            "clip_norm": own["clip_norm"] * clip,
            "radius": own["radius"] * radius,
        }

    chain = ROBUST | {"phases": [phase(own) for own in ROBUST["phases"]], "epsilon": epsilon}
    return private_cell("mnist", chain)


EXPERIMENT = Experiment(
    name="thesis_studies",
    cells=(
        *(varied(epsilon=each) for each in EPSILONS),
        *(varied(radius=each / RADIUS) for each in RADII),
        *(varied(clip=each) for each in CLIPS),
    ),
    num_seeds=1,
    measure=measure,
    quick=QUICK,
)

if __name__ == "__main__":
    main(EXPERIMENT)
