"""The choices of ``zhang_headline``: rates, clips and sizes, on Fashion-MNIST.

Fashion-MNIST is public, and nothing of MNIST went into the choice. One run of each candidate.
Earlier trials on the same stand-in, not kept, led to these candidates.
"""

from collections.abc import Iterable

from experiments import zhang_headline
from experiments.cells import Experiment, Row, Settings, main
from experiments.choosing import winner

__all__ = ["CANDIDATES", "EXPERIMENT", "RULE", "VARIED", "best"]

VARIED = ("batch_size", "num_steps", "learning_rate", "momentum", "clip_norm", "last_layer_init")
"""What the candidates differ in."""

RULE = "the highest accuracy less ECE wins"

_TRIED: dict[str, tuple[Settings, ...]] = {}

CANDIDATES: dict[str, tuple[Settings, ...]] = {
    name: tuple(
        {"data": "fashion_mnist", **chosen, **changes} for changes in ({}, *_TRIED.get(name, ()))
    )
    for name, chosen in zhang_headline.CHOSEN.items()
}
"""Settings by the name of the headline row that they compete for."""


def best(rows: Iterable[Row]) -> Settings:
    """Returns the settings that the rule chooses."""
    return winner(rows, lambda row: row["scores"]["accuracy"] - row["scores"]["ECE"])


EXPERIMENT = Experiment(
    name="choosing_zhang",
    cells=tuple(cell for cells in CANDIDATES.values() for cell in cells),
    num_seeds=1,
    measure=zhang_headline.measure,
    quick=zhang_headline.QUICK,
)

if __name__ == "__main__":
    main(EXPERIMENT)
