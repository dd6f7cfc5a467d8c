"""The choices of ``robust_mnist`` and ``robust_pneumonia``, on Fashion-MNIST and its shirts."""

from typing import TypeAlias

from experiments import robust_mnist, robust_pneumonia
from experiments.cells import Experiment, Measured, Row, Settings, main

__all__ = ["EXPERIMENT", "TRIED", "score"]

TRIED = (
    "hidden",
    "first_layer",
    "batch_size",
    "num_steps",
    "clip_norm",
    "learning_rate",
    "ramp",
    "average",
    "training_radius",
    "thinning",
)
"""What differs between candidates, in the order of the tuples below."""

_Candidates: TypeAlias = tuple[tuple[object, ...], ...]
_IMAGES: dict[tuple[str, float], _Candidates] = {
    ("SGHMC", 1.0): (
        ([64], 0.1, 6000, 300, 0.5, 2.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 1.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 150, 0.5, 2.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 1.0, 0.6, 0.9, 0.08, 15),
        ([64], 0.1, 6000, 300, 0.5, 1.0, 0.9, 0.9, 0.09, 5),
    ),
    ("SGHMC", 3.0): (
        ([64], 0.1, 6000, 300, 0.5, 2.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 4.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 2.0, 0.3, 0.0, 0.1, 15),
        ([200], 0.1, 6000, 300, 0.5, 2.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 2.0, 0.6, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 600, 0.5, 1.5, 0.6, 0.9, 0.08, 15),
        ([200], 0.1, 6000, 600, 0.5, 2.0, 0.9, 0.9, 0.09, 5),
    ),
    ("VI", 3.0): (
        ([64], 0.1, 6000, 300, 0.5, 1.0, 0.3, 0.0, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 2.0, 0.3, 0.0, 0.1, 15),
    ),
    ("VI", 1.0): (
        ([64], 0.1, 6000, 300, 0.5, 0.5, 0.3, 0.0, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 1.0, 0.3, 0.0, 0.1, 15),
    ),
}
_SHIRTS: _Candidates = (
    ([32], 0.3, 5232, 200, 1.0, 0.5, 0.3, 0.9, 0.01, 10),
    ([32], 0.3, 5232, 200, 1.0, 1.0, 0.3, 0.9, 0.01, 10),
    ([32], 0.3, 5232, 200, 3.0, 0.3, 0.3, 0.9, 0.01, 10),
    ([32], 0.3, 5232, 200, 3.0, 0.1, 0.3, 0.9, 0.01, 10),
    ([], 1.0, 5232, 200, 1.0, 1.0, 0.3, 0.9, 0.01, 10),
)


def measure(settings: Settings, seed: int) -> Measured:
    """Runs what the experiment of the table runs, on its stand-in."""
    of_table = robust_pneumonia if settings["data"] == "shirts" else robust_mnist
    return of_table.measure(settings, seed)


def score(row: Row) -> float:
    """Returns what is chosen by: right, and right for certain."""
    return row["scores"]["accuracy"] + row["scores"]["certified"]


def _choice(values: tuple[object, ...]) -> Settings:
    return dict(zip(TRIED, values, strict=True))


EXPERIMENT = Experiment(
    name="choosing_robust",
    cells=tuple(
        robust_mnist.cell("fashion_mnist", *key, _choice(values))
        for key, candidates in _IMAGES.items()
        for values in candidates
    )
    + tuple({"data": "shirts"} | robust_pneumonia.COMMON | _choice(each) for each in _SHIRTS),
    num_seeds=1,
    measure=measure,
    quick=robust_mnist.QUICK,
)

if __name__ == "__main__":
    main(EXPERIMENT)
