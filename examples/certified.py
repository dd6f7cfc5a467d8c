"""Certified training under privacy: a posterior whose predictions provably do not change.

The radius grows over the first half of the steps. With `HMC` instead of `SGLD` this is ADV-DP-HMC,
with one clip and an honest cost.
"""

import argparse

import tacit
from examples.digits import BALL, BUDGET, NETWORK, digits, engine, plain_model
from tacit.certify import certify_predictive
from tacit.typing import Scalar

__all__ = ["run"]


def run(
    num_steps: int = 300, num_records: int | None = None, seed: int | None = None
) -> dict[str, float]:
    """Returns the accuracy of a plain and of a certified posterior: clean, attacked, certified."""
    train, test = digits(num_records)
    langevin = tacit.SGLD.fixed_noise(release=engine(len(train.y)), step_size=2.0 / len(train.y))
    ramp = tacit.inference.Ramp(first=0.0, last=float(BALL.radius), stop=max(1, num_steps // 2))

    def robust(model: tacit.Model, step: Scalar) -> tacit.Model:
        return tacit.certified(model, NETWORK, BALL.at(ramp(step)), weight=0.5)

    methods = {
        "plain": langevin,
        "certified": tacit.inference.Scheduled(base=langevin, transform=robust),
    }
    found = {}
    for name, method in methods.items():
        plan = tacit.Plan(
            method=method,
            num_steps=num_steps,
            burn_in=3 * num_steps // 4,
            thinning=max(1, num_steps // 40),
        )
        fit = tacit.fit(
            tacit.calibrate(plan, BUDGET), plain_model(), train, budget=BUDGET, seed=seed
        )
        attack = tacit.PGD(ball=BALL, num_steps=20)
        attacked = tacit.robust_accuracy(fit.posterior, attack, test.x, test.y)
        certificate = certify_predictive(fit.posterior, test.x, test.y, BALL)
        found[f"{name}, clean"] = float(attacked.clean_accuracy)
        found[f"{name}, attacked"] = float(attacked.accuracy)
        found[f"{name}, certified"] = certificate.certified_accuracy.estimate
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="how many")
    parser.add_argument("--seed", type=int, help="for a result that can be repeated; INSECURE")
    arguments = parser.parse_args()
    for name, accuracy in run(arguments.steps, seed=arguments.seed).items():
        print(f"{name:20} {accuracy:.3f}")
