"""DP-HMC: private gradients, and a private Metropolis correction, from a start that is paid for.

The correction is dear: each proposal pays for a whole trajectory, and the noise of its ratio is a
penalty that grows with the square of the distance. So the model is small, half of the budget
goes into a start by gradient descent, and the chain explores its neighbourhood.
"""

from dataclasses import replace

import jax
import numpy as np
import optax

import tacit
from examples.census import BUDGET, Scores, census, engine, main, scores
from tacit.data import ADULT_SCHEMA
from tacit.models import MLP, Bernoulli, GaussianPrior

__all__ = ["run"]

_FEATURES = (
    *("age@17", "age@20", "age@30", "education_num", "capital_gain@0"),
    *("marital_status=Married-civ-spouse", "sex=Male"),
)


def run(
    num_steps: int = 20, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Draws the weights of a logistic regression on seven features."""
    columns = np.array([ADULT_SCHEMA.feature_names.index(name) for name in _FEATURES])
    train, test = (part._replace(x=part.x[:, columns]) for part in census(num_records))
    model = tacit.bayesian(
        MLP(num_inputs=len(columns), hidden=(), num_outputs=1),
        prior=GaussianPrior(std=3.0),
        likelihood=Bernoulli(),
    )
    start = _start(model, train, num_steps=10 * num_steps, seed=seed)
    point = jax.tree.map(lambda leaf: leaf[0], start.posterior.draws(1))

    full = tacit.GaussianSum(
        sampling=tacit.FullBatch(num_records=len(train.y)),
        clip_norm=1.0,
        noise_multiplier=1.0,
        chunk_size=2048,
    )
    method = tacit.HMC(
        gradient=full,
        ratio=replace(full, noise_multiplier=0.3),
        step_size=0.003,
        num_leapfrog=5,
        jitter=0.1,
        reuse_gradient=True,
    )
    plan = tacit.Plan(
        method=method,
        num_steps=num_steps,
        burn_in=num_steps // 4,
        thinning=1,
        spent=start.checkpoint.cost,
    )
    # The start is a release that `spent` counts, so the chain may begin there.
    warm = model._replace(init=lambda key: point)
    fit = tacit.fit(tacit.calibrate(plan, BUDGET), warm, train, budget=BUDGET, seed=seed)
    return fit, scores(fit, test)


def _start(
    model: tacit.Model, train: tacit.Record, *, num_steps: int, seed: int | None
) -> tacit.Fit:
    half = tacit.Budget(epsilon=BUDGET.epsilon / 2, delta=BUDGET.delta / 2)
    descent = tacit.SGD(
        release=replace(engine(len(train.y)), clip_norm=1.0),
        optimizer=optax.sgd(2.0, momentum=0.9),
    )
    method = tacit.inference.IterateAverage(base=descent, start=num_steps // 2)
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=num_steps), half)
    return tacit.fit(plan, model, train, budget=half, seed=seed)


if __name__ == "__main__":
    main(run)
