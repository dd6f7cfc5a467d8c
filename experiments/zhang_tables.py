"""Zhang et al.'s tables 1, 2 and 4: accuracy and calibration on MNIST, with and without privacy.

Their protocol: batches of 256, clip norm 1.5, delta 1e-5, priors N(0, 0.1^2) and Laplace(0, 0.1),
dropout of one half, 15 epochs. Learning rate 0.3 on the mean gradient: their 5e-6 times 60 000.
Different: epsilon is 0.89 in every private cell; the SGLD cells with the Gaussian prior run 5
epochs and the others 2, so that a cell takes a minute or two on one core; a posterior is every
fifth of the last hundred iterates, or 30 draws of masks or weights, where they take 100.
"""

from experiments.cells import Experiment, Measured, Settings, main
from experiments.scoring import class_scores, predictions, reliability_series
from experiments.zhang_digits import digit_series
from experiments.zhang_fitting import fitted
from experiments.zhang_headline import QUICK

__all__ = ["EXPERIMENT", "cell"]

_STEPS_OF_AN_EPOCH = 60_000 / 256
_NUM_ITERATES, _EVERY = 100, 5
_NUM_DRAWS = {"SGLD": None, "SGD": None, "MC dropout": 30, "BBP": 30}


def measure(settings: Settings, seed: int) -> Measured:
    """Scores the posterior, and times the run."""
    run = fitted(settings, seed)
    found = predictions(run.fit.posterior, run.test.x, num_draws=_NUM_DRAWS[settings["method"]])
    scores = class_scores(found, run.test)
    scores["seconds per epoch"] = run.seconds * _STEPS_OF_AN_EPOCH / settings["num_steps"]
    series = {"reliability": reliability_series(found, run.test.y)}
    return Measured(scores, run.fit.statement, series | digit_series(run.fit.posterior, run.test.x))


def cell(network: str, method: str, prior: str, *, is_private: bool) -> Settings:
    """Returns the settings of one cell."""
    is_long = (method, prior) == ("SGLD", "gaussian")
    num_steps = round((5 if is_long else 2) * _STEPS_OF_AN_EPOCH)
    settings = {
        "data": "mnist",
        "network": network,
        "method": method,
        "prior": prior,
        "inputs": "pixels",
        "activation": "relu",
        "last_layer_init": 1.0,
        "epsilon": 0.89 if is_private else "infinity",
        "delta": 1e-5,
        "batch_size": 256,
        "num_steps": num_steps,
        "learning_rate": 0.3,
    }
    if is_private:
        settings["clip_norm"] = 1.5
    if method == "SGLD":
        settings |= {"burn_in": num_steps - _NUM_ITERATES, "thinning": _EVERY}
        if not is_private:
            settings["temperature"] = 0.5  # what their noise amounts to
    if method == "BBP":
        settings["guide_std"] = 0.02
    return settings


_METHODS = {"mlp": ("SGLD", "SGD", "MC dropout", "BBP"), "cnn": ("SGLD", "SGD", "MC dropout")}
_ALSO_LAPLACE = (("mlp", "SGLD"), ("mlp", "BBP"), ("cnn", "SGLD"))

EXPERIMENT = Experiment(
    name="zhang_tables",
    cells=tuple(
        cell(network, method, prior, is_private=is_private)
        for prior in ("gaussian", "none", "laplace")
        for is_private in (True, False)
        for network, methods in _METHODS.items()
        for method in methods
        if prior != "laplace" or (network, method) in _ALSO_LAPLACE
    ),
    num_seeds=3,
    measure=measure,
    quick=QUICK,
)

if __name__ == "__main__":
    main(EXPERIMENT)
