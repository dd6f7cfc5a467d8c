"""Does a clip norm that follows the counted norms pay? DP-SGD on census records and on digits.

In the first half of a run the clip norm moves until a chosen share of the records is not clipped,
by the histogram that every release has beside its gradient at no privacy cost; then it stays.

python -m examples.adaptive_clip
"""

import warnings
from dataclasses import replace

import numpy as np
import optax

import tacit
from examples import census, digits
from tacit.errors import IntervalWarning, PrivacyWarning, UtilityWarning
from tacit.inference.schedules import Constant, FollowedNorms
from tacit.metrics import accuracy, nll

__all__ = ["main", "trial"]

CLIP_NORMS = (0.25, 1.0, 4.0, 16.0)


def trial(
    task: str, clip_norm: float, target: float | None, seed: int
) -> tuple[float, float, float]:
    """Returns accuracy, negative log likelihood and the last clip norm of one private run."""
    if task == "census":
        train, test = census.census()
        model, release, budget = census.network(), census.engine(len(train.y)), census.BUDGET
        learning_rate, num_steps = 0.2, 400
    else:
        train, test = digits.digits()
        model, release = digits.plain_model(), digits.engine(len(train.y))
        budget = tacit.Budget(epsilon=3.0, delta=1e-4)
        learning_rate, num_steps = 0.1, 200
    schedule: Constant | FollowedNorms = Constant()
    if target is not None:
        schedule = FollowedNorms(target=target, num_steps=num_steps // 2)
    method = tacit.SGD(
        release=replace(release, clip_norm=clip_norm),
        optimizer=optax.sgd(learning_rate, momentum=0.9),
        clip_schedule=schedule,
    )
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=num_steps), budget)
    fit = tacit.fit(plan, model, train, budget=budget, seed=seed)
    predictions = tacit.predict(fit.posterior, test.x, batch_size=4096)
    probabilities, labels = np.asarray(predictions.probabilities), np.asarray(test.y)
    last = float(np.ravel(fit.checkpoint.states.clip_norm)[-1])
    return accuracy(probabilities, labels), nll(probabilities, labels), last


def main(num_seeds: int = 3) -> None:
    """Prints the rows of the table in docs/clipping.md."""
    for task in ("census", "digits"):
        for target in (None, 0.5, 0.9):
            for clip_norm in CLIP_NORMS:
                with warnings.catch_warnings():
                    for category in (PrivacyWarning, IntervalWarning, UtilityWarning):
                        warnings.simplefilter("ignore", category)
                    rows = [trial(task, clip_norm, target, seed) for seed in range(num_seeds)]
                found, loss, last = np.mean(rows, axis=0)
                how = "fixed" if target is None else f"follows {target:.0%}"
                cells = f"{clip_norm:g} | {last:.2g} | {found:.3f} | {loss:.3f}"
                print(f"| {task} | {how} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
