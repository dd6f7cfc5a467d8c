"""Zhang et al., table 3 and figure 4: regression with noise that depends on the input.

``x ~ U(-3, 3)`` and ``y`` a draw of a Gaussian process (RBF kernel, variance and length scale 1)
with noise of deviation ``|0.3 x + 0.6|``; 250 records to train with and 150 to test. Two hidden
layers of 200 units, the prior N(0, 0.1^2), 200 steps on the full batch, delta 1/250: as there.
Every seed is a data set of its own.

What differs: the seed prints the error on training records, and the notebook that it follows tests
outside of the range it trains in and scales targets by statistics of the training part. Here the
two parts are drawn alike, nothing is scaled by private records, and the test error stands first.
Weights begin at a draw of the prior, which has deviation 1 in the first layer: biases of zero would
put the kinks of all units in one place. All methods keep the states of the last half of the run.
"""

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import optax
from numpy.typing import NDArray

import tacit
from experiments.cells import Experiment, Measured, Settings, main
from experiments.regression_model import NUM_TRAIN, gaussian_process, network
from tacit import metrics
from tacit.inference.method import Method
from tacit.metrics.scores import mse
from tacit.models import Model
from tacit.typing import Array, Record

__all__ = ["EXPERIMENT", "METHODS", "cell", "chosen", "measure"]

METHODS = ("SGLD", "BBP", "MC dropout")
_GRID = np.linspace(-3.0, 3.0, 61, dtype=np.float32)[:, None]


def method(settings: Settings) -> Method:
    """Returns the method; its noise is still to be calibrated."""
    sampling, rate = tacit.FullBatch(num_records=NUM_TRAIN), settings["learning_rate"]
    is_private = settings["epsilon"] != "infinity"
    # A clip without noise keeps steps from exploding where the network is too sure; not private.
    release = tacit.GaussianSum(
        sampling=sampling,
        clip_norm=settings.get("clip_norm", math.inf),
        noise_multiplier=10.0 if is_private else 0.0,
    )
    if settings["method"] == "SGLD":
        step_size = 2 * rate / NUM_TRAIN  # so that the rate is that of the mean gradient
        temperature = 0.0 if is_private else 1.0  # private noise is the Langevin noise
        return tacit.SGLD(release=release, step_size=step_size, langevin_temperature=temperature)
    momentum = settings["momentum"]
    optimizer = optax.adam(rate) if momentum == "adam" else optax.sgd(rate, momentum=momentum)
    if settings["method"] == "BBP":
        guide = tacit.MeanField(init_std=settings["init_std"])
        return tacit.VI.zhang(
            release=release,
            optimizer=optimizer,
            guide=guide,
            num_particles=settings["num_particles"],
        )
    return tacit.SGD(release=release, optimizer=optimizer)


@functools.cache  # one plan and one model for all seeds, so that they are compiled once
def prepared(description: str) -> tuple[tacit.Plan, Model, tacit.Budget]:
    """Returns what is run with settings that are given as JSON."""
    settings = json.loads(description)
    num_steps = settings["num_steps"]
    plan = tacit.Plan(
        method=method(settings), num_steps=num_steps, burn_in=num_steps // 2, thinning=5
    )
    model = network(dropout=settings.get("dropout", 0.0))
    if settings["epsilon"] == "infinity":
        return plan, model, tacit.Budget.non_private()
    budget = tacit.Budget(epsilon=settings["epsilon"], delta=settings["delta"])
    return tacit.calibrate(plan, budget), model, budget


def measure(settings: Settings, seed: int) -> Measured:
    """Fits one draw of the process."""
    train, test = gaussian_process(settings["first_draw"] + seed)
    plan, model, budget = prepared(json.dumps(settings))
    fit = tacit.fit(plan, model, train, budget=budget, seed=seed)

    def predicted(x: Array | NDArray[Any]) -> Mapping[str, NDArray[np.float64]]:
        found: Any = tacit.predict(fit.posterior, x, num_draws=settings["num_draws"])
        return {name: np.asarray(leaf, np.float64) for name, leaf in found._asdict().items()}

    found = predicted(test.x)
    truth, deviation = np.asarray(test.y, np.float64), np.sqrt(found["total_variance"])
    inside = np.abs(truth - found["mean"]) <= 1.96 * deviation
    scores = {
        "test MSE": mse(found["mean"], truth),
        # Of simulated records, as the seed prints it; of private ones it would be a release.
        "training MSE": mse(predicted(train.x)["mean"], np.asarray(train.y)),
        "NLL": metrics.gaussian_nll(found["mean"], found["total_variance"], truth),
        "coverage": float(inside.mean()),
    }
    return Measured(
        scores,
        fit.statement,
        _bands(predicted(_GRID), train) if seed + settings["first_draw"] == 0 else {},
    )


def _bands(found: Mapping[str, NDArray[np.float64]], train: Record) -> dict[str, Any]:
    """Returns what figure 4 shows: the mean and both deviations on a grid, and the records."""
    lines = {
        "mean": found["mean"],
        "epistemic": np.sqrt(found["epistemic_variance"]),
        "aleatoric": np.sqrt(found["aleatoric_variance"]),
        "x": np.asarray(train.x)[:, 0],
        "y": np.asarray(train.y),
    }
    return {"grid": _GRID[:, 0].round(2).tolist()} | {
        name: line.astype(float).round(3).tolist() for name, line in lines.items()
    }


def cell(name: str, *, is_private: bool, first_draw: int, **chosen: Any) -> Settings:
    """Returns the settings of a row."""
    return {
        "method": name,
        "epsilon": 4.19 if is_private else "infinity",
        "delta": 1 / NUM_TRAIN,
        "num_steps": 200,
        "num_draws": 200,
        "first_draw": first_draw,
    } | chosen


_BBP: Settings = {"init_std": 0.02, "num_particles": 1}
_CHOSEN: dict[tuple[str, bool], Settings] = {  # on other draws: choosing_regression.py
    ("SGLD", True): {"clip_norm": 40.0, "learning_rate": 0.005},
    ("SGLD", False): {"clip_norm": 40.0, "learning_rate": 0.002},
    ("BBP", True): {"clip_norm": 20.0, "learning_rate": 0.001, "momentum": 0.9} | _BBP,
    ("BBP", False): {"learning_rate": 0.001, "momentum": "adam"} | _BBP,
    ("MC dropout", True): {
        "clip_norm": 20.0,
        "learning_rate": 0.001,
        "momentum": 0.9,
        "dropout": 0.05,
    },
    ("MC dropout", False): {"learning_rate": 0.001, "momentum": "adam", "dropout": 0.05},
}


def chosen(name: str, *, is_private: bool) -> Settings:
    """Returns the settings of a row of the table."""
    return cell(name, is_private=is_private, first_draw=0, **_CHOSEN[name, is_private])


EXPERIMENT = Experiment(
    name="zhang_regression",
    cells=tuple(chosen(name, is_private=is_private) for name, is_private in _CHOSEN),
    num_seeds=20,
    measure=measure,
    quick={"num_steps": 10, "num_draws": 10},
)

if __name__ == "__main__":
    main(EXPERIMENT)
