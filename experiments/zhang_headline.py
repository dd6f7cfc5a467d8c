"""Zhang et al.'s networks on MNIST at their epsilon, with settings of our own.

Same images, same two networks, epsilon 0.89 at delta 1e-5, which is what their DP-SGLD costs by a
bound that holds. Different: batches of 2048 instead of 256 and 250 steps, another clip, images that
lose their own mean and spread (a function of one record, hence free), and a posterior of iterates
from the last 100 steps. Clip, rate and momentum were chosen on Fashion-MNIST (``choosing_zhang``).
"""

from experiments.cells import Experiment, Measured, Settings, main
from experiments.images import image_set
from experiments.scoring import class_scores, predictions, reliability_series
from experiments.zhang_digits import DIGITS, digit_series, packed_image
from experiments.zhang_fitting import fitted

__all__ = ["CHOSEN", "EXPERIMENT", "QUICK", "measure"]

_COMMON: Settings = {
    "method": "SGLD",
    "prior": "gaussian",
    "inputs": "standardised",
    "epsilon": 0.89,
    "delta": 1e-5,
    "activation": "relu",
    "last_layer_init": 1.0,
    "batch_size": 2048,
    "num_steps": 250,
    "burn_in": 150,
    "thinning": 5,
}
CHOSEN: dict[str, Settings] = {
    "mlp": _COMMON
    | {
        "network": "mlp",
        "learning_rate": 0.05,
        "momentum": 0.0,
        "clip_norm": 30.0,
    },
    "cnn": _COMMON
    | {
        "network": "cnn",
        "chunk_size": 256,
        "learning_rate": 0.1,
        "momentum": 0.0,
        "clip_norm": 20.0,
    },
}
"""The settings of each row, without the images."""

QUICK: Settings = {
    "data": "digits",
    "batch_size": 32,
    "num_steps": 4,
    "burn_in": 2,
    "thinning": 1,
    "hidden": [8],
}
"""What shrinks a cell to seconds."""


def measure(settings: Settings, seed: int) -> Measured:
    """Scores the whole posterior, and its last iterate alone."""
    fit, test, _ = fitted(settings, seed)
    found = predictions(fit.posterior, test.x)
    last = class_scores(predictions(fit.posterior, test.x, num_draws=1), test)
    scores = class_scores(found, test) | {
        f"{name}, last iterate": last[name] for name in ("accuracy", "ECE", "NLL")
    }
    shown = image_set(settings["data"]).test.x
    series = {
        "reliability": reliability_series(found, test.y),
        "images": {name: packed_image(shown[row, :, :, 0]) for name, row in DIGITS.items()},
    }
    return Measured(scores, fit.statement, series | digit_series(fit.posterior, test.x))


EXPERIMENT = Experiment(
    name="zhang_headline",
    cells=tuple({"data": "mnist", **chosen} for chosen in CHOSEN.values()),
    num_seeds=3,
    measure=measure,
    quick=QUICK,
)

if __name__ == "__main__":
    main(EXPERIMENT)
