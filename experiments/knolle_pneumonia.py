"""Knolle et al., table 2 and figure 1 B: pneumonia at epsilon 6, delta 1e-4.

Theirs has chest radiographs in three classes, and two trainable dense layers on a frozen
EfficientNet B1. Here are PneumoniaMNIST's small copies of the same radiographs in two classes, and
two dense layers on a scattering front end of four orientations, whose filters come from no data:
pretrained weights are not to be had. Rates of SGD and DP-SGD are chosen on a stand-in
(`choosing_knolle.py`), and all others inherit them: they differ from it in what they are named for.
"""

import functools

from experiments.cells import Experiment, Measured, Settings, main
from experiments.images import ImageSet, image_set
from experiments.knolle_fitting import AS_DP_SGD, dp_sgld, prior_of, score_procedure
from tacit.models import MLP, Categorical, Model, Scattering, bayesian, extract_features
from tacit.models.layers import Activation

__all__ = ["ABLATION", "DP_SGD", "EXPERIMENT", "RATES", "SGD", "features", "measure"]

_FRONT_END = Scattering(num_orientations=4, num_groups=5)


@functools.lru_cache(maxsize=1)
def features(name: str) -> ImageSet:
    """Returns images as features, each record's of that record alone."""
    train, test = image_set(name)
    return ImageSet(
        train._replace(x=extract_features(_FRONT_END, train.x)),
        test._replace(x=extract_features(_FRONT_END, test.x)),
    )


@functools.cache
def network(hidden: int, prior_std: float | None) -> Model:
    """Returns two dense layers on the features."""
    head = MLP(
        num_inputs=_FRONT_END.num_features,
        hidden=(hidden,),
        num_outputs=2,
        activation=Activation.TANH,
    )
    return bayesian(head, prior=prior_of(prior_std), likelihood=Categorical(num_classes=2))


def measure(settings: Settings, seed: int) -> Measured:
    """Runs one procedure on the features."""
    model = network(settings["hidden"], settings["prior_std"])
    return score_procedure(settings, model, features(settings["data"]), seed)


DP_SGD: Settings = {
    "data": "pneumonia",
    "procedure": "DP-SGD",
    "epsilon": 6.0,
    "delta": 1e-4,
    "num_steps": 150,
    "batch_size": 512,
    "hidden": 16,
    "prior_std": None,
    "clip_norm": 3.0,
    "learning_rate": 0.3,
}

SGD: Settings = DP_SGD | {"procedure": "SGD", "epsilon": "infinity", "learning_rate": 0.1}

DP_SGLD: Settings = dp_sgld(DP_SGD, pre_noise=0.02)

_RATE = DP_SGD["learning_rate"]

ABLATION: dict[str, Settings] = {
    "DP-SGLD": DP_SGLD,
    "DP-SGD": DP_SGD,
    "SGD": SGD,
    "DP-SGD with pre-noise": DP_SGLD | AS_DP_SGD | {"pre_noise": 0.02},
    "DP-SGD with decay": DP_SGLD | AS_DP_SGD | {"half_life": 50},
    "DP-SGD with decay, also of the noise": DP_SGLD | {"pre_noise": 0.0},
    "the same, 4 times the temperature": DP_SGLD | {"pre_noise": 0.0, "learning_rate": _RATE / 4},
    "the same, a quarter of the temperature": DP_SGLD
    | {"pre_noise": 0.0, "learning_rate": _RATE * 4},
    "DP-SGD with a prior": DP_SGD | {"prior_std": 1.0},
}
"""The rows of the table, by name; the first three are Knolle's."""

RATES: tuple[Settings, ...] = tuple(
    DP_SGD | {"learning_rate": _RATE * factor} for factor in (0.25, 4.0, 16.0)
)
"""DP-SGD with other rates, for the question whether it is over-confident."""

EXPERIMENT = Experiment(
    name="knolle_pneumonia",
    cells=(*ABLATION.values(), *RATES),
    num_seeds=5,
    measure=measure,
    quick={"data": "threes_and_eights", "num_steps": 4, "half_life": 2, "batch_size": 64},
)

if __name__ == "__main__":
    main(EXPERIMENT)
