"""Does a clip norm that follows the counted norms pay? DP-SGD on census records and on digits.

In the first half of a run the clip norm moves until a chosen share of the records is not clipped,
by the histogram that every release has beside its gradient at no privacy cost; then it stays.

python -m examples.adaptive_clip
"""

import warnings
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from examples import census, digits
from tacit.errors import IntervalWarning, PrivacyWarning, UtilityWarning
from tacit.inference.method import Kernel, OneRelease, add_regulariser, declare, objective_of
from tacit.metrics import accuracy, nll
from tacit.models import Model
from tacit.samplers import Points
from tacit.typing import Array, Key, Params, Record, Scalar

__all__ = ["FollowingClip", "main", "trial"]

CLIP_NORMS = (0.25, 1.0, 4.0, 16.0)
_MOMENTUM, _SPEED = 0.9, 0.2


class FollowingState(NamedTuple):
    """Parameters, momentum, and the present clip norm: all made of releases."""

    params: Params
    momentum: Params
    step: Array
    clip_norm: Array


class FollowingInfo(NamedTuple):
    """The clip norm of the step."""

    clip_norm: Scalar


@declare(name="following_clip", summary="DP-SGD whose clip norm follows the norms it has counted")
@dataclass(frozen=True, kw_only=True)
class FollowingClip(OneRelease):
    """Descent with momentum under a clip norm that is a function of earlier releases.

    Guarantee:
      One release a step, nothing else. Its noise follows the clip norm, so all steps cost the same.

    Args:
      learning_rate: on the gradient of the mean loss.
      target: the share of records that shall not be clipped; None keeps the clip norm as it is.
      num_moving: in how many steps it moves.
    """

    learning_rate: float
    target: float | None
    num_moving: int

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        objective = objective_of(model)
        num_records = self.release.sampling.public_records

        def init(key: Key) -> FollowingState:
            params = objective.init(key)
            nothing = jax.tree.map(jnp.zeros_like, params)
            start = jnp.asarray(self.release.clip_norm, jnp.float32)
            return FollowingState(params, nothing, jnp.zeros((), jnp.int32), start)

        def step(
            key: Key, state: FollowingState, records: Record
        ) -> tuple[FollowingState, FollowingInfo]:
            def loss(params: Params, record: Record, key: Key) -> Scalar:
                return objective.record_loss(params, None, record, key)

            found = self.release.counted_gradient(
                key, loss, state.params, records, clip_norm=state.clip_norm
            )
            gradient = add_regulariser(found.estimate, objective, state.params, None)
            momentum = jax.tree.map(
                lambda m, g: _MOMENTUM * m + g / num_records, state.momentum, gradient
            )
            params = jax.tree.map(lambda w, m: w - self.learning_rate * m, state.params, momentum)
            clip_norm = state.clip_norm
            if self.target is not None:
                share = jnp.clip(jnp.sum(found.shares), 0.0, 1.0)
                moved = clip_norm * jnp.exp(-_SPEED * (share - self.target))
                clip_norm = jnp.where(state.step < self.num_moving, moved, clip_norm)
            after = FollowingState(params, momentum, state.step + 1, clip_norm)
            return after, FollowingInfo(state.clip_norm)

        return Kernel(init, step, lambda state: state.params, Points())


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
    method = FollowingClip(
        release=replace(release, clip_norm=clip_norm),
        learning_rate=learning_rate,
        target=target,
        num_moving=num_steps // 2,
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
