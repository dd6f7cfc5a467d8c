"""A cell of the coverage study: one method on one problem at one epsilon."""

import functools
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.special import ndtri

import tacit
from examples.coverage.methods import DELTA, METHODS, kernel_of, records_for, sampling_of
from examples.coverage.problem import Problem
from examples.coverage.problems import PROBLEMS
from examples.coverage.programs import split_of
from examples.coverage.simulation import (
    Reference,
    Simulated,
    optimum,
    privacy_noise,
    reference,
    simulate,
    spread,
)
from tacit import _tree
from tacit.inference.corrected import ModelPosterior, caveats_of, obstacle_in
from tacit.inference.method import Kernel
from tacit.inference.noise_aware import Message, NoiseAware
from tacit.numpyro.correction import JointPosterior
from tacit.typing import Array

__all__ = ["LEVELS", "Cell", "exact_row", "measure", "measured_cell", "scores"]

LEVELS = (0.9, 0.5)
_NUM_DRAWS = 1000
_FEWEST = 10
"""Data sets of which a share is worth telling."""

_NUM_CHAIN_DRAWS = 400
"""Of a chain for each data set of a program, which is what takes long."""

Ends = Mapping[float, tuple[NDArray[np.float64], NDArray[np.float64]]]
"""By level, the ends of intervals, ``(num_sets, num_quantities)``."""


class Cell(NamedTuple):
    """What is measured together: intervals as the method makes them, and corrected ones.

    Attributes:
      problem: its name.
      method: its name.
      epsilon: of the budget.
      batches: full or Poisson.
    """

    problem: str
    method: str
    epsilon: float
    batches: str

    @property
    def name(self) -> str:
        """Of the cell in the file of results."""
        return " | ".join((self.problem, self.method, f"{self.epsilon:g}", self.batches))


def scores(ends: Ends, centre: NDArray[np.float64], truth: NDArray[np.float64]) -> dict[str, float]:
    """Returns coverage with standard errors, the width as a standard deviation, and the error.

    Coordinates of one data set are not independent; the standard errors are those of the mean of
    the data sets' own coverage.

    Args:
      ends: of the intervals.
      centre: the means of the posteriors.
      truth: likewise.
    """
    row = {}
    for level, (low, high) in ends.items():
        holds = ((low <= truth) & (truth <= high)).mean(axis=1)
        row[f"coverage_{100 * level:.0f}"] = float(holds.mean())
        row[f"error_{100 * level:.0f}"] = float(holds.std(ddof=1) / math.sqrt(len(holds)))
    low, high = ends[0.9]
    row["std"] = float(np.mean(high - low) / (2 * ndtri(0.95)))
    row["rmse"] = float(np.sqrt(np.mean((centre - truth) ** 2)))
    return row


@functools.lru_cache(maxsize=1)
def _reference_of(problem: str, num_sets: int, seed: int) -> Reference:
    return reference(PROBLEMS[problem](), num_sets=num_sets, seed=seed)


def exact_row(problem: str, *, num_sets: int, seed: int = 0) -> dict[str, Any]:
    """Returns the scores of the posterior without privacy, by Laplace's method at its mode."""
    found = _reference_of(problem, num_sets, seed)
    std = spread(found, found.precision)
    ends = {
        level: (
            found.quantities + ndtri(0.5 - level / 2) * std,
            found.quantities + ndtri(0.5 + level / 2) * std,
        )
        for level in LEVELS
    }
    return scores(ends, found.quantities, found.truth)


def measured_cell(cell: Cell, num_sets: int) -> tuple[Cell, list[dict[str, Any]], dict[str, Any]]:
    """Returns a cell, its rows and those without privacy: all that a process is asked for."""
    return cell, measure(cell, num_sets=num_sets), exact_row(cell.problem, num_sets=num_sets)


def measure(cell: Cell, *, num_sets: int, seed: int = 0) -> list[dict[str, Any]]:
    """Returns the rows of a cell: intervals as the method made them, and corrected ones."""
    start = time.perf_counter()
    problem = PROBLEMS[cell.problem]()
    budget = tacit.Budget(epsilon=cell.epsilon, delta=DELTA)
    plan = METHODS[cell.method](problem, sampling_of(problem, cell.batches))
    plan = tacit.calibrate(plan, budget)
    kernel = kernel_of(cell.method, plan, problem)
    simulated = simulate(
        plan,
        problem,
        num_sets=num_sets,
        seed=seed,
        kernel=kernel,
        records_of=records_for(cell.method),
    )
    simulation_time = time.perf_counter() - start
    found = _reference_of(cell.problem, num_sets, seed)
    exact = spread(found, found.precision).mean()
    noise = privacy_noise(problem.clip_norm, budget)
    if problem.program is None:
        best = optimum(found, noise).mean()
    else:
        best = _program_optimum(_joint_posterior(problem), found, noise)
    versions: dict[str, Any] = {"raw": (simulated.draws, None, {})}
    if simulated.evidence is not None:
        versions["corrected"] = _corrected(problem, kernel, simulated)
    rows = []
    for version, (draws, is_quiet, facts) in versions.items():
        values = _quantities(problem, draws)
        ends = _quantile_ends(values)
        row = scores(ends, values.mean(axis=0), simulated.truth)
        if is_quiet is not None and is_quiet.sum() >= _FEWEST:
            quiet = {level: (low[is_quiet], high[is_quiet]) for level, (low, high) in ends.items()}
            quiet_row = scores(quiet, values.mean(axis=0)[is_quiet], simulated.truth[is_quiet])
            row |= {f"quiet_{name}": quiet_row[name] for name in ("coverage_90", "error_90")}
        relative = {
            "over_exact": row["std"] / exact,
            "over_optimum": row["std"] / best,
            "rmse_over_optimum": row["rmse"] / best,
        }
        seconds = {"simulation": simulation_time, "all": time.perf_counter() - start}
        rows.append(
            {**cell._asdict(), "version": version, "num_sets": num_sets}
            | {name: _rounded(value) for name, value in (row | relative | facts).items()}
            | {"seconds": {name: round(value, 1) for name, value in seconds.items()}}
        )
    return rows


