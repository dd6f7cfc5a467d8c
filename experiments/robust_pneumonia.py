"""A private posterior of PneumoniaMNIST that is certified at radius 0.01, at epsilon 3.

The thesis has 83.81 % accuracy and 73.88 % certified with a vacuous epsilon (convolutions, 100
units, Hamiltonian Monte Carlo). Here dense layers see averages of 2 x 2 pixels, of the image or of
the image and its mirror image, and every batch is the whole table. Classes are made equal by the
numbers of images that the data set's authors publish: either records are weighted by them inside
the clip, or the logarithms of the classes' shares are taken from the last layer's biases of every
draw. That divides the draw's probabilities by the shares, and what is scored and certified is the
network with those biases. Settings are chosen on two kinds of shirts of Fashion-MNIST by
``choosing_robust``.
"""

from dataclasses import replace

import jax.numpy as jnp

import tacit
from experiments.cells import Experiment, Measured, Settings, main
from experiments.images import image_set
from experiments.interval_training import robust_fit, robust_scores
from experiments.robust_mnist import QUICK

__all__ = [
    "CHOSEN",
    "COMMON",
    "EXPERIMENT",
    "FIRST_CHOICE",
    "SECOND_CHOICE",
    "for_equal_classes",
    "measure",
]

_COUNTS = jnp.array([1349.0, 3883.0])  # normal and ill, the public counts

COMMON: Settings = {
    "method": "SGHMC",
    "epsilon": 3.0,
    "radius": 0.01,
    "clean_weight": 0.5,
    "pool": 2,
    "prior_std": 1.0,
    "friction": 0.1,
    "num_draws": 6,
}
FIRST_CHOICE: Settings = {
    "balance": "shares",
    "hidden": [32],
    "first_layer": 0.3,
    "batch_size": 5232,
    "num_steps": 200,
    "clip_norm": 3.0,
    "learning_rate": 0.15,
    "ramp": 0.3,
    "average": 0.9,
    "training_radius": 0.01,
    "thinning": 10,
}
"""Chosen, run and found a little short in accuracy; then more candidates were tried."""

SECOND_CHOICE: Settings = FIRST_CHOICE | {"clip_norm": 5.0, "learning_rate": 0.1}
"""The best of those, and short in what is certified."""

CHOSEN: Settings = SECOND_CHOICE | {
    "hidden": [],
    "first_layer": 1.0,
    "average": 0.98,
    "mirrored": True,
}
"""The winner on the stand-in, of all candidates."""


def measure(settings: Settings, seed: int) -> Measured:
    """Fits the posterior, makes the classes equal and scores it on the test images."""
    train, test = image_set(settings["data"])
    is_weighted = settings["balance"] == "weights"
    if is_weighted:
        train = train._replace(weight=(_COUNTS.mean() / _COUNTS)[train.y])
    fit = robust_fit(settings, train, num_classes=2, seed=seed)
    posterior = fit.posterior if is_weighted else for_equal_classes(fit.posterior)
    return Measured(robust_scores(posterior, settings, test), fit.statement)


def for_equal_classes(posterior: tacit.Posterior) -> tacit.Posterior:
    """Returns the posterior whose every draw divides its probabilities by the public shares."""
    layers = posterior.kept["network"]
    last = f"dense_{len(layers) - 1}"
    shifted = layers[last] | {"bias": layers[last]["bias"] - jnp.log(_COUNTS / _COUNTS.sum())}
    return replace(posterior, kept=posterior.kept | {"network": layers | {last: shifted}})


EXPERIMENT = Experiment(
    name="robust_pneumonia",
    cells=tuple(
        {"data": "pneumonia"} | COMMON | choice for choice in (CHOSEN, SECOND_CHOICE, FIRST_CHOICE)
    ),
    num_seeds=5,
    measure=measure,
    quick=QUICK | {"data": "threes_and_eights"},
)

if __name__ == "__main__":
    main(EXPERIMENT)
