"""The choices of ``zhang_headline``: rates, clips and sizes, on Fashion-MNIST.

Fashion-MNIST is public, and nothing of MNIST went into the choice. One run of each candidate.
Batch size and number of steps are what a few minutes on one core allow. One earlier trial on the
same stand-in, of a network of 784-200-200-10, is not kept.
"""

from collections.abc import Iterable

from experiments import zhang_headline
from experiments.cells import Experiment, Row, Settings, main
from experiments.choosing import winner

__all__ = ["CANDIDATES", "EXPERIMENT", "RULE", "VARIED", "best"]

VARIED = ("clip_norm", "learning_rate", "momentum")
"""What the candidates differ in."""

RULE = "the highest accuracy less ECE wins"

_TRIED: dict[str, tuple[Settings, ...]] = {
    "mlp": (
        {"clip_norm": 10.0, "learning_rate": 0.1, "momentum": 0.0},
        {"clip_norm": 10.0, "learning_rate": 0.05, "momentum": 0.0},
        {"clip_norm": 30.0, "learning_rate": 0.05, "momentum": 0.0},
        {"clip_norm": 3.0, "learning_rate": 0.3, "momentum": 0.0},
        {"clip_norm": 30.0, "learning_rate": 0.1, "momentum": 0.0},
    ),
    "cnn": (
        {"clip_norm": 1.0, "learning_rate": 1.0, "momentum": 0.0},
        {"clip_norm": 1.0, "learning_rate": 2.0, "momentum": 0.0},
        {"clip_norm": 0.3, "learning_rate": 0.3, "momentum": 0.9},
        {"clip_norm": 20.0, "learning_rate": 0.1, "momentum": 0.0},
    ),
}

CANDIDATES: dict[str, tuple[Settings, ...]] = {
    name: tuple(
        {"data": "fashion_mnist", **zhang_headline.CHOSEN[name], **changes} for changes in tried
    )
    for name, tried in _TRIED.items()
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