def _rounded(value: float) -> float | None:
    """Of a method whose draws are no numbers there is no width."""
    return round(float(value), 4) if math.isfinite(value) else None


def _quantile_ends(draws: NDArray[np.float64]) -> Ends:
    """The ends of equal-tailed intervals; the first axis is that of draws."""
    ends = {}
    for level in LEVELS:
        low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        ends[level] = (low, high)
    return ends


def _quantities(problem: Problem, draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the quantities of flat draws; the last axis is that of parameters."""
    flat, unflat = ravel_pytree(problem.model.init(jax.random.key(0)))
    if not problem.is_function:
        return draws

    def one(vector: Array) -> Array:
        return problem.quantities(unflat(vector))

    mapped = jax.jit(lambda draws: jax.lax.map(jax.vmap(one), draws))
    return np.asarray(mapped(jnp.asarray(draws, flat.dtype)), np.float64)


def _corrected(
    problem: Problem, kernel: Kernel, simulated: Simulated
) -> tuple[NDArray[np.float64], NDArray[np.bool_], dict[str, float]]:
    """Returns draws, ``(num_draws, num_sets, num_parameters)``, and what is said about them.

    The second result is whether nothing was said against the intervals of a data set.

    Where a run does not determine its posterior, the method's own draws stay, as in `tacit.fit`.
    """
    assert kernel.engine is not None
    is_program = hasattr(kernel.sampler, "split")
    whole: Any = _joint_posterior(problem) if is_program else _model_posterior(problem)
    num_sets = simulated.draws.shape[1]
    runs: list[NoiseAware | None] = []
    for i in range(num_sets):
        one = jax.tree.map(lambda leaf, at=i: leaf[at : at + 1], simulated.evidence)
        try:
            runs.append(whole.seen(one, kernel.engine))
        except np.linalg.LinAlgError:  # as in `tacit.fit`, a run keeps its posterior, and says so
            runs.append(None)
    known = [seen for seen in runs if seen is not None]
    if is_program:
        draws = list(_pooled(whole.draws_of([(seen.message, seen.curvatures) for seen in known])))
        is_kept = [False] * num_sets
    else:
        is_kept = [seen is None or obstacle_in(seen) is not None for seen in runs]
        draws = [
            _resampled(simulated.draws[:, i]) if is_kept[i] else whole.draws(seen)
            for i, seen in enumerate(runs)
        ]
    cautions = [
        kept or seen is None or bool(caveats_of(seen))
        for kept, seen in zip(is_kept, runs, strict=True)
    ]
    doubts = [float(np.max(seen.curvature_doubt)) for seen in known]
    shares = [seen.share[0] for seen in known]
    facts = {
        "cautioned": float(np.mean(cautions)),
        "doubt": float(np.median(doubts)),
        "share": float(np.mean(shares)),
    }
    return np.stack(draws, axis=1), ~np.array(cautions), facts


def _joint_posterior(problem: Problem) -> JointPosterior:
    latents = split_of(problem, "AutoNormal").latents
    assert latents is not None
    return JointPosterior(latents, num_draws=_NUM_CHAIN_DRAWS)


def _program_optimum(joint: JointPosterior, found: Reference, noise: float) -> float:
    """Returns the mean standard deviation of a program's noise-aware optimum.

    The prior of a hierarchy is not Gaussian, so the posterior given one release at the truth, of
    known curvature, is sampled.
    """
    seen = np.flatnonzero(joint.space.seen)
    generator = np.random.default_rng(0)
    runs = []
    for truth, information in zip(found.truth, found.information, strict=True):
        curvature = information[np.ix_(seen, seen)]
        covariance = curvature + noise * np.eye(len(seen))
        gradient = generator.multivariate_normal(np.zeros(len(seen)), covariance)
        message = Message(truth[seen], gradient, noise, 0.0, np.zeros(len(seen)))
        runs.append((message, curvature[None]))
    draws = np.moveaxis(_pooled(joint.draws_of(runs)), 1, 0)
    return scores(_quantile_ends(draws), draws.mean(0), found.truth)["std"]


def _pooled(chains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the draws of all chains of a run together, ``(num_runs, num_draws, d)``."""
    return chains.reshape(len(chains), -1, chains.shape[-1])


def _model_posterior(problem: Problem) -> ModelPosterior:
    key = jax.random.key(0)
    records = jax.eval_shape(lambda: problem.observe(key, problem.truth(key)))
    return ModelPosterior(problem.model, _tree.row_shapes(records))


def _resampled(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns as many draws as a correction makes, evenly taken."""
    return draws[np.arange(_NUM_DRAWS) * len(draws) // _NUM_DRAWS]
