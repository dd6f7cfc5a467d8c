"""Default fits of scikit-learn's estimators, beside the same fits without privacy.

Defaults were chosen on other tables (Pima, heart, wine, shrunken MNIST and Fashion-MNIST, synthetic
ones) and, for large tables, on a held-out part of Adult's training records; never on what is
measured here, except that neighbours of Adult's settings had been seen on its test part before.
"""

import argparse
import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tacit
from tacit import metrics
from tacit.data import ADULT_SCHEMA, load_adult
from tacit.estimators import PrivateBayesClassifier

__all__ = ["TABLES", "Part", "measure", "table"]

NUM_SEEDS = 5
RESULTS = Path(__file__).parents[1] / "docs/pictures/estimators.json"

# Ranges of a nucleus in a digitised image, rounded from the description of the data set, for mean,
# standard error and worst: radius, texture, perimeter, area, smoothness, compactness, concavity,
# concave points, symmetry, fractal dimension.
_BREAST_HIGH = (
    *(30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1),
    *(3, 5, 25, 600, 0.05, 0.2, 0.4, 0.06, 0.1, 0.03),
    *(40, 50, 270, 4500, 0.25, 1.1, 1.3, 0.3, 0.7, 0.25),
)


class Part(NamedTuple):
    """Records to fit and records to test."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]


def _adult(seed: int) -> Part:
    del seed  # the official parts
    train, test = load_adult()
    return Part((train, train.income), (test, test.income))


def _split(data: Any, seed: int) -> Part:
    x, other, y, other_y = train_test_split(
        data.data, data.target, test_size=0.25, random_state=seed, stratify=data.target
    )
    return Part((x, y), (other, other_y))


TABLES: dict[str, tuple[float, dict[str, Any], Callable[[int], Part]]] = {
    "Adult, public schema": (1.0, {"schema": ADULT_SCHEMA}, _adult),
    "breast cancer, public bounds": (
        3.0,
        {"bounds": (0, _BREAST_HIGH), "classes": (0, 1)},
        lambda seed: _split(load_breast_cancer(), seed),
    ),
    "breast cancer, private bounds": (
        3.0,
        {"classes": (0, 1)},
        lambda seed: _split(load_breast_cancer(), seed),
    ),
    "digits, public bounds": (
        3.0,
        {"bounds": (0, 16), "classes": range(10)},
        lambda seed: _split(load_digits(), seed),
    ),
}
"""Epsilon, public knowledge and parts of each table."""


def measure(
    name: str, *, num_seeds: int = NUM_SEEDS, num_steps: int | None = None
) -> dict[str, Any]:
    """Returns mean scores over seeds: private, without privacy, and scikit-learn's own."""
    epsilon, public, part_of = TABLES[name]
    rows = []
    for seed in range(num_seeds):
        part = part_of(seed)
        private = PrivateBayesClassifier(
            epsilon=epsilon, num_steps=num_steps, random_state=seed, **public
        )
        plain = PrivateBayesClassifier(
            epsilon=math.inf, num_steps=num_steps, random_state=seed, **public
        )
        rows.append([*_scores(private, part), *_scores(plain, part), _logistic(part, public)])
    mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=min(1, num_seeds - 1))
    return {
        "table": name,
        "epsilon": epsilon,
        "num_seeds": num_seeds,
        "accuracy": mean[0],
        "accuracy_std": spread[0],
        "ece": mean[1],
        "accuracy_without_privacy": mean[2],
        "accuracy_of_logistic_regression": mean[4],
    }


def _scores(model: PrivateBayesClassifier, part: Part) -> Iterator[float]:
    model.fit(*part.train)
    probabilities = model.predict_proba(part.test[0])
    labels = np.searchsorted(model.classes_, np.asarray(part.test[1]))
    yield metrics.accuracy(probabilities, labels)
    yield metrics.ece(probabilities, labels)


def _logistic(part: Part, public: dict[str, Any]) -> float:
    schema = public.get("schema")
    (x, y), (other, other_y) = part
    if schema is not None:
        x, other = schema.encode(x), schema.encode(other)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return float(model.fit(x, y).score(other, other_y))


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the results as the table of docs/scikit-learn.md."""
    lines = [
        "| table | ε | accuracy | ECE | same fit without privacy | logistic regression |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row['table']} | {row['epsilon']:g} |"
            f" {row['accuracy']:.3f} ± {row['accuracy_std']:.3f} | {row['ece']:.3f} |"
            f" {row['accuracy_without_privacy']:.3f} |"
            f" {row['accuracy_of_logistic_regression']:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures and writes docs/pictures/estimators.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    parser.add_argument("--only", help="a part of a table's name; writes nothing")
    arguments = parser.parse_args()
    # Seeds, several fits of one table and a public test part are what a measurement is.
    warnings.simplefilter("ignore", tacit.PrivacyWarning)
    names = [name for name in TABLES if arguments.only is None or arguments.only in name]
    rows = []
    for name in names:
        rows.append(measure(name, num_seeds=arguments.seeds))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    if arguments.only is None:
        RESULTS.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
