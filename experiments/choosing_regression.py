"""The choices of ``zhang_regression``: rates and clips, on other draws of the process.

The process is public and the draws are not those of the table, so nothing about its records went
into the choice. The score is the test error, with privacy and without. SGLD without privacy is run
on 20 draws, because it is unstable on some.
"""

from experiments.cells import Experiment, Settings, main
from experiments.zhang_regression import cell, measure

__all__ = ["CANDIDATES", "EXPERIMENT", "FIRST_DRAW"]

FIRST_DRAW = 1000

_BBP: Settings = {"momentum": 0.9, "init_std": 0.02, "num_particles": 1}

CANDIDATES: dict[tuple[str, bool], tuple[Settings, ...]] = {
    ("SGLD", True): tuple(
        {"clip_norm": clip_norm, "learning_rate": rate}
        for clip_norm in (5.0, 10.0, 20.0, 40.0)
        for rate in (0.005, 0.01, 0.02)
    ),
    ("SGLD", False): (
        *({"learning_rate": rate} for rate in (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01)),
        *({"clip_norm": 40.0, "learning_rate": rate} for rate in (0.0005, 0.001, 0.002, 0.005)),
    ),
    ("BBP", True): tuple(
        {"clip_norm": clip_norm, "learning_rate": rate} | _BBP
        for clip_norm in (5.0, 10.0, 20.0, 40.0)
        for rate in (0.001, 0.002, 0.004, 0.008)
    ),
    ("BBP", False): tuple(
        {"learning_rate": rate} | _BBP | {"momentum": momentum}
        for momentum in (0.0, 0.9, "adam")
        for rate in (0.001, 0.003, 0.01)
    ),
    ("MC dropout", True): tuple(
        {"clip_norm": clip_norm, "learning_rate": rate, "momentum": 0.9, "dropout": dropout}
        for clip_norm in (10.0, 20.0, 40.0)
        for rate in (0.001, 0.002, 0.004)
        for dropout in (0.05, 0.2)
    ),
    ("MC dropout", False): tuple(
        {"learning_rate": rate, "momentum": momentum, "dropout": dropout}
        for momentum, dropout in ((0.0, 0.05), (0.9, 0.05), ("adam", 0.05), ("adam", 0.2))
        for rate in (0.001, 0.003, 0.01)
    ),
}

EXPERIMENT = Experiment(
    name="choosing_regression",
    cells=tuple(
        cell(name, is_private=is_private, first_draw=FIRST_DRAW, **chosen)
        for (name, is_private), candidates in CANDIDATES.items()
        for chosen in candidates
    ),
    num_seeds=5,
    measure=measure,
    quick={"num_steps": 10, "num_draws": 10},
)

if __name__ == "__main__":
    main(EXPERIMENT)
