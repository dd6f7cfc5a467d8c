"""How often private credible intervals hold the truth, where the truth is drawn from the prior."""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.special import ndtri

import tacit
from tacit.metrics import interval_coverage, quantile_interval
from tacit.metrics.calibration import gaussian_interval
from tacit.metrics.confidence import wilson_interval
from tacit.typing import Array, Key, Params

__all__ = [
    "CLIPS",
    "METHODS",
    "Problem",
    "Simulated",
    "exponential_rates",
    "figure",
    "normal_mean",
    "run",
    "simulate",
    "tables",
]

NUM_RECORDS, DIM, SIGMA = 1000, 2, 10.0
DELTA = 1e-5
EPSILONS = (math.inf, 8.0, 2.0, 0.5)
NUM_DRAWS = 400
PICTURES = Path(__file__).parents[1] / "docs/pictures"


class Problem(NamedTuple):
    """A model, and how nature draws its records.

    Attributes:
      model: four functions; its prior is the one that truths are drawn from.
      num_records: of one data set.
      truth: draws parameters from the prior.
      observe: draws the targets of one data set, ``(num_records, DIM)``.
      precision: of the posterior in each coordinate, exact or for many records.
    """

    model: tacit.Model
    num_records: int
    truth: Callable[[Key], Array]
    observe: Callable[[Key, Array], Array]
    precision: float


def normal_mean(num_records: int = NUM_RECORDS, sigma: float = SIGMA) -> Problem:
    """Returns ``x_i ~ N(theta, sigma^2 I)`` under ``theta ~ N(0, I)``: the posterior is normal."""
    model = tacit.Model(
        init=lambda key: jnp.zeros(DIM),
        log_prior=lambda theta: -0.5 * jnp.sum(theta**2),
        log_likelihood=lambda theta, record, key: -0.5 * jnp.sum(((record.y - theta) / sigma) ** 2),
        predict=lambda theta, x, key: theta,
    )
    return Problem(
        model,
        num_records,
        lambda key: jax.random.normal(key, (DIM,)),
        lambda key, theta: theta + sigma * jax.random.normal(key, (num_records, DIM)),
        precision=1 + num_records / sigma**2,
    )


def exponential_rates(num_records: int = NUM_RECORDS, prior_std: float = 0.1) -> Problem:
    """Returns exponential waiting times with log rates theta: scores have one long tail."""
    model = tacit.Model(
        init=lambda key: jnp.zeros(DIM),
        log_prior=lambda theta: -0.5 * jnp.sum((theta / prior_std) ** 2),
        log_likelihood=lambda theta, record, key: jnp.sum(theta - record.y * jnp.exp(theta)),
        predict=lambda theta, x, key: theta,
    )
    return Problem(
        model,
        num_records,
        lambda key: prior_std * jax.random.normal(key, (DIM,)),
        lambda key, theta: jnp.exp(-theta) * jax.random.exponential(key, (num_records, DIM)),
        precision=num_records + 1 / prior_std**2,
    )


class Simulated(NamedTuple):
    """Independent data sets, each with a truth, records and a run of its own.

    Attributes:
      truth: ``(num_sets, DIM)``.
      draws: of each set's posterior, ``(num_draws, num_sets, DIM)``.
      averages: of each set's targets, ``(num_sets, DIM)``.
    """

    truth: Any
    draws: Any
    averages: Any


def simulate(plan: tacit.Plan, problem: Problem, *, num_sets: int, seed: int = 0) -> Simulated:
    """Runs a plan on data sets side by side; one seed means the same data sets for every plan.

    JAX's own generator is faster than the secure one, and no secret is kept here.
    """
    kernel = plan.method.build(problem.model)
    kept_steps = np.asarray(plan.kept_steps)

    def one_set(data_key: Key, run_key: Key) -> tuple[Array, Params, Array]:
        truth_key, records_key = jax.random.split(data_key)
        init_key, step_key, draw_key = jax.random.split(run_key, 3)
        theta = problem.truth(truth_key)
        y = problem.observe(records_key, theta)
        records = tacit.Record(jnp.zeros((len(y), 1)), y, jnp.ones(len(y)))

        def step(state: Any, key: Key) -> tuple[Any, Any]:
            state, _ = kernel.step(key, state, records)
            return state, kernel.retain(state)

        keys = jax.random.split(step_key, plan.kept_steps[-1])
        _, retained = jax.lax.scan(step, kernel.init(init_key), keys)
        if len(kept_steps) > 1:
            return theta, retained[kept_steps - 1], y.mean(axis=0)
        last = jax.tree.map(lambda leaf: leaf[-1], retained)
        draw = jax.vmap(kernel.sampler.draw, in_axes=(0, None))
        return theta, draw(jax.random.split(draw_key, NUM_DRAWS), last), y.mean(axis=0)

    data_key, run_key = jax.random.split(jax.random.key(seed))
    found = jax.jit(jax.vmap(one_set, out_axes=(0, 1, 0)))(
        jax.random.split(data_key, num_sets), jax.random.split(run_key, num_sets)
    )
    return Simulated(*(np.asarray(values, np.float64) for values in found))


