"""What private HMC makes of a budget: from the prior, from a private start, and the start alone.

Logistic regressions on 5000 simulated records, whose truth is drawn from the prior, with delta 1e-5
and the accountant GDP, which is exact for full batches. All methods spend the whole budget.
"""

import argparse
import math
import statistics
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from tacit.errors import IntervalWarning, PrivacyWarning, UtilityWarning
from tacit.inference import WarmHMC, data_free_clip_norm, fit_hmc, synthetic_records
from tacit.inference.warm import Coordinates
from tacit.metrics import accuracy, diagnose, nll
from tacit.models import MLP, Bernoulli, GaussianPrior

__all__ = ["METHODS", "Found", "Problem", "main", "run"]

_NUM_RECORDS, _NUM_SCORED = 5000, 2000
_NUM_CHAINS, _NUM_PROPOSALS, _NUM_LEAPFROG = 4, 50, 5


class Problem(NamedTuple):
    """A data set, with the truth that made it and public inputs of the same distribution."""

    model: tacit.Model
    truth: np.ndarray
    train: tacit.Record
    test: tacit.Record
    inputs: np.ndarray
    budget: tacit.Budget
    seed: int

    @classmethod
    def draw(cls, num_features: int, epsilon: float, seed: int) -> "Problem":
        """Draws a truth under which logits have a standard deviation of two, and records."""
        generator = np.random.default_rng([num_features, seed])
        std = 2 * math.sqrt(3 / num_features)
        truth = std * generator.normal(size=num_features + 1)

        def records(number: int) -> tacit.Record:
            x = generator.uniform(-1, 1, (number, num_features)).astype(np.float32)
            chance = 1 / (1 + np.exp(-x @ truth[:-1] - truth[-1]))
            return tacit.as_records(x, (generator.uniform(size=number) < chance).astype(np.int32))

        return cls(
            model=tacit.bayesian(
                MLP(num_inputs=num_features, num_outputs=1),
                prior=GaussianPrior(std=std),
                likelihood=Bernoulli(),
            ),
            truth=truth,
            train=records(_NUM_RECORDS),
            test=records(_NUM_SCORED),
            inputs=generator.uniform(-1, 1, (1000, num_features)).astype(np.float32),
            budget=tacit.Budget(epsilon=epsilon, delta=1e-5, accountant=tacit.GDP()),
            seed=seed,
        )


class Found(NamedTuple):
    """What a run is worth; of a fit without chains the first three are not a number."""

    acceptance: float
    distinct: float
    effective: float
    r_hat: float
    accuracy: float
    nll: float
    coverage: float


def from_prior(problem: Problem) -> tacit.Fit:
    """Runs chains from draws of the prior, with unit mass and released gradients."""
    clip_norm = data_free_clip_norm(problem.model, synthetic_records(problem.model, problem.inputs))
    plan = _released(clip_norm, clip_norm, step_size=0.03)
    plan = tacit.calibrate(plan, problem.budget)
    return tacit.fit(plan, problem.model, problem.train, budget=problem.budget, seed=problem.seed)


def released_gradients(problem: Problem) -> tacit.Fit:
    """Runs chains in the coordinates of a private start, but with released gradients."""
    settings = WarmHMC(num_records=_NUM_RECORDS)
    start, _ = settings.plans(problem.model, problem.inputs, problem.budget)
    first = tacit.fit(start, problem.model, problem.train, budget=problem.budget, seed=problem.seed)
    coordinates = Coordinates.of(first.posterior)
    seen = coordinates.model(problem.model)
    synthetic = synthetic_records(seen, problem.inputs)
    clip_norm = data_free_clip_norm(seen, synthetic, quantile=0.999)
    plan = _released(clip_norm, clip_norm, step_size=0.1)
    plan = tacit.calibrate(replace(plan, spent=first.checkpoint.cost), problem.budget)
    found = tacit.fit(plan, seen, problem.train, budget=problem.budget, seed=problem.seed + 1)
    kept = jax.vmap(jax.vmap(coordinates.params))(found.posterior.kept)
    return replace(found, posterior=replace(found.posterior, model=problem.model, kept=kept))


