"""The choices of ``knolle_mnist`` and ``knolle_pneumonia``: the rates of SGD and DP-SGD.

On moved digits, by accuracy; and on shirts and T-shirts, by AUROC, since there the classes are
as unequal as in PneumoniaMNIST and those of the test part are not. Nothing is chosen by
calibration, which the tables are about.
"""

from experiments import knolle_mnist, knolle_pneumonia
from experiments.cells import Experiment, Measured, Settings, main

__all__ = ["EXPERIMENT"]


def measure(settings: Settings, seed: int) -> Measured:
    """Runs DP-SGD on the stand-in of either table."""
    table = knolle_mnist if settings["data"] == "moved_digits" else knolle_pneumonia
    return Measured(*table.measure(settings, seed)[:2])


EXPERIMENT = Experiment(
    name="choosing_knolle",
    cells=(
        *(
            knolle_pneumonia.DP_SGD
            | {"data": "shirts", "clip_norm": clip_norm, "learning_rate": rate}
            for clip_norm in (1.0, 3.0)
            for rate in (0.03, 0.1, 0.3, 1.0)
        ),
        *(
            knolle_mnist.DP_SGD | {"data": "moved_digits", "clip_norm": 1.0, "learning_rate": rate}
            for rate in (1.0, 2.0, 4.0, 8.0)
        ),
        *(
            knolle_pneumonia.SGD | {"data": "shirts", "learning_rate": rate}
            for rate in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
        ),
        *(
            knolle_mnist.SGD | {"data": "moved_digits", "learning_rate": rate}
            for rate in (0.1, 0.3, 1.0)
        ),
    ),
    num_seeds=1,
    measure=measure,
    quick={"data": "threes_and_eights", "num_steps": 4, "batch_size": 64},
)

if __name__ == "__main__":
    main(EXPERIMENT)
