"""Candidates for six tables: the defaults, and a few others that differ in one or two settings.

Each cell fits one candidate to several random parts of a real table. With all cells of a table the
best one can be chosen, which is not private; `rehearsed_predictions` has what a rehearsal says of
the same candidates. Other scores are those of logistic or linear regression without privacy, and of
the majority or the mean.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge

import tacit
from experiments.cells import Experiment, Measured, Settings, main
from experiments.small_tables import TABLES, Parts, parts_of, schema_of
from tacit import metrics
from tacit.inference.fit import CompiledFit
from tacit.metrics.uncertainty import RegressionUncertainty
from tacit.studies import Prepared, Recipe, prepare

__all__ = [
    "DEFAULT",
    "DELTA",
    "EPSILONS",
    "EXPERIMENT",
    "LARGE",
    "NETWORK",
    "prepared_of",
]

EPSILONS = (0.5, 1.0, 3.0)
DELTA = 1e-5
LARGE = "Adult"
DEFAULT = "sgld"
NETWORK = "sgld, 32 hidden units"

# Steps; what the default clip norm and learning rate are multiplied with; and the share of the
# records in a batch, where it is not the default's.
_Candidate = tuple[str, int, float, float, float | None]
_SMALL_CANDIDATES: Mapping[str, _Candidate] = {
    "sgld": ("sgld", 100, 1, 1, None),
    "vi": ("vi", 100, 1, 1, None),
    "laplace": ("laplace", 100, 1, 1, None),
    "laplace, 10 steps, 2 x clip norm": ("laplace", 10, 2, 1, None),
    "sgld, 2 x clip norm": ("sgld", 100, 2, 1, None),
    "vi, 3 x rate": ("vi", 100, 1, 3, None),
}
_LARGE_CANDIDATES: Mapping[str, _Candidate] = {
    NETWORK: ("sgld", 400, 1, 1, None),
    "sgld": ("sgld", 400, 1, 1, None),
    "vi": ("vi", 400, 1, 1, None),
    "laplace, 10 steps, 2 x clip norm": ("laplace", 10, 2, 1, None),
}


def prepared_of(settings: Settings, num_records: int) -> Prepared:
    """Returns a candidate, from public facts alone."""
    schema, budget = schema_of(settings["table"]), tacit.Budget(settings["epsilon"], DELTA)
    share = settings["batch_share"]
    recipe = Recipe(
        method=settings["method"],
        hidden=tuple(settings["hidden"]),
        num_steps=settings["num_steps"],
        batch_size=None if share is None else round(share * num_records),
    )
    usual = prepare(schema, recipe, num_records=num_records, budget=budget).recipe
    times = {name: settings[f"times_{name}"] for name in ("clip_norm", "learning_rate")}
    if set(times.values()) != {1}:
        usual = Recipe(
            **vars(usual) | {name: getattr(usual, name) * by for name, by in times.items()}
        )
    return prepare(schema, usual, num_records=num_records, budget=budget)


def measure(settings: Settings, seed: int) -> Measured:
    """Fits a candidate to parts of the table."""
    del seed  # one cell has all parts, so that it is compiled once
    parts = parts_of(settings["table"], 0)
    prepared = prepared_of(settings, len(parts.train.y))
    plan, model, budget = prepared.plan, prepared.model, prepared.budget
    scores: dict[str, float] = {}
    compiled = CompiledFit(plan.method, model)
    realised = []
    for number in range(settings["num_parts"]):
        parts = parts_of(settings["table"], number)
        fit = tacit.fit(plan, model, parts.train, budget=budget, seed=number, compiled=compiled)
        found = tacit.predict(fit.posterior, parts.test.x, batch_size=4096)
        realised.append(_scores(found, parts) | _anchors(parts))
    for name in realised[0]:
        scores[name] = float(np.mean([row[name] for row in realised]))
    series = {name: [round(row[name], 4) for row in realised] for name in realised[0]}
    return Measured(scores, fit.statement, series)


def _scores(found: Any, parts: Parts) -> dict[str, float]:
    y = np.asarray(parts.test.y)
    if isinstance(found, RegressionUncertainty):
        return {
            "rmse": metrics.rmse(found.mean, y),
            "R2": _r2(np.asarray(found.mean), y),
            "nll": metrics.gaussian_nll(found.mean, found.total_variance, y),
        }
    return {
        "accuracy": metrics.accuracy(found.probabilities, y),
        "nll": metrics.nll(found.probabilities, y),
        "ece": metrics.ece(found.probabilities, y),
    }


def _r2(mean: np.ndarray, y: np.ndarray) -> float:
    return float(1 - np.mean((y - mean) ** 2) / np.var(y))


def _anchors(parts: Parts) -> dict[str, float]:
    """Returns scores of a regression without privacy, and of knowing the frequencies only."""
    (x, y), (test_x, test_y) = (
        (np.asarray(part.x), np.asarray(part.y)) for part in (parts.train, parts.test)
    )
    if y.dtype.kind == "f":
        line = Ridge(alpha=0.1).fit(x, y)
        std = float(np.std(y - line.predict(x)))
        mean = line.predict(test_x)
        return {
            "not private: R2": _r2(mean, test_y),
            "not private: nll": metrics.gaussian_nll(mean, np.full(len(mean), std**2), test_y),
            "mean: R2": _r2(np.full(len(test_y), y.mean()), test_y),
        }
    line = LogisticRegression(C=10, max_iter=2000).fit(x, y)
    probabilities = line.predict_proba(test_x)
    return {
        "not private: accuracy": metrics.accuracy(probabilities, test_y),
        "not private: nll": metrics.nll(probabilities, test_y),
        "not private: ece": metrics.ece(probabilities, test_y),
        "majority: accuracy": float(np.mean(test_y == np.argmax(np.bincount(y)))),
    }


def _cell(table: str, epsilon: float, name: str) -> Settings:
    is_large = table == LARGE
    method, num_steps, clip, rate, share = (_LARGE_CANDIDATES if is_large else _SMALL_CANDIDATES)[
        name
    ]
    return {
        "table": table,
        "epsilon": epsilon,
        "candidate": name,
        "method": method,
        "hidden": [32] if name == NETWORK else [],
        "num_steps": num_steps,
        "times_clip_norm": clip,
        "times_learning_rate": rate,
        "batch_share": share,
        "num_parts": 3 if is_large else 5,
    }


EXPERIMENT = Experiment(
    name="rehearsed_tables",
    cells=tuple(
        _cell(table, epsilon, name)
        for table in TABLES
        for epsilon in EPSILONS
        for name in (_LARGE_CANDIDATES if table == LARGE else _SMALL_CANDIDATES)
    ),
    num_seeds=1,
    measure=measure,
    quick={"table": "diabetes", "num_steps": 4, "num_parts": 1},
)

if __name__ == "__main__":
    main(EXPERIMENT)
