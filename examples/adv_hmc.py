"""ADV-DP-HMC: private HMC on a certified model, from a private start on the same model.

The robust likelihood is that of the worst pixels within the ball. It enters the start and every
acceptance ratio alike, so that robustness costs no privacy. The task is to tell even digits from
odd ones by a logistic regression, since private chains want few parameters.
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

_BALL = Linf(radius=0.05, low=0.0, high=1.0)
_NETWORK = MLP(num_inputs=64, num_outputs=1)


def run(
    num_steps: int = 20, num_records: int | None = None, seed: int | None = None
) -> dict[str, float]:
    """Returns accuracies of a plain and of a certified posterior, acceptance and epsilon."""
    train, test = (_parities(part) for part in digits(num_records))
    plain = tacit.bayesian(_NETWORK, prior=GaussianPrior(std=1.0), likelihood=Bernoulli())
    models = {
        "plain": plain,
        "certified": tacit.certified(plain, _NETWORK, _BALL, weight=0.5),
    }
    settings = WarmHMC(num_records=len(train.y), num_chains=8, num_proposals=num_steps)
    found = {}
    # The images to test on are public. Made-up ones would be lit where no digit is, and the clip
    # norms several times as large.
    for name, model in models.items():
        fit = fit_hmc(settings, model, train, inputs=test.x, budget=BUDGET, seed=seed)
        attack = tacit.PGD(ball=_BALL, num_steps=20)
        attacked = tacit.robust_accuracy(fit.posterior, attack, test.x, test.y)
        certificate = certify_predictive(fit.posterior, test.x, test.y, _BALL)
        found[f"{name}, clean"] = float(attacked.clean_accuracy)
        found[f"{name}, attacked"] = float(attacked.accuracy)
        found[f"{name}, certified"] = certificate.certified_accuracy.estimate
        found[f"{name}, accepted proposals"] = float(fit.info.acceptance.mean())
        found[f"{name}, epsilon"] = float(fit.statement.epsilon)
    return found


def _parities(records: tacit.Record) -> tacit.Record:
    return tacit.as_records(np.asarray(records.x), np.asarray(records.y) % 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="proposals of each chain")
    parser.add_argument("--seed", type=int, help="for a result that can be repeated; INSECURE")
    arguments = parser.parse_args()
    for name, value in run(arguments.steps, seed=arguments.seed).items():
        print(f"{name:30} {value:.3f}")
