"""What Knolle et al.'s two tables share: three procedures, told apart by one thing at a time.

Their DP-SGLD is DP-SGD with three additions: the learning rate decays, the noise on the sum is
``sqrt(2 rate temperature)`` and decays with it, and noise is added to each record's gradient
before the clip. They keep the last iterate. Here every run is scored twice: its last iterate, and
the states of its second half as a posterior, which cost nothing more.
"""

import functools
import json
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import optax

import tacit
from experiments.cells import Measured, Settings
from experiments.images import ImageSet
from experiments.scoring import class_scores, predictions, reliability_series
from tacit.inference.method import Method
from tacit.models import FlatPrior, GaussianPrior
from tacit.models.base import Prior
from tacit.typing import Scalar

__all__ = ["AS_DP_SGD", "Halving", "dp_sgld", "prior_of", "score_procedure"]

_NUM_KEPT = 20
_FIRST_NOISE = 1.0  # calibration scales it

AS_DP_SGD: Settings = {"half_life": None, "noise_power": 0.0, "pre_noise": 0.0}
"""DP-SGLD without its three additions, to put back one at a time."""


def dp_sgld(descent: Settings, *, pre_noise: float) -> Settings:
    """Returns DP-SGLD with the rate of DP-SGD, and pre-noise of about the norm of the clip."""
    return descent | {
        "procedure": "DP-SGLD",
        "half_life": 50,
        "noise_power": 0.5,
        "pre_noise": pre_noise,
    }


@dataclass(frozen=True, kw_only=True)
class Halving:
    """A step size that halves every so many steps.

    A smooth decay would have as many levels of noise as steps, and a bound for each.
    """

    num_steps: int

    def __call__(self, step: Scalar | int) -> Scalar:
        """Returns the factor at ``step``."""
        return jnp.exp2(-jnp.floor(jnp.asarray(step, jnp.float32) / self.num_steps))


def prior_of(std: float | None) -> Prior:
    """Returns a Gaussian prior, or the flat one where it has no deviation."""
    return FlatPrior() if std is None else GaussianPrior(std=std)


def score_procedure(
    settings: Settings, model: tacit.Model, images: ImageSet, seed: int
) -> Measured:
    """Runs a procedure and scores its last iterate and its posterior on the test part."""
    plan, budget = _calibrated(json.dumps(settings), len(images.train.y))
    fit = tacit.fit(plan, model, images.train, budget=budget, seed=seed)
    last = predictions(fit.posterior, images.test.x, num_draws=1)
    scores = class_scores(last, images.test)
    posterior = class_scores(predictions(fit.posterior, images.test.x), images.test)
    scores |= {f"posterior {name}": score for name, score in posterior.items()}
    if settings["procedure"] == "DP-SGLD":
        rate, noise = settings["learning_rate"], plan.method.release.noise_multiplier
        # The noise is what the budget asks for, so that their temperature follows from the rate.
        scores["temperature of Knolle"] = noise**2 / (2 * rate)
        scores["temperature"] = float(np.mean(fit.info.temperature))
    return Measured(scores, fit.statement, reliability_series(last, images.test.y))


@functools.cache  # once for all seeds: calibration takes longer than some runs
def _calibrated(description: str, num_records: int) -> tuple[tacit.Plan, tacit.Budget]:
    settings = json.loads(description)
    num_steps = settings["num_steps"]
    plan = tacit.Plan(
        method=_method(settings, num_records),
        num_steps=num_steps,
        burn_in=num_steps // 2,
        thinning=max(1, num_steps // 2 // _NUM_KEPT),
    )
    if settings["epsilon"] == "infinity":
        return plan, tacit.Budget.non_private()
    budget = tacit.Budget(epsilon=settings["epsilon"], delta=settings["delta"])
    return tacit.calibrate(plan, budget), budget


def _method(settings: Settings, num_records: int) -> Method:
    rate, size = settings["learning_rate"], settings["batch_size"]
    sampling: tacit.FullBatch | tacit.PoissonBatch = (
        tacit.FullBatch(num_records=num_records)
        if size == "all"
        else tacit.PoissonBatch(num_records=num_records, batch_size=size)
    )
    if settings["epsilon"] == "infinity":
        plain = tacit.GaussianSum.non_private(sampling=sampling)
        return tacit.SGD(release=plain, optimizer=optax.sgd(rate))
    release = tacit.GaussianSum(
        sampling=sampling, clip_norm=settings["clip_norm"], noise_multiplier=_FIRST_NOISE
    )
    if settings["procedure"] == "DP-SGD":
        return tacit.SGD(release=release, optimizer=optax.sgd(rate))
    schedule = None if settings["half_life"] is None else Halving(num_steps=settings["half_life"])
    rule = tacit.SGLD.knolle(
        sampling=sampling,
        clip_norm=settings["clip_norm"],
        learning_rate=rate,
        temperature=_FIRST_NOISE**2 / (2 * rate),
        schedule=schedule,
        pre_noise=settings["pre_noise"],
    )
    return replace(rule, noise_power=settings["noise_power"])