def warm(problem: Problem) -> tacit.Fit:
    """Runs `fit_hmc` as it is."""
    return fit_hmc(
        WarmHMC(num_records=_NUM_RECORDS),
        problem.model,
        problem.train,
        inputs=problem.inputs,
        budget=problem.budget,
        seed=problem.seed,
    )


def laplace(problem: Problem) -> tacit.Fit:
    """Gives the whole budget to the start."""
    start, _ = WarmHMC(num_records=_NUM_RECORDS).plans(
        problem.model, problem.inputs, problem.budget
    )
    plan = tacit.calibrate(start, problem.budget)
    return tacit.fit(plan, problem.model, problem.train, budget=problem.budget, seed=problem.seed)


METHODS: dict[str, Callable[[Problem], tacit.Fit]] = {
    "from the prior": from_prior,
    "private start, released gradients": released_gradients,
    "`fit_hmc`": warm,
    "Laplace alone": laplace,
}


def run(name: str, problem: Problem) -> Found:
    """Runs a method and scores it with the truth in hand."""
    fit = METHODS[name](problem)
    posterior = fit.posterior
    draws = posterior.draws(None if posterior.sampler.min_draws == 1 else 1000)
    layer = draws["network"]["dense_0"]
    values = np.asarray(jnp.concatenate([layer["kernel"][:, :, 0], layer["bias"]], axis=1))
    low, high = np.quantile(values, [0.05, 0.95], axis=0)
    probabilities = tacit.predict(posterior, problem.test.x).probabilities
    chains = [math.nan] * 4
    if hasattr(fit.info, "acceptance"):
        worst = diagnose(posterior)
        num_distinct = len(np.unique(values, axis=0))
        chains = [
            *(float(fit.info.acceptance.mean()), num_distinct / posterior.num_chains),
            *(worst.ess_bulk, worst.r_hat),
        ]
    return Found(
        *chains,
        accuracy=accuracy(probabilities, problem.test.y),
        nll=nll(probabilities, problem.test.y),
        coverage=float(np.mean((low <= problem.truth) & (problem.truth <= high))),
    )


def _released(clip_norm: float, ratio_clip_norm: float, *, step_size: float) -> tacit.Plan:
    full = tacit.FullBatch(num_records=_NUM_RECORDS)
    method = tacit.HMC(
        gradient=tacit.GaussianSum(sampling=full, clip_norm=clip_norm, noise_multiplier=1.0),
        ratio=tacit.GaussianSum(sampling=full, clip_norm=ratio_clip_norm, noise_multiplier=0.3),
        step_size=step_size,
        num_leapfrog=_NUM_LEAPFROG,
        jitter=0.1,
        reuse_gradient=True,
    )
    return tacit.Plan(
        method=method,
        num_steps=_NUM_PROPOSALS,
        num_chains=_NUM_CHAINS,
        burn_in=_NUM_PROPOSALS // 2,
        thinning=1,
    )


def _row(name: str, num_features: int, epsilon: float, rows: list[Found]) -> str:
    columns = [[getattr(row, field) for row in rows] for field in Found._fields]
    means = [statistics.fmean(column) for column in columns]
    spread = statistics.stdev(columns[-1]) / math.sqrt(len(rows)) if len(rows) > 1 else 0.0
    shown = [
        "" if math.isnan(mean) else f"{mean:.{digits}f}" if mean < 1e4 else "infinite"
        for mean, digits in zip(means, (2, 1, 0, 1, 3, 3, 2), strict=True)
    ]
    cells = [name, str(num_features), f"{epsilon:g}", *shown]
    return f"| {' | '.join(cells)} ± {spread:.2f} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--features", type=int, nargs="+", default=[7, 20, 50])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    arguments = parser.parse_args()
    for category in (PrivacyWarning, IntervalWarning, UtilityWarning):
        warnings.simplefilter("ignore", category)
    print(
        "| HMC | features | epsilon | accepted | distinct states of a chain | effective size"
        " | R-hat | accuracy | NLL | 90 % intervals hold |"
    )
    print("| --- " * 10 + "|")
    for num_features in arguments.features:
        for epsilon in arguments.epsilons:
            problems = [Problem.draw(num_features, epsilon, s) for s in range(arguments.seeds)]
            for name in METHODS:
                rows = [run(name, problem) for problem in problems]
                print(_row(name, num_features, epsilon, rows), flush=True)


if __name__ == "__main__":
    main()
