"""One private posterior, all properties at once, against epsilon.

The posterior is that of ``robust_mnist``, by stochastic gradient Hamiltonian Monte Carlo, with the
settings chosen there for the nearest epsilon, on Fashion-MNIST, which are cheap to run. Right,
calibrated, certified and aware of foreign images (Fashion-MNIST) are measured on the same draws.
The audit runs the same method with the same noise and steps on Dirac canaries, which take the
places of so many records; interval bounds change the loss, and the loss there is the canaries' own.
"""

import tacit
from experiments.cells import Experiment, Measured, Settings, main
from experiments.images import image_set
from experiments.interval_training import base_method, budget_of, certified_share, robust_fit
from experiments.robust_mnist import CHOSEN, QUICK, cell
from experiments.scoring import class_scores, foreign_scores, predictions
from tacit.audit import audit_method

__all__ = ["EPSILONS", "EXPERIMENT", "NUM_CANARIES"]

EPSILONS = (1.0, 0.25, 8.0, 0.5, 4.0, 2.0)
NUM_CANARIES = 2000


def measure(settings: Settings, seed: int) -> Measured:
    """Fits the posterior, asks it everything, and audits the way it was made."""
    train, test = image_set(settings["data"])
    fit = robust_fit(settings, train, num_classes=10, seed=seed)
    foreign = image_set(settings["foreign"]).test
    inside, outside = (
        predictions(fit.posterior, x, num_draws=settings["num_draws"]) for x in (test.x, foreign.x)
    )
    scores = class_scores(inside, test) | foreign_scores(inside, outside)
    scores |= certified_share(fit.posterior, settings, test)
    scores["audited epsilon"] = _audit(settings, len(train.y), seed)
    return Measured(scores, fit.statement)


def _audit(settings: Settings, num_records: int, seed: int) -> float:
    """Returns a lower bound of epsilon, with 95 % confidence."""
    budget = budget_of(settings)
    plan = tacit.Plan(method=base_method(settings, num_records), num_steps=settings["num_steps"])
    result = audit_method(
        tacit.calibrate(plan, budget),
        budget=budget,
        num_canaries=settings["num_canaries"],
        seed=seed,
    )
    return result.lower_bound


def _cell(epsilon: float) -> Settings:
    rivals = [key for key in CHOSEN if key[:2] == ("fashion_mnist", "SGHMC")]
    nearest = min(rivals, key=lambda key: _ratio(key[2], epsilon))
    extra: Settings = {"foreign": "fashion_mnist", "num_canaries": NUM_CANARIES}
    return cell("mnist", "SGHMC", epsilon, CHOSEN[nearest]) | extra


def _ratio(one: float, other: float) -> float:
    return max(one / other, other / one)


EXPERIMENT = Experiment(
    name="together",
    cells=tuple(map(_cell, EPSILONS)),
    num_seeds=3,
    measure=measure,
    quick=QUICK | {"foreign": "threes_and_eights", "num_canaries": 50},
)

if __name__ == "__main__":
    main(EXPERIMENT)
