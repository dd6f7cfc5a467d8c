"""PneumoniaMNIST at epsilon 3: a posterior of a linear head on whitened scattering.

Features belong to each record alone, and the front end was made of no data: both cost nothing.
Classes are unequal: 1214 normal and 3494 ill by the official counts of the training part. Either
the ill are weighted by the ratio of those public counts, inside the clip, or all count alike and
predictions are divided by those public shares: then one half is the threshold between classes that
are taken to be equally likely. A clip takes back part of the weights, and nothing of the shares.
All else is chosen on a stand-in (`choosing_pneumonia.py`). The training part has the validation
images too: nothing is validated on them. Without privacy the same momentum runs without clip and
noise.
"""

import functools
import json
import math
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

import tacit
from experiments.cells import Experiment, Measured, Settings, main
from experiments.images import ImageSet, image_set
from experiments.scoring import class_scores, predictions, reliability_series
from tacit.inference.method import Method
from tacit.metrics.uncertainty import ClassificationUncertainty
from tacit.models import (
    MLP,
    Bernoulli,
    GaussianPrior,
    Model,
    Whitened,
    bayesian,
    extract_features,
)
from tacit.typing import Record

__all__ = [
    "EXPERIMENT",
    "FIRST_CHOICE",
    "HEADLINE",
    "MIRRORED",
    "SECOND_CHOICE",
    "measure",
]

_NUM_NORMAL, _NUM_ILL = 1214, 3494
_NUM_KEPT = 20

Uncertainty: TypeAlias = ClassificationUncertainty[NDArray[np.float64]]


@functools.lru_cache(maxsize=1)
def features(
    name: str, num_components: int, num_drawings: int, balance: str, is_mirrored: bool
) -> ImageSet:
    """Returns images as features, with weights for equal classes where they are balanced so.

    Where they are mirrored, features are means of those of an image and of its mirror image: what
    is ill on one side is so on the other, and half of the directions are left to the noise.
    """
    front_end = Whitened(num_components=num_components, num_drawings=num_drawings)

    def seen(part: Record) -> Record:
        x = extract_features(front_end, part.x)
        if is_mirrored:
            x = (x + extract_features(front_end, part.x[:, :, ::-1])) / 2
        return part._replace(x=x)

    train, test = map(seen, image_set(name))
    if balance == "weights":
        train = train._replace(weight=jnp.where(train.y == 1, _NUM_NORMAL / _NUM_ILL, 1.0))
    return ImageSet(train, test)


@functools.cache
def network(num_components: int, prior_std: float) -> Model:
    """Returns logistic regression on the features."""
    head = MLP(num_inputs=num_components, num_outputs=1)
    return bayesian(head, prior=GaussianPrior(std=prior_std), likelihood=Bernoulli())


@functools.cache
def calibrated(description: str, num_records: int) -> tuple[tacit.Plan, tacit.Budget]:
    """Returns what is run with settings that are given as JSON."""
    settings = json.loads(description)
    sampling = tacit.PoissonBatch(num_records=num_records, batch_size=settings["batch_size"])
    step_size, num_steps = settings["learning_rate"] / num_records, settings["num_steps"]
    num_kept = math.ceil(num_steps * settings["kept_share"])
    is_private = settings["epsilon"] != "infinity"
    method: Method = (
        tacit.SGHMC.fixed_noise(
            release=tacit.GaussianSum(
                sampling=sampling, clip_norm=settings["clip_norm"], noise_multiplier=1.0
            ),
            step_size=step_size,
            friction=settings["friction"],
        )
        if is_private
        else tacit.SGD(
            release=tacit.GaussianSum.non_private(sampling=sampling),
            optimizer=optax.sgd(settings["learning_rate"], momentum=1 - settings["friction"]),
        )
    )
    plan = tacit.Plan(
        method=method,
        num_steps=num_steps,
        burn_in=num_steps - num_kept,
        thinning=max(1, num_kept // _NUM_KEPT),
    )
    if not is_private:
        return plan, tacit.Budget.non_private()
    budget = tacit.Budget(epsilon=settings["epsilon"], delta=settings["delta"])
    return tacit.calibrate(plan, budget), budget


def measure(settings: Settings, seed: int) -> Measured:
    """Fits the head, and scores its posterior and its last iterate on the test part."""
    num_components, balance = settings["num_components"], settings["balance"]
    train, test = features(
        settings["data"],
        num_components,
        settings["num_drawings"],
        balance,
        settings.get("mirrored", False),
    )
    plan, budget = calibrated(json.dumps(settings), len(train.y))
    model = network(num_components, settings["prior_std"])
    fit = tacit.fit(plan, model, train, budget=budget, seed=seed)
    found, last = (
        _balanced(predictions(fit.posterior, test.x, num_draws=num_draws), balance)
        for num_draws in (None, 1)
    )
    scores = class_scores(found, test)
    scores |= {f"last {name}": score for name, score in class_scores(last, test).items()}
    return Measured(scores, fit.statement, reliability_series(found, test.y))


def _balanced(found: Uncertainty, balance: str) -> Uncertainty:
    """Returns predictions for equally likely classes; with weights they are that already."""
    if balance == "weights":
        return found
    ratios = found.probabilities / np.array([_NUM_NORMAL, _NUM_ILL])
    return found._replace(probabilities=ratios / ratios.sum(axis=1, keepdims=True))


FIRST_CHOICE: Settings = {
    "data": "pneumonia",
    "num_components": 1000,
    "num_drawings": 6000,
    "balance": "weights",
    "epsilon": 3.0,
    "delta": 1e-5,
    "num_steps": 300,
    "kept_share": 0.5,
    "batch_size": 2048,
    "prior_std": 10.0,
    "clip_norm": 0.6,
    "learning_rate": 1.5,
    "friction": 0.1,
}
"""Chosen, run and found short of the goal; more candidates were then tried."""

SECOND_CHOICE: Settings = FIRST_CHOICE | {"balance": "shares", "kept_share": 0.1, "clip_norm": 1.0}
"""The best of those, and again a little short."""

HEADLINE: Settings = SECOND_CHOICE | {"num_steps": 600, "learning_rate": 0.5}
"""The best of all that were tried, steps from the second choice among them."""

MIRRORED: Settings = SECOND_CHOICE | {"num_steps": 600, "learning_rate": 0.7, "mirrored": True}
"""The best with features of both sides."""

_EPSILONS = (3.0, 1.0, 8.0, "infinity")
_SMALL = {"num_components": 20, "num_drawings": 50}

EXPERIMENT = Experiment(
    name="pneumonia",
    cells=tuple(
        choice | {"epsilon": epsilon}
        for choice in (HEADLINE, SECOND_CHOICE, FIRST_CHOICE, MIRRORED)
        for epsilon in _EPSILONS
    ),
    num_seeds=5,
    measure=measure,
    quick={"data": "threes_and_eights", "num_steps": 4, "batch_size": 64} | _SMALL,
)

if __name__ == "__main__":
    main(EXPERIMENT)
