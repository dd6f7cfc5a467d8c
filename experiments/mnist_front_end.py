"""MNIST on a front end that was learnt from nobody: a linear model on scattering features.

The posterior is SGHMC's at the noise that the budget asks for: states of the last third of the run.
Beside it stands what the last of these states says alone, so that one sees what the posterior
adds. Scattering features are taken as they are (3969, normalised within each image), or whitened by
the components of drawings made by chance (`tacit.models.Whitened`); `upright` are those of images
that were straightened, each by its own moments. Settings are those with the
best likelihood on a public stand-in (`experiments.choosing_front_end`): Fashion-MNIST, or digits of
another source, which were tried when those of Fashion-MNIST had turned out to stop too early for
digits. Foreign images are those of Fashion-MNIST.
"""

import functools

import numpy as np

import tacit
from experiments.cells import Experiment, Measured, Settings, main
from experiments.images import ImageSet, image_set
from experiments.scoring import class_scores, foreign_scores, predictions, reliability_series
from experiments.straightening import straightened
from tacit.models import (
    MLP,
    Categorical,
    FlatPrior,
    Scattering,
    Whitened,
    bayesian,
    extract_features,
)
from tacit.models.base import FrontEnd
from tacit.typing import Record

__all__ = ["CHOSEN", "EXPERIMENT", "QUICK", "cell", "measure"]

_UPRIGHT = ", upright"
FRONT_ENDS: dict[str, FrontEnd] = {
    "scattering": Scattering(),
    "whitened scattering": Whitened(),
    "strongly whitened scattering": Whitened(power=0.8),
    "whitened scattering, upright": Whitened(),
    "strongly whitened scattering, upright": Whitened(power=0.8),
    # For quick trials.
    "few components": Whitened(
        base=Scattering(num_orientations=2, num_groups=None), num_components=20, num_drawings=40
    ),
}


def _choice(learning_rate: float, clip_norm: float, num_steps: int) -> Settings:
    return {"learning_rate": learning_rate, "clip_norm": clip_norm, "num_steps": num_steps}


CHOSEN: dict[tuple[str, str, float], Settings] = {
    ("moved_digits", "whitened scattering, upright", 0.5): _choice(40.0, 0.05, 800),
    ("moved_digits", "whitened scattering, upright", 3.0): _choice(50.0, 0.15, 800),
    ("moved_digits", "strongly whitened scattering", 0.5): _choice(15.0, 0.1, 1200),
    ("moved_digits", "strongly whitened scattering", 3.0): _choice(40.0, 0.15, 1200),
    ("moved_digits", "whitened scattering", 0.5): _choice(30.0, 0.1, 400),
    ("moved_digits", "whitened scattering", 3.0): _choice(50.0, 0.15, 800),
    ("fashion_mnist", "whitened scattering", 0.5): _choice(2.5, 0.9, 400),
    ("fashion_mnist", "whitened scattering", 3.0): _choice(4.0, 1.2, 800),
    ("fashion_mnist", "scattering", 0.5): _choice(0.004, 30.0, 400),
    ("fashion_mnist", "scattering", 3.0): _choice(0.008, 30.0, 400),
}
"""The best of the candidates on a stand-in, by the stand-in, the features and epsilon."""


def cell(data: str, front_end: str, epsilon: float, chosen: Settings) -> Settings:
    """Returns the settings of a cell."""
    return {
        "data": data,
        "front_end": front_end,
        "epsilon": epsilon,
        "batch_size": 4096,
        "friction": 0.1,
        **chosen,
    }


@functools.lru_cache(maxsize=2)
def features(data: str, front_end: str) -> ImageSet:
    """Returns the image set as features."""

    def seen(part: Record) -> Record:
        x = straightened(part.x) if front_end.endswith(_UPRIGHT) else part.x
        return part._replace(x=extract_features(FRONT_ENDS[front_end], x).reshape(len(x), -1))

    return ImageSet(*map(seen, image_set(data)))


def measure(settings: Settings, seed: int) -> Measured:
    """Draws a posterior of a linear model, and scores it with and without its spread."""
    train, test = features(settings["data"], settings["front_end"])
    num_records, num_features = train.x.shape
    model = bayesian(
        MLP(num_inputs=num_features, num_outputs=10),
        prior=FlatPrior(),
        likelihood=Categorical(num_classes=10),
    )
    release = tacit.GaussianSum(
        sampling=tacit.PoissonBatch(num_records=num_records, batch_size=settings["batch_size"]),
        clip_norm=settings["clip_norm"],
        noise_multiplier=1.0,
    )
    method = tacit.SGHMC.fixed_noise(
        release=release,
        step_size=settings["learning_rate"] / num_records,
        friction=settings["friction"],
    )
    num_steps = settings["num_steps"]
    plan = tacit.Plan(
        method=method,
        num_steps=num_steps,
        burn_in=2 * num_steps // 3,
        thinning=max(1, num_steps // 60),
    )
    budget = tacit.Budget(epsilon=settings["epsilon"], delta=1e-5)
    fit = tacit.fit(tacit.calibrate(plan, budget), model, train, budget=budget, seed=seed)
    found = predictions(fit.posterior, test.x)
    last = predictions(fit.posterior, test.x, num_draws=1)
    scores = class_scores(found, test)
    scores |= {f"{name}, last state": value for name, value in class_scores(last, test).items()}
    scores["temperature"] = float(np.mean(fit.info.temperature))
    if settings["data"] == "mnist":
        foreign = features("fashion_mnist", settings["front_end"]).test.x
        scores |= foreign_scores(found, predictions(fit.posterior, foreign))
        alone = foreign_scores(last, predictions(fit.posterior, foreign, num_draws=1))
        scores |= {f"{name}, last state": value for name, value in alone.items()}
    return Measured(scores, fit.statement, {"reliability": reliability_series(found, test.y)})


QUICK: Settings = {
    "data": "digits",
    "front_end": "few components",
    "num_steps": 20,
    "batch_size": 200,
    "epsilon": 8.0,
}
"""What shrinks a cell to seconds."""

EXPERIMENT = Experiment(
    name="mnist_front_end",
    cells=tuple(
        cell("mnist", front_end, epsilon, choice)
        for (_, front_end, epsilon), choice in CHOSEN.items()
    ),
    num_seeds=3,
    measure=measure,
    quick=QUICK,
)

if __name__ == "__main__":
    main(EXPERIMENT)
