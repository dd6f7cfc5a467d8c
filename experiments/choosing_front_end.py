"""Candidates for MNIST on a fixed front end, tried on two stand-ins: the best likelihood wins."""

from experiments.cells import Experiment, Settings, main
from experiments.mnist_front_end import QUICK, cell, measure

__all__ = ["EXPERIMENT"]

_CANDIDATES: dict[tuple[str, str, float], list[tuple[float, float, int]]] = {
    ("moved_digits", "whitened scattering, upright", 0.5): [
        (30.0, 0.1, 400),
        (20.0, 0.1, 800),
        (60.0, 0.05, 400),
        (40.0, 0.05, 800),
    ],
    ("moved_digits", "whitened scattering, upright", 3.0): [(50.0, 0.15, 800), (40.0, 0.15, 1200)],
    ("moved_digits", "strongly whitened scattering, upright", 0.5): [(15.0, 0.1, 1200)],
    ("moved_digits", "strongly whitened scattering", 0.5): [(20.0, 0.1, 800), (15.0, 0.1, 1200)],
    ("moved_digits", "strongly whitened scattering", 3.0): [(50.0, 0.15, 800), (40.0, 0.15, 1200)],
    ("moved_digits", "whitened scattering", 0.5): [
        (2.5, 0.9, 400),
        (5.0, 0.9, 400),
        (5.0, 0.5, 400),
        (10.0, 0.3, 400),
        (10.0, 0.5, 400),
        (15.0, 0.2, 400),
        (30.0, 0.1, 400),
    ],
    ("moved_digits", "whitened scattering", 3.0): [
        (4.0, 1.2, 800),
        (10.0, 0.9, 800),
        (16.0, 0.5, 800),
        (30.0, 0.3, 800),
        (50.0, 0.15, 800),
    ],
    ("fashion_mnist", "whitened scattering", 0.5): [
        (1.5, 1.2, 400),
        (3.0, 0.6, 400),
        (1.0, 1.2, 400),
        (2.0, 1.2, 400),
        (2.5, 0.9, 400),
        (1.5, 1.0, 600),
    ],
    ("fashion_mnist", "whitened scattering", 3.0): [
        (6.0, 1.2, 400),
        (6.0, 1.2, 800),
        (4.0, 1.2, 800),
        (8.0, 0.9, 600),
    ],
    ("fashion_mnist", "scattering", 0.5): [(0.002, 30.0, 400), (0.004, 30.0, 400)],
    ("fashion_mnist", "scattering", 3.0): [(0.004, 30.0, 400), (0.008, 30.0, 400)],
}


def _settings(candidate: tuple[float, float, int]) -> Settings:
    return dict(zip(("learning_rate", "clip_norm", "num_steps"), candidate, strict=True))


EXPERIMENT = Experiment(
    name="choosing_front_end",
    cells=tuple(
        cell(*key, _settings(candidate))
        for key, candidates in _CANDIDATES.items()
        for candidate in candidates
    ),
    num_seeds=1,
    measure=measure,
    quick=QUICK,
)

if __name__ == "__main__":
    main(EXPERIMENT)
