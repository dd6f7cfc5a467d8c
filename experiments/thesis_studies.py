"""The thesis' figures 5.14 to 5.18 (Ghitu): what epsilon, clip and radius do to IBP-DP-HMC.

Everything is as in the row of the main table on averages of 2 x 2 pixels of MNIST, but for what is
varied. Where epsilon is varied, each phase keeps its share. The thesis varies the number of
proposals for figure 5.14, and so the epsilon of its formula; the chain starts from a network that
was trained without privacy, and stays there.
"""

from collections.abc import Sequence
from typing import Any

from experiments.cells import Experiment, Settings, main
from experiments.thesis_chains import ROBUST, private_cell
from experiments.thesis_mnist import QUICK, measure

__all__ = ["BASE", "EXPERIMENT", "RADII", "study", "titles", "varied"]

EPSILONS = (1.0, 2.0, 4.0)
CLIPS = (0.1, 0.3)
RADII = (0.04, 0.12)
BASE = private_cell("mnist", ROBUST)
"""What is varied: the row of the main table."""


def varied(
    base: Settings, *, epsilon: float = 8.0, clip: float = 1.0, radius: float | None = None
) -> Settings:
    """Returns settings with another epsilon, clip or radius.

    Args:
      base: settings of a private chain with epsilon 8.
      epsilon: of the whole chain.
      clip: times the clip norm of all gradients.
      radius: that of all phases; the radius of the test stays.
    """

    def phase(own: Settings) -> dict[str, Any]:
        return own | {
            "epsilon": own["epsilon"] * epsilon / 8.0,
            "clip_norm": own["clip_norm"] * clip,
            "radius": own["radius"] if radius is None else radius,
        }

    return base | {"phases": [phase(own) for own in base["phases"]], "epsilon": epsilon}


def study(base: Settings, radii: Sequence[float]) -> tuple[Settings, ...]:
    """Returns the cells of a study, in the order of `titles`."""
    return (
        *(varied(base, epsilon=each) for each in EPSILONS),
        *(varied(base, radius=each) for each in radii),
        *(varied(base, clip=each) for each in CLIPS),
    )


def titles(radii: Sequence[float]) -> tuple[str, ...]:
    """Returns what each cell of a study changes."""
    return (
        *(f"epsilon {each:g}" for each in EPSILONS),
        *(f"radius {each:g} in training" for each in radii),
        *(f"clip norms times {each:g}" for each in CLIPS),
    )


EXPERIMENT = Experiment(
    name="thesis_studies",
    cells=study(BASE, RADII),
    num_seeds=3,
    measure=measure,
    quick=QUICK,
)

if __name__ == "__main__":
    main(EXPERIMENT)
