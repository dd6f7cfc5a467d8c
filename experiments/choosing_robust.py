"""The choices of ``robust_mnist`` and ``robust_pneumonia``, on public stand-ins.

For PneumoniaMNIST shirts and T-shirts of Fashion-MNIST. For MNIST Fashion-MNIST came first; its
winners stop too early for digits, so moved digits, which are nearer, were tried too. That was
decided when the first winners had been run on MNIST. Candidates are judged on stand-ins alone.
"""

from typing import TypeAlias

from experiments import robust_mnist, robust_pneumonia
from experiments.cells import Experiment, Measured, Row, Settings, main

__all__ = ["EXPERIMENT", "score"]

_Candidates: TypeAlias = tuple[tuple[object, ...], ...]  # as `robust_mnist.choice` takes them
_IMAGES: dict[tuple[str, float], _Candidates] = {
    ("SGHMC", 1.0): (
        ([64], 0.1, 6000, 300, 0.5, 2.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 1.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 150, 0.5, 2.0, 0.3, 0.9, 0.1, 15),
    ),
    ("SGHMC", 3.0): (
        ([64], 0.1, 6000, 300, 0.5, 2.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 4.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 2.0, 0.3, 0.0, 0.1, 15),
        ([200], 0.1, 6000, 300, 0.5, 2.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 2.0, 0.6, 0.9, 0.1, 15),
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
_DIGITS: dict[tuple[str, float], _Candidates] = {
    ("SGHMC", 3.0): (
        ([64], 0.1, 6000, 300, 0.5, 2.0, 0.6, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 600, 0.5, 1.5, 0.6, 0.9, 0.08, 15),
        ([200], 0.1, 6000, 600, 0.5, 2.0, 0.9, 0.9, 0.09, 5),
        ([200], 0.1, 6000, 600, 0.5, 1.5, 0.6, 0.9, 0.08, 5),
        ([200], 0.1, 6000, 1200, 0.5, 1.5, 0.6, 0.9, 0.08, 5),
        ([200], 0.1, 6000, 600, 0.2, 3.0, 0.6, 0.9, 0.08, 5),
        ([200], 0.1, 2048, 600, 0.5, 2.0, 0.9, 0.9, 0.09, 5),
        ([200], 0.1, 2048, 600, 0.5, 2.0, 0.8, 0.98, 0.085, 10),
        ([200], 0.1, 2048, 1200, 0.5, 2.0, 0.8, 0.98, 0.085, 10),
        ([200], 0.1, 2048, 600, 0.5, 4.0, 0.8, 0.98, 0.085, 10),
        ([200], 0.1, 2048, 600, 0.5, 8.0, 0.8, 0.98, 0.085, 10),
        ([200], 0.1, 2048, 600, 2.0, 1.0, 0.8, 0.98, 0.085, 10),
        ([200], 0.1, 2048, 1200, 0.5, 4.0, 0.8, 0.98, 0.08, 10),
        ([200], 0.1, 6000, 1200, 0.5, 3.0, 0.8, 0.98, 0.08, 10),
    ),
    ("SGHMC", 1.0): (
        ([64], 0.1, 6000, 300, 0.5, 1.0, 0.3, 0.9, 0.1, 15),
        ([64], 0.1, 6000, 300, 0.5, 1.0, 0.6, 0.9, 0.08, 15),
        ([64], 0.1, 6000, 600, 0.5, 0.7, 0.6, 0.9, 0.08, 15),
        ([200], 0.1, 6000, 600, 0.5, 0.7, 0.6, 0.9, 0.08, 5),
        ([64], 0.1, 6000, 600, 0.5, 1.5, 0.8, 0.98, 0.08, 10),
        ([64], 0.1, 6000, 1200, 0.5, 1.0, 0.8, 0.98, 0.08, 10),
    ),
}
_SHIRTS: _Candidates = (
    ("weights", [32], 0.3, 5232, 200, 1.0, 1.0, 0.3, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 1.0, 1.0, 0.3, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 1.0, 0.5, 0.3, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 3.0, 0.3, 0.3, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 400, 1.0, 0.5, 0.6, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 1.0, 1.0, 0.6, 0.9, 0.015, 10),
    ("shares", [], 1.0, 5232, 200, 1.0, 1.0, 0.3, 0.9, 0.01, 10),
    ("shares", [], 1.0, 5232, 200, 1.0, 0.5, 0.3, 0.98, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 1.0, 0.25, 0.3, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 3.0, 0.15, 0.3, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 1.0, 0.5, 0.3, 0.98, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 3.0, 0.15, 0.3, 0.98, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 10.0, 0.05, 0.3, 0.9, 0.01, 10),
    ("shares", [], 1.0, 5232, 200, 3.0, 0.15, 0.3, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 300, 3.0, 0.15, 0.3, 0.9, 0.01, 10),
    ("shares", [64], 0.3, 5232, 200, 3.0, 0.15, 0.3, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 5.0, 0.1, 0.3, 0.9, 0.01, 10),
)
_MIRRORED: _Candidates = (
    ("shares", [32], 0.3, 5232, 200, 5.0, 0.1, 0.3, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 3.0, 0.15, 0.3, 0.9, 0.01, 10),
    ("shares", [32], 0.3, 5232, 200, 5.0, 0.1, 0.3, 0.98, 0.01, 10),
    ("shares", [16], 0.3, 5232, 200, 5.0, 0.1, 0.3, 0.9, 0.01, 10),
    ("shares", [16], 0.3, 5232, 200, 5.0, 0.1, 0.3, 0.98, 0.01, 10),
    ("shares", [], 1.0, 5232, 200, 5.0, 0.1, 0.3, 0.9, 0.01, 10),
    ("shares", [], 1.0, 5232, 200, 5.0, 0.1, 0.3, 0.98, 0.01, 10),
)


def measure(settings: Settings, seed: int) -> Measured:
    """Runs what the experiment of the table runs, on its stand-in."""
    of_table = robust_pneumonia if settings["data"] == "shirts" else robust_mnist
    return of_table.measure(settings, seed)


def score(row: Row) -> float:
    """Returns what is chosen by: right, and right for certain."""
    return row["scores"]["accuracy"] + row["scores"]["certified"]


EXPERIMENT = Experiment(
    name="choosing_robust",
    cells=tuple(
        robust_mnist.cell(stand_in, *key, robust_mnist.choice(*values))
        for stand_in, of_method in (("fashion_mnist", _IMAGES), ("moved_digits", _DIGITS))
        for key, candidates in of_method.items()
        for values in candidates
    )
    + tuple(
        {"data": "shirts", "balance": balance}
        | robust_pneumonia.COMMON
        | robust_mnist.choice(*values)
        | mirrored
        for candidates, mirrored in ((_SHIRTS, {}), (_MIRRORED, {"mirrored": True}))
        for balance, *values in candidates
    ),
    num_seeds=1,
    measure=measure,
    quick=robust_mnist.QUICK,
)

if __name__ == "__main__":
    main(EXPERIMENT)
