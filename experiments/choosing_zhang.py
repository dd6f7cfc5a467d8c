"""The choices of ``zhang_headline``: rates, clips and sizes, on Fashion-MNIST.

Fashion-MNIST is public, and nothing of MNIST went into the choice. One run of each candidate.
Batch size and number of steps are what a few minutes on one core allow.
"""

from collections.abc import Iterable

from experiments import zhang_headline
from experiments.cells import Experiment, Row, Settings, main
from experiments.choosing import winner

__all__ = ["CANDIDATES", "EXPERIMENT", "RULE", "VARIED", "best"]

VARIED = ("clip_norm", "learning_rate", "momentum")
"""What the candidates differ in."""

RULE = "the highest accuracy less ECE wins"

_TRIED: dict[str, tuple[tuple[float, float, float], ...]] = {  # clip norm, rate, momentum
    "mlp": (
        (10.0, 0.1, 0.0),
        (10.0, 0.05, 0.0),
        (30.0, 0.05, 0.0),
        (3.0, 0.3, 0.0),
        (10.0, 0.2, 0.0),
    ),
    "cnn": ((1.0, 1.0, 0.0), (1.0, 2.0, 0.0), (0.3, 0.3, 0.9), (3.0, 0.5, 0.0)),
}

CANDIDATES: dict[str, tuple[Settings, ...]] = {
    name: tuple(
        {
            "data": "fashion_mnist",
            **zhang_headline.CHOSEN[name],
            "clip_norm": clip_norm,
            "learning_rate": rate,
            "momentum": momentum,
        }
        for clip_norm, rate, momentum in tried
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
