"""A regression table with private intervals: who among the census records earns over $50 000?

``python -m examples.regression_table`` prints coefficients, 90 % intervals and what part of their
width is from privacy, beside the same regression without privacy.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import tacit
from tacit.data import load_adult
from tacit.models import MLP, Bernoulli, GaussianPrior
from tacit.typing import Params

__all__ = ["NAMES", "Table", "markdown", "run"]

NAMES = ("age, per 10 years", "education, per 3 years", "hours a week, per 10", "male", "married")
BUDGET = tacit.Budget(epsilon=1.0, delta=1e-6)
NUM_STEPS = 10


class Table(NamedTuple):
    """Columns of a regression table; the last row is the intercept.

    Attributes:
      mean: of the private posterior.
      low: the lower end of the private 90 % interval.
      high: the upper end.
      privacy_share: the share of the interval's width that is from privacy.
      plain: the posterior mean without privacy.
      plain_low: the lower end of the 90 % interval without privacy.
      plain_high: the upper end.
    """

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    privacy_share: NDArray[np.float64]
    plain: NDArray[np.float64]
    plain_low: NDArray[np.float64]
    plain_high: NDArray[np.float64]


def _records(num_records: int | None) -> tacit.Record:
    """Returns the training records with columns that are centred and scaled by public numbers."""
    frame, _ = load_adult()
    frame = frame.head(num_records or len(frame))
    columns = [
        (frame["age"].clip(17, 90) - 40) / 10,
        (frame["education_num"].clip(1, 16) - 10) / 3,
        (frame["hours_per_week"].clip(1, 80) - 40) / 10,
        frame["sex"] == "Male",
        frame["marital_status"].isin(["Married-civ-spouse", "Married-AF-spouse"]),
    ]
    x = np.stack([column.to_numpy(np.float32) for column in columns], axis=1)
    return tacit.as_records(x, (frame["income"] == ">50K").to_numpy(np.int32))


def run(num_records: int | None = None, *, seed: int | None = None) -> Table:
    """Fits the regression with and without privacy.

    Args:
      num_records: how many of the records; all by default.
      seed: of the noise, so that a page can be checked; None for secret noise.
    """
    records = _records(num_records)
    model = tacit.bayesian(
        MLP(num_inputs=len(NAMES), num_outputs=1),
        prior=GaussianPrior(std=2.5),
        likelihood=Bernoulli(),
    )
    sampling = tacit.FullBatch(num_records=len(records.y))
    # Public ranges bound the norm of a row by 7.4; that of nearly every gradient is below 4.
    release = tacit.GaussianSum(sampling=sampling, clip_norm=4.0, noise_multiplier=1.0)
    plan = tacit.Plan(method=tacit.Laplace(release=release), num_steps=NUM_STEPS)
    fit = tacit.fit(tacit.calibrate(plan, BUDGET), model, records, budget=BUDGET, seed=seed)
    plain = tacit.fit(
        tacit.Plan(method=tacit.Laplace.non_private(sampling=sampling), num_steps=NUM_STEPS),
        model,
        records,
        budget=tacit.Budget.non_private(),
    )
    private, exact = fit.posterior.credible(0.9), plain.posterior.credible(0.9)
    parts = fit.posterior.intervals.parts
    share = np.full(len(NAMES) + 1, np.nan) if parts is None else _flat(parts.privacy_share)
    return Table(
        _mean(fit.posterior),
        _flat(private.low),
        _flat(private.high),
        share,
        _mean(plain.posterior),
        _flat(exact.low),
        _flat(exact.high),
    )


def _mean(posterior: tacit.Posterior) -> NDArray[np.float64]:
    draws = posterior.draws(1000)["network"]["dense_0"]
    stacked = jnp.concatenate([draws["kernel"][..., 0], draws["bias"]], axis=1)
    return np.asarray(stacked.mean(axis=0), np.float64)


def _flat(params: Params) -> NDArray[np.float64]:
    layer = params["network"]["dense_0"]
    return np.concatenate([np.asarray(layer["kernel"])[:, 0], np.asarray(layer["bias"])])


def markdown(table: Table) -> str:
    """Returns the table in Markdown."""
    lines = [
        "| log odds of an income over $50 000 | private | 90 % interval | of its width from privacy"
        " | without privacy | 90 % interval |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in zip([*NAMES, "intercept"], zip(*table, strict=True), strict=True):
        mean, low, high, share, plain, plain_low, plain_high = row
        lines.append(
            f"| {name} | {mean:.2f} | {low:.2f} to {high:.2f} | {share:.0%} | {plain:.2f} |"
            f" {plain_low:.2f} to {plain_high:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(run(seed=0)))
