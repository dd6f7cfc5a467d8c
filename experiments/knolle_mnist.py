"""Knolle et al., table 1 and figure 1 A: MNIST at epsilon 0.5, delta 1e-5.

Their convolutional network of five layers is not published. Here is a small one: pixels averaged
two by two, two convolutions and two dense layers, 9258 parameters. Rates of SGD and DP-SGD are
chosen on moved digits (`choosing_knolle.py`), and all others inherit them. A row has three runs;
one of pneumonia, which is cheaper, has five.
"""

import functools

from experiments.cells import Experiment, Measured, Settings, main
from experiments.images import image_set
from experiments.knolle_fitting import AS_DP_SGD, dp_sgld, prior_of, score_procedure
from tacit.models import CNN, Categorical, Conv, MaxPool, Model, bayesian
from tacit.models.layers import Activation
from tacit.models.networks import AveragePool

__all__ = ["ABLATION", "DP_SGD", "EXPERIMENT", "SGD", "measure"]


@functools.cache
def network(prior_std: float | None) -> Model:
    """Returns the convolutional network."""
    layers = CNN(
        input_shape=(28, 28, 1),
        stages=(
            AveragePool(window=2, stride=2),
            Conv(features=16, kernel=3),
            MaxPool(window=2, stride=2),
            Conv(features=32, kernel=3),
            MaxPool(window=2, stride=2),
        ),
        hidden=(32,),
        num_outputs=10,
        activation=Activation.TANH,
    )
    return bayesian(layers, prior=prior_of(prior_std), likelihood=Categorical(num_classes=10))


def measure(settings: Settings, seed: int) -> Measured:
    """Runs one procedure on pixels."""
    images = image_set(settings["data"])
    return score_procedure(settings, network(settings["prior_std"]), images, seed)


DP_SGD: Settings = {
    "data": "mnist",
    "procedure": "DP-SGD",
    "epsilon": 0.5,
    "delta": 1e-5,
    "num_steps": 150,
    "batch_size": 1024,
    "prior_std": None,
    "clip_norm": 1.0,
    "learning_rate": 4.0,
}

SGD: Settings = DP_SGD | {
    "procedure": "SGD",
    "epsilon": "infinity",
    "num_steps": 1500,
    "batch_size": 256,
    "learning_rate": 0.3,
}
"""More steps than with privacy, since they cost nothing but time."""

DP_SGLD: Settings = dp_sgld(DP_SGD, pre_noise=0.01)


ABLATION: dict[str, Settings] = {
    "DP-SGLD": DP_SGLD,
    "DP-SGD": DP_SGD,
    "SGD": SGD,
    "DP-SGD with decay": DP_SGLD | AS_DP_SGD | {"half_life": 50},
    "DP-SGD with decay, also of the noise": DP_SGLD | {"pre_noise": 0.0},
    "DP-SGD with pre-noise": DP_SGLD | AS_DP_SGD | {"pre_noise": 0.01},
    "DP-SGD, 4 times the rate": DP_SGD | {"learning_rate": 4 * DP_SGD["learning_rate"]},
}
"""The rows of the table, by name; the first three are Knolle's."""

EXPERIMENT = Experiment(
    name="knolle_mnist",
    cells=tuple(ABLATION.values()),
    num_seeds=3,
    measure=measure,
    quick={"data": "digits", "num_steps": 4, "half_life": 2, "batch_size": 64},
)

if __name__ == "__main__":
    main(EXPERIMENT)