def _budget(epsilon: float) -> tacit.Budget:
    return tacit.Budget(epsilon=epsilon, delta=DELTA)


NORMAL, EXPONENTIAL = normal_mean(), exponential_rates()
FULL = tacit.FullBatch(num_records=NUM_RECORDS)
# A record's score is its residual over sigma^2, so that norms are in units of 1 / sigma.
MILD = 4 / SIGMA


def _engine(clip_norm: float = MILD, noise_multiplier: float = 1.0) -> tacit.GaussianSum:
    return tacit.GaussianSum(sampling=FULL, clip_norm=clip_norm, noise_multiplier=noise_multiplier)


def _step_size(contraction: float, problem: Problem = NORMAL) -> float:
    """The Langevin step that brings a chain nearer to its mean by this share of the distance."""
    return 2 * contraction / problem.precision


def _learning_rate(contraction: float) -> float:
    """The same step for optimisers, which see the mean over records."""
    return contraction * NUM_RECORDS / NORMAL.precision


def _chain(method: tacit.SGLD | tacit.SGHMC, epsilon: float) -> tacit.Plan:
    """At fixed temperature and step size the budget buys steps; the last 80 % are kept."""
    plan = tacit.Plan(method=method, num_steps=1000)
    if math.isfinite(epsilon):
        plan = tacit.calibrate_steps(plan, _budget(epsilon))
    last = plan.kept_steps[-1]
    return replace(plan, burn_in=last // 5, thinning=max(1, last // NUM_DRAWS))


def _sgld(epsilon: float) -> tacit.Plan:
    step_size = _step_size(0.1)
    if math.isinf(epsilon):
        return _chain(tacit.SGLD.non_private(sampling=FULL, step_size=step_size), epsilon)
    method = tacit.SGLD.fixed_temperature(sampling=FULL, clip_norm=MILD, step_size=step_size)
    return _chain(method, epsilon)


def _sghmc(epsilon: float) -> tacit.Plan:
    step_size, friction = 0.05 / NORMAL.precision, 0.3
    if math.isinf(epsilon):
        method = tacit.SGHMC.non_private(sampling=FULL, step_size=step_size, friction=friction)
    else:
        method = tacit.SGHMC.fixed_temperature(
            sampling=FULL, clip_norm=MILD, step_size=step_size, friction=friction
        )
    return _chain(method, epsilon)


def _fixed_noise(epsilon: float) -> tacit.Plan | None:
    if math.isinf(epsilon):
        return None  # without noise there is no temperature
    method = tacit.SGLD.fixed_noise(release=_engine(), step_size=_step_size(0.1))
    plan = tacit.Plan(method=method, num_steps=1000, burn_in=200, thinning=2)
    return tacit.calibrate(plan, _budget(epsilon))


def _swag(epsilon: float) -> tacit.Plan:
    base = tacit.SGD(release=_engine(), optimizer=optax.sgd(_learning_rate(0.1)))
    method = tacit.SWAG(base=base, start=200, every=20, rank=20)
    return tacit.calibrate(tacit.Plan(method=method, num_steps=1000), _budget(epsilon))


def _vi(optimizer: optax.GradientTransformation) -> Callable[[float], tacit.Plan]:
    # The guide starts as wide as it should end, so that only the noise can make it wrong.
    guide = tacit.MeanField(init_std=NORMAL.precision**-0.5)
    method = tacit.VI(release=_engine(), optimizer=optimizer, guide=guide)
    return lambda epsilon: tacit.calibrate(
        tacit.Plan(method=method, num_steps=400), _budget(epsilon)
    )


def _ivon(epsilon: float) -> tacit.Plan:
    method = tacit.IVON(
        release=_engine(),
        learning_rate=0.05,
        curvature_rate=0.02,
        init_std=NORMAL.precision**-0.5,
    )
    return tacit.calibrate(tacit.Plan(method=method, num_steps=400), _budget(epsilon))


def _hmc(epsilon: float) -> tacit.Plan:
    method = tacit.HMC(
        gradient=_engine(noise_multiplier=2.0),
        ratio=_engine(noise_multiplier=1.0),
        step_size=0.5 * NORMAL.precision**-0.5,
        num_leapfrog=3,
        jitter=0.1,
        reuse_gradient=True,
    )
    num_steps = 40 if math.isfinite(epsilon) else 200
    plan = tacit.Plan(method=method, num_steps=num_steps, burn_in=10, thinning=1)
    return tacit.calibrate(plan, _budget(epsilon))


METHODS: Mapping[str, Callable[[float], tacit.Plan | None]] = {
    "SGLD, fixed temperature": _sgld,
    "SGHMC, fixed temperature": _sghmc,
    "HMC": _hmc,
    "SGLD, fixed noise": _fixed_noise,
    "SGD + SWAG": _swag,
    "VI": _vi(optax.sgd(_learning_rate(0.05))),
    "VI, decaying rate": _vi(optax.sgd(optax.cosine_decay_schedule(_learning_rate(0.1), 400))),
    "IVON": _ivon,
}


def _clipped_sgld(problem: Problem, clip_norm: float) -> tuple[tacit.Plan, Problem]:
    method = tacit.SGLD(
        release=_engine(clip_norm, noise_multiplier=0.0),
        step_size=_step_size(0.1, problem),
        langevin_temperature=1.0,
    )
    return tacit.Plan(method=method, num_steps=1000, burn_in=200, thinning=2), problem


def _clipped_hmc(clip_norm: float) -> tuple[tacit.Plan, Problem]:
    method = tacit.HMC(
        gradient=_engine(noise_multiplier=0.0),
        ratio=_engine(clip_norm, noise_multiplier=0.0),
        step_size=0.5 * NORMAL.precision**-0.5,
        num_leapfrog=3,
        jitter=0.1,
        reuse_gradient=True,
    )
    return tacit.Plan(method=method, num_steps=200, burn_in=10, thinning=1), NORMAL


CLIPS: Mapping[tuple[str, str], tuple[tacit.Plan, Problem]] = {
    ("SGLD, normal mean", "hardly ever"): _clipped_sgld(NORMAL, 4 / SIGMA),
    ("SGLD, normal mean", "three records in five"): _clipped_sgld(NORMAL, 1 / SIGMA),
    ("SGLD, exponential rates", "hardly ever"): _clipped_sgld(EXPONENTIAL, 20.0),
    ("SGLD, exponential rates", "one record in nine"): _clipped_sgld(EXPONENTIAL, 2.0),
    ("SGLD, exponential rates", "nearly half of the records"): _clipped_sgld(EXPONENTIAL, 1.0),
    ("ratio of HMC, normal mean", "one record in three"): _clipped_hmc(1 / SIGMA),
    ("ratio of HMC, normal mean", "three records in five"): _clipped_hmc(0.5 / SIGMA),
}


def _row(simulated: Simulated, problem: Problem) -> dict[str, float]:
    """Coverage of the 90 and the 50 % interval, and width over that of the exact posterior."""
    row = {}
    for level in (0.9, 0.5):
        low, high = quantile_interval(simulated.draws, level=level)
        row[f"coverage_{level:.0%}"[:-1]] = interval_coverage(low, high, simulated.truth)
        if level == 0.9:
            exact = 2 * ndtri(0.95) / math.sqrt(problem.precision)
            row["width"] = float(np.mean(high - low) / exact)
    return {name: round(value, 4) for name, value in row.items()}


def _exact(simulated: Simulated) -> dict[str, float]:
    """The same for the posterior in closed form, on the same data sets."""
    mean = simulated.averages * (1 - 1 / NORMAL.precision)
    row = {"width": 1.0}
    for level in (0.9, 0.5):
        low, high = gaussian_interval(mean, np.full_like(mean, 1 / NORMAL.precision), level=level)
        row[f"coverage_{level:.0%}"[:-1]] = interval_coverage(low, high, simulated.truth)
    return {name: round(value, 4) for name, value in row.items()}


def run(num_sets: int = 400, seed: int = 0) -> dict[str, Any]:
    """Returns the coverage of every method at every epsilon, and of clips that bite."""
    rows: list[dict[str, Any]] = []
    for method, plan_of in METHODS.items():
        for epsilon in EPSILONS:
            plan = plan_of(epsilon)
            if plan is None:
                continue
            simulated = simulate(plan, NORMAL, num_sets=num_sets, seed=seed)
            if not rows:
                rows.append({"method": "exact posterior", "epsilon": "∞", **_exact(simulated)})
            spent = tacit.epsilon(plan.cost, delta=DELTA)
            row = {
                "method": method,
                "epsilon": _name(epsilon),
                "spent": None if math.isinf(spent) else round(spent, 3),
                "num_steps": plan.num_steps,
            }
            rows.append(row | _row(simulated, NORMAL))
    clips = [
        {"method": method, "clipped": clipped}
        | _row(simulate(plan, problem, num_sets=num_sets, seed=seed), problem)
        for (method, clipped), (plan, problem) in CLIPS.items()
    ]
    settings = {"num_sets": num_sets, "seed": seed, "num_records": NUM_RECORDS, "delta": DELTA}
    return {**settings, "rows": rows, "clips": clips}


def _name(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:g}"


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{row['coverage_90']:.0%} · {row['coverage_50']:.0%} · {row['width']:.2f}×"


def tables(results: Mapping[str, Any]) -> str:
    """Returns both tables in Markdown; a cell is coverage at 90 %, at 50 %, and relative width."""
    found = {(row["method"], row["epsilon"]): row for row in results["rows"]}
    names = [_name(epsilon) for epsilon in EPSILONS]
    lines = [f"| | {' | '.join(f'ε = {name}' for name in names)} |", f"|---|{'---|' * len(names)}"]
    for method in dict.fromkeys(row["method"] for row in results["rows"]):
        cells = [_cell(found.get((method, name))) for name in names]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    lines += ["", "| | clipped | 90 % · 50 % · width |", "|---|---|---|"]
    lines += [f"| {r['method']} | {r['clipped']} | {_cell(r)} |" for r in results["clips"]]
    return "\n".join(lines)


# The palette of the reliability diagrams: orange for too sure, blue for not sure enough.
_OVER, _UNDER = "#D55E00", "#0072B2"
_INK, _GREY = "#222222", "#767676"


def figure(results: Mapping[str, Any]) -> Figure:
    """Returns a panel for each epsilon: the coverage of every method's intervals."""
    methods = list(dict.fromkeys(row["method"] for row in results["rows"]))
    picture = Figure(figsize=(8.0, 3.9), dpi=100, facecolor="white", layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(1, len(EPSILONS), sharex=True, sharey=True)
    trials = results["num_sets"] * DIM
    for axes, epsilon in zip(panels, EPSILONS, strict=True):
        axes.set_title(f"ε = {_name(epsilon)}", fontsize=10.5, fontweight="bold", color=_INK)
        axes.axvline(0.9, color=_GREY, linewidth=1, linestyle=(0, (4, 3)))
        axes.axvline(0.5, color=_GREY, linewidth=1, linestyle=(0, (1, 2)))
        for row in results["rows"]:
            if row["epsilon"] == _name(epsilon):
                y = methods.index(row["method"])
                _dot(axes, row["coverage_90"], y - 0.14, nominal=0.9, trials=trials, marker="o")
                _dot(axes, row["coverage_50"], y + 0.14, nominal=0.5, trials=trials, marker="D")
        axes.set_xlim(-0.04, 1.04)
        axes.set_xticks([0, 0.5, 0.9], ["0", ".5", ".9"])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(_GREY)
        axes.tick_params(labelsize=9, color=_GREY)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(methods)), methods)
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    picture.supxlabel("share of intervals that hold the truth", fontsize=9.5)
    entries = {
        "90 % interval": Line2D([], [], color=_INK, marker="o", markersize=5, linewidth=1),
        "50 % interval": Line2D([], [], color=_INK, marker="D", markersize=4, linewidth=1),
        "holds it too seldom": Line2D([], [], color=_OVER, marker="o", markersize=5, linewidth=0),
        "too often": Line2D([], [], color=_UNDER, marker="o", markersize=5, linewidth=0),
    }
    picture.legend(
        handles=list(entries.values()),
        labels=list(entries),
        loc="outside upper center",
        ncols=len(entries),
        fontsize=9,
        frameon=False,
    )
    return picture


def _dot(
    axes: Axes, coverage: float, y: float, *, nominal: float, trials: int, marker: str
) -> None:
    low, high = wilson_interval(round(coverage * trials), trials)
    colour = _OVER if high < nominal else _UNDER if low > nominal else _INK
    axes.hlines(y, low, high, color=colour, linewidth=1)
    axes.plot(coverage, y, color=colour, marker=marker, markersize=5 if marker == "o" else 4)


def main() -> None:
    """Prints the tables and writes them, and the figure, below ``docs/pictures``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=400, help="simulated data sets; 400")
    arguments = parser.parse_args()
    results = run(arguments.sets)
    print(tables(results))
    text = json.dumps(results, indent=1, ensure_ascii=False)
    (PICTURES / "coverage.json").write_text(text + "\n", encoding="utf-8")
    figure(results).savefig(PICTURES / "coverage.png", dpi=200)


if __name__ == "__main__":
    main()
