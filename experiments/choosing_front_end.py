"""Candidates for MNIST on a fixed front end, tried on Fashion-MNIST: the best likelihood wins."""

from experiments.cells import Experiment, Settings, main
from experiments.mnist_front_end import cell, measure

__all__ = ["EXPERIMENT"]

_CANDIDATES: dict[tuple[str, float], list[tuple[float, float, int]]] = {
    ("whitened scattering", 0.5): [
        (1.5, 1.2, 400),
        (3.0, 0.6, 400),
        (1.0, 1.2, 400),
        (2.0, 1.2, 400),
        (2.5, 0.9, 400),
        (1.5, 1.0, 600),
    ],
    ("whitened scattering", 3.0): [
        (6.0, 1.2, 400),
        (6.0, 1.2, 800),
        (4.0, 1.2, 800),
        (8.0, 0.9, 600),
    ],
    ("scattering", 0.5): [(0.002, 30.0, 400), (0.004, 30.0, 400)],
    ("scattering", 3.0): [(0.004, 30.0, 400), (0.008, 30.0, 400)],
}


def _settings(candidate: tuple[float, float, int]) -> Settings:
    return dict(zip(("learning_rate", "clip_norm", "num_steps"), candidate, strict=True))


EXPERIMENT = Experiment(
    name="choosing_front_end",
    cells=tuple(
        cell("fashion_mnist", front_end, epsilon, _settings(candidate))
        for (front_end, epsilon), candidates in _CANDIDATES.items()
        for candidate in candidates
    ),
    num_seeds=1,
    measure=measure,
    quick={
        "data": "digits",
        "front_end": "few components",
        "num_steps": 20,
        "batch_size": 200,
        "epsilon": 8.0,
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
