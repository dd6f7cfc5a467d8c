"""ADV-DP-HMC: private HMC on a certified model, from a private start on the same model.

The robust likelihood is that of the worst pixels within the ball. It enters the start and every
acceptance ratio alike, so that robustness costs no privacy. The task is to tell even digits from
odd ones by 4 x 4 averaged pixels, since private chains want few parameters.
"""

import argparse

import numpy as np

import tacit
from examples.digits import BUDGET, digits
from tacit.certify import certify_predictive
from tacit.inference import WarmHMC, fit_hmc
from tacit.models import MLP, Bernoulli, GaussianPrior
from tacit.robust import Linf

__all__ = ["run"]

_BALL = Linf(radius=0.03, low=0.0, high=1.0)
_NETWORK = MLP(num_inputs=16, num_outputs=1)


def run(
    num_steps: int = 20, num_records: int | None = None, seed: int | None = None
) -> dict[str, float]:
    """Returns accuracies of a plain and of a certified posterior, acceptance and epsilon."""
    train, test = (_coarse(part) for part in digits(num_records))
    plain = tacit.bayesian(_NETWORK, prior=GaussianPrior(std=3.0), likelihood=Bernoulli())
    models = {
        "plain": plain,
        "certified": tacit.certified(plain, _NETWORK, _BALL, weight=0.5),
    }
    settings = WarmHMC(num_records=len(train.y), num_chains=8, num_proposals=num_steps)
    made_up = np.random.default_rng(0).uniform(size=(1000, 16)).astype(np.float32)
    found = {}
    for name, model in models.items():
        fit = fit_hmc(settings, model, train, inputs=made_up, budget=BUDGET, seed=seed)
        attack = tacit.PGD(ball=_BALL, num_steps=20)
        attacked = tacit.robust_accuracy(fit.posterior, attack, test.x, test.y)
        certificate = certify_predictive(fit.posterior, test.x, test.y, _BALL)
        found[f"{name}, clean"] = float(attacked.clean_accuracy)
        found[f"{name}, attacked"] = float(attacked.accuracy)
        found[f"{name}, certified"] = certificate.certified_accuracy.estimate
        found[f"{name}, accepted proposals"] = float(fit.info.acceptance.mean())
        found[f"{name}, epsilon"] = float(fit.statement.epsilon)
    return found


def _coarse(records: tacit.Record) -> tacit.Record:
    """Returns averages of 2 x 2 pixels, which move no farther than the pixels, and parities."""
    pixels = np.asarray(records.x).reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4))
    return tacit.as_records(pixels.reshape(-1, 16), np.asarray(records.y) % 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="proposals of each chain")
    parser.add_argument("--seed", type=int, help="for a result that can be repeated; INSECURE")
    arguments = parser.parse_args()
    for name, value in run(arguments.steps, seed=arguments.seed).items():
        print(f"{name:30} {value:.3f}")
