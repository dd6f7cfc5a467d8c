"""Adversarial training under privacy: the attack is inside the clip, so it costs nothing more."""

import argparse

import optax

import tacit
from examples.digits import BALL, BUDGET, digits, engine, plain_model

__all__ = ["run"]


def run(
    num_steps: int = 200, num_records: int | None = None, seed: int | None = None
) -> dict[str, float]:
    """Returns the accuracy of a plain and of a robust posterior, clean and under attack."""
    train, test = digits(num_records)
    plain = plain_model()
    robust = tacit.adversarial(plain, tacit.PGD(ball=BALL, num_steps=5), weight=0.5)
    found = {}
    for name, model in (("plain", plain), ("robust", robust)):
        method = tacit.SGD(release=engine(len(train.y)), optimizer=optax.sgd(1.0, momentum=0.9))
        plan = tacit.calibrate(tacit.Plan(method=method, num_steps=num_steps), BUDGET)
        fit = tacit.fit(plan, model, train, budget=BUDGET, seed=seed)
        attack = tacit.PGD(ball=BALL, num_steps=20)
        result = tacit.robust_accuracy(fit.posterior, attack, test.x, test.y)
        found[f"{name}, clean"] = float(result.clean_accuracy)
        found[f"{name}, attacked"] = float(result.accuracy)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, help="for a result that can be repeated; INSECURE")
    arguments = parser.parse_args()
    for name, accuracy in run(arguments.steps, seed=arguments.seed).items():
        print(f"{name:17} {accuracy:.3f}")
