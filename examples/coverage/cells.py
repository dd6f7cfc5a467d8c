"""A cell of the coverage study: one method on one problem at one epsilon."""

import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.special import ndtri

import tacit
from examples.coverage.methods import DELTA, METHODS, kernel_of, records_for, sampling_of
from examples.coverage.problems import PROBLEMS, Problem
from examples.coverage.simulation import Reference, optimum, reference, simulate, spread
from tacit.inference import corrected as correction
from tacit.inference.method import Kernel
from tacit.inference.noise_aware import NoiseAware, noise_aware, releases_in
from tacit.numpyro import correction as program_correction
from tacit.typing import Array, Params, Scalar, Tree

__all__ = ["LEVELS", "Cell", "exact_row", "measure", "scores"]

LEVELS = (0.9, 0.5)

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
    best = optimum(found, clip_norm=problem.clip_norm, budget=budget).mean()
    versions: dict[str, Any] = {"raw": (simulated.draws, {})}
    if simulated.evidence is not None:
        versions["corrected"] = _corrected(problem, kernel, simulated.evidence, num_sets)
    rows = []
    for version, (draws, facts) in versions.items():
        values = _quantities(problem, draws)
        row = scores(_quantile_ends(values), values.mean(axis=0), simulated.truth)
        relative = {
            "over_exact": row["std"] / exact,
            "over_optimum": row["std"] / best,
            "rmse_over_optimum": row["rmse"] / best,
        }
        seconds = {"simulation": simulation_time, "all": time.perf_counter() - start}
        rows.append(
            {**cell._asdict(), "version": version, "num_sets": num_sets}
            | {name: round(value, 4) for name, value in (row | relative | facts).items()}
            | {"seconds": {name: round(value, 1) for name, value in seconds.items()}}
        )
    return rows


def _quantile_ends(draws: NDArray[np.float64]) -> Ends:
    """The ends of equal-tailed intervals; the first axis is that of draws."""
    ends = {}
    for level in LEVELS:
        low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        ends[level] = (low, high)
    return ends


def _quantities(problem: Problem, draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the quantities of flat draws; the last axis is that of parameters."""
    flat, unflat = ravel_pytree(problem.truth(jax.random.key(0)))
    if not problem.is_function:
        return draws

    def one(vector: Array) -> Array:
        return problem.quantities(unflat(vector))

    mapped = jax.jit(lambda draws: jax.lax.map(jax.vmap(one), draws))
    return np.asarray(mapped(jnp.asarray(draws, flat.dtype)), np.float64)


def _corrected(
    problem: Problem, kernel: Kernel, noted: Tree, num_sets: int
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Returns draws, ``(num_draws, num_sets, num_parameters)``, and what is said about them."""
    assert kernel.engine is not None
    posterior_of, log_prior, template = _posteriors(problem, kernel)
    slices = _slices(log_prior, template)
    draws, cautions, doubts, shares = [], [], [], []
    for i in range(num_sets):
        one = jax.tree.map(lambda leaf, at=i: leaf[at : at + 1], noted)
        releases = releases_in(one, kernel.engine)
        found, seen = posterior_of(releases)
        draws.append(slices(found))
        cautions.append(bool(correction.caveats_of(seen)))
        doubts.append(float(np.max(seen.curvature_doubt)))
        shares.append(seen.share[0])
    facts = {
        "cautioned": float(np.mean(cautions)),
        "doubt": float(np.median(doubts)),
        "share": float(np.mean(shares)),
    }
    return np.stack(draws, axis=1), facts


def _posteriors(problem: Problem, kernel: Kernel) -> tuple[Callable[..., Any], Any, Params]:
    """Returns what makes the posterior of all parameters, and of those that records see."""
    split = getattr(kernel.sampler, "split", None)
    if split is not None:
        space = program_correction._Space.of(split.latents)

        def of_program(releases: Any) -> tuple[NoiseAware, NoiseAware]:
            prior = program_correction._MarginalPrior(space)
            seen = noise_aware(releases, prior)
            return prior.joint(seen), seen

        return of_program, space.prior, space.zeros
    template = jax.tree.map(jnp.zeros_like, problem.truth(jax.random.key(0)))
    site = correction.prior_site(problem.model.log_prior, template)

    def of_model(releases: Any) -> tuple[NoiseAware, NoiseAware]:
        found = noise_aware(releases, site)
        return found, found

    return of_model, problem.model.log_prior, template


def _slices(
    log_prior: Callable[[Params], Scalar], template: Params
) -> Callable[[NoiseAware], NDArray[np.float64]]:
    """Returns `flat_draws`, compiled once for all data sets."""
    is_gaussian = correction._is_gaussian(log_prior, template)
    _, unflat = ravel_pytree(template)

    @jax.jit
    def sliced(start: Any, precision: Array, linear: Array) -> Array:
        def log_ratio(w: Array) -> Scalar:
            return log_prior(unflat(w)) + 0.5 * w @ precision @ w - linear @ w

        return correction._sliced(log_ratio, start)

    def draws(found: NoiseAware) -> NDArray[np.float64]:
        generator = np.random.default_rng(1)
        roots = np.array([correction._root(c) for c in found.components.covariances])
        roots = np.repeat(roots, 10, axis=0)
        centres = np.repeat(found.components.means, 10, axis=0)
        first = centres + np.einsum("kij,kj->ki", roots, generator.normal(size=centres.shape))
        if is_gaussian:
            return first
        start = correction.FlatDraws(
            *(jnp.asarray(part, jnp.float32) for part in (first, centres, roots))
        )
        return np.asarray(
            sliced(
                start,
                jnp.asarray(found.prior_precision, jnp.float32),
                jnp.asarray(found.prior_linear, jnp.float32),
            ),
            np.float64,
        )

    return draws
