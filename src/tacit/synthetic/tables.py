"""Synthetic tables from a posterior, how useful they are, and one answer from several."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from numpyro import handlers
from numpyro.infer import Predictive
from scipy import stats
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from tacit import _check
from tacit.data import CategoricalColumn, NumericColumn, Schema, Target
from tacit.data.columns import Column
from tacit.data.schema import require_columns
from tacit.errors import InvalidArgumentError
from tacit.synthetic.rows import RowCode, typed_table
from tacit.typing import Array, Key

__all__ = [
    "Classifier",
    "Combined",
    "Scores",
    "Utility",
    "combined",
    "marginal_distances",
    "synthetic_tables",
    "table_utility",
]


def synthetic_tables(
    key: Key,
    program: Callable[..., None],
    draws: Mapping[str, ArrayLike],
    *,
    code: RowCode | Schema,
    num_rows: int,
    num_tables: int = 1,
) -> list[pd.DataFrame]:
    """Returns synthetic tables, each drawn at one posterior draw of its own.

    One draw serves a whole table and not a row: rows of one table must agree on the parameters, as
    the records did, and tables then differ as much as the posterior leaves open. That is what
    ``combined`` needs to turn an analysis of several tables into an honest interval. With a draw
    per row all tables would look alike, whatever the noise was.

    Guarantee:
      The tables are made of ``draws`` and the public arguments alone: if the draws were released,
      as many tables as you like cost nothing more. They are as private as the draws, no more.

    Args:
      key: says which rows are drawn; it adds no privacy and may be public.
      program: a NumPyro program that draws every column when called with ``num_records`` only.
      draws: the latents of the program, with a leading axis of posterior draws.
      code: the code of the program's site ``rows`` (``twin_program``), or the schema, for programs
        with a site for each column: numbers for numeric columns, level numbers for all others.
      num_rows: how many rows a table has.
      num_tables: how many tables; at most as many as there are draws.

    Example:
      >>> import numpyro, numpyro.distributions as dist
      >>> from tacit.data import NumericColumn, Target
      >>> schema = Schema(
      ...     columns=(NumericColumn(name="age", low=17, high=90),),
      ...     target=Target(name="ill", classes=("no", "yes")),
      ... )
      >>> def program(age=None, ill=None, num_records=None):
      ...     mean = numpyro.sample("mean", dist.Normal(50.0, 20.0))
      ...     with numpyro.plate("records", num_records):
      ...         age = numpyro.sample("age", dist.Normal(mean, 10.0), obs=age)
      ...         numpyro.sample("ill", dist.Bernoulli(logits=(age - 50.0) / 10.0), obs=ill)
      >>> draws = {"mean": np.array([40.0, 45.0])}
      >>> tables = synthetic_tables(
      ...     jax.random.key(0), program, draws, code=schema, num_rows=1000, num_tables=2
      ... )
      >>> [round(float(table["age"].mean())) for table in tables]
      [40, 45]

    Reference:
      T. Raghunathan, J. Reiter and D. Rubin, Multiple imputation for statistical disclosure
      limitation, Journal of Official Statistics 19, 2003; O. Räisä, J. Jälkö, S. Kaski and
      A. Honkela, Noise-aware statistical inference with differentially private synthetic data,
      AISTATS 2023.
    """
    _check.positive_integer(num_rows=num_rows, num_tables=num_tables)
    chosen = _chosen(draws, num_tables)
    columns = ["rows"] if isinstance(code, RowCode) else _names(code)
    _require_latents(program, chosen, columns, num_rows)
    predictive = Predictive(program, posterior_samples=chosen, return_sites=columns)
    drawn = {
        site: np.asarray(values) for site, values in predictive(key, num_records=num_rows).items()
    }
    return [
        _table(code, {site: values[number] for site, values in drawn.items()})
        for number in range(num_tables)
    ]


def _names(schema: Schema) -> list[str]:
    return [part.name for part in (*schema.columns, schema.target)]


def _chosen(draws: Mapping[str, ArrayLike], num_tables: int) -> dict[str, Array]:
    """Returns as many draws as tables, spread evenly over all of them."""
    arrays = {name: jnp.asarray(values) for name, values in draws.items()}
    sizes = {name: values.shape[0] if values.ndim else 0 for name, values in arrays.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise InvalidArgumentError(
            "draws must be arrays with one leading axis of posterior draws; got the lengths "
            f"{sizes}."
        )
    (num_draws,) = set(sizes.values())
    if num_tables > num_draws:
        raise InvalidArgumentError(
            f"num_tables must be at most the number of draws; got {num_tables} for {num_draws}. "
            "Tables that share a draw would hide how uncertain it is: take more draws."
        )
    numbers = np.linspace(0, num_draws - 1, num_tables).round().astype(int)
    return {name: values[numbers] for name, values in arrays.items()}


def _require_latents(
    program: Callable[..., None], draws: Mapping[str, Array], columns: list[str], num_rows: int
) -> None:
    """Raises unless the draws are the program's latents: others would come from the prior."""
    # What belongs to a row is in a plate that grows with the table; groups may be as many as rows.
    plates, plates_of_more = (_plates(program, size) for size in (num_rows, num_rows + 1))
    found = {
        name: sizes != plates_of_more[name] for name, sizes in plates.items() if name not in columns
    }
    missing = sorted(name for name, per_row in found.items() if not per_row and name not in draws)
    unknown = sorted(name for name in draws if found.get(name, True))
    if missing:
        raise InvalidArgumentError(
            f"draws must have every latent of the program; missing: {', '.join(missing)}. Drawn "
            "from the prior they would make a table that knows nothing of the records. If the "
            "guide leaves them out, numpyro.infer.Predictive gives draws of them."
        )
    if unknown:
        raise InvalidArgumentError(
            f"draws must be of latents that all rows share; not such a latent: "
            f"{', '.join(unknown)}. Leave it out: each row of a synthetic table gets its own."
        )


def _plates(program: Callable[..., None], num_rows: int) -> dict[str, list[int]]:
    """Returns the sizes of the plates around each drawn site; nothing is computed."""
    found: dict[str, list[int]] = {}

    def trace(key: Key) -> None:
        sites = handlers.trace(handlers.seed(program, key)).get_trace(num_records=num_rows)
        for name, site in sites.items():
            if site["type"] == "sample":
                found[name] = [plate.size for plate in site["cond_indep_stack"]]

    jax.eval_shape(trace, jax.random.key(0))
    return found


def _table(code: RowCode | Schema, sites: Mapping[str, NDArray[Any]]) -> pd.DataFrame:
    return code.decode(sites["rows"]) if isinstance(code, RowCode) else typed_table(code, sites)


class Combined(NamedTuple):
    """An estimate from several synthetic tables.

    Attributes:
      estimate: the mean over tables.
      variance: of the estimate, with what privacy noise, sampling and few tables add to it.
      degrees_of_freedom: of the t distribution to use with it.
    """

    estimate: float
    variance: float
    degrees_of_freedom: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Returns the interval that holds the truth with probability ``level``."""
        _check.fraction(level=level, one=False)
        reach = float(stats.t.ppf((1 + level) / 2, self.degrees_of_freedom))
        reach *= math.sqrt(self.variance)
        return self.estimate - reach, self.estimate + reach


def combined(estimates: ArrayLike, variances: ArrayLike) -> Combined:
    """Returns the combination of the same analysis of several synthetic tables.

    With between-table variance b, mean variance v and m tables, the variance is
    ``(1 + 1/m) b - v``: tables drawn from m draws of the posterior vary by its variance and by
    their own sampling, which v estimates. Where few tables make that difference smaller than the
    posterior's share could be, it falls back on ``(1 + 1/m) b``, which is too wide rather than too
    narrow. Larger tables make v small and the rule steady.

    Args:
      estimates: one estimate per table, at least two; the tables must come from different
        posterior draws, as those of ``synthetic_tables`` do.
      variances: the squared standard error of each, as for a real table.

    Example:
      >>> answer = combined([0.9, 1.0, 1.1], [0.001, 0.001, 0.001])
      >>> round(answer.estimate, 3), round(answer.variance, 4)
      (1.0, 0.0123)

    Reference:
      Raghunathan, Reiter and Rubin 2003, sections 2 and 3; for private draws Räisä et al. 2023.
    """
    estimate, variance = np.asarray(estimates, np.float64), np.asarray(variances, np.float64)
    if estimate.ndim != 1 or estimate.shape != variance.shape or len(estimate) < 2:
        raise InvalidArgumentError(
            "estimates and variances must hold one number per table, for at least two tables; got "
            f"the shapes {estimate.shape} and {variance.shape}."
        )
    num_tables = len(estimate)
    between = (1 + 1 / num_tables) * float(np.var(estimate, ddof=1))
    within = float(np.mean(variance))
    if between <= within:
        return Combined(float(np.mean(estimate)), between, num_tables - 1.0)
    degrees = (num_tables - 1) * (1 - within / between) ** 2
    return Combined(float(np.mean(estimate)), between - within, degrees)


class Classifier(Protocol):
    """A scikit-learn classifier with probabilities."""

    def fit(self, x: NDArray[Any], y: NDArray[Any]) -> Any:
        """Learns from features and class numbers."""

    def predict_proba(self, x: NDArray[Any]) -> NDArray[Any]:
        """Returns probabilities of the classes that were seen in ``fit``."""


class Scores(NamedTuple):
    """Of a classifier on the real test rows: the area under the ROC curve, and accuracy."""

    auc: float
    accuracy: float


class Utility(NamedTuple):
    """What a synthetic table is good for.

    Attributes:
      synthetic: of the classifier trained on the synthetic table.
      real: of the same classifier trained on real rows.
      marginals: the distance of each column to the real test rows, from 0 to 1.
    """

    synthetic: Scores
    real: Scores
    marginals: dict[str, float]


def table_utility(
    synthetic: pd.DataFrame,
    *,
    real: pd.DataFrame,
    test: pd.DataFrame,
    schema: Schema,
    classifier: Classifier | None = None,
) -> Utility:
    """Trains a classifier on synthetic and on real rows and tests both on real test rows.

    Guarantee:
      None. It reads ``real`` and ``test`` as they are, so both must be public or consented for
      this use; on private rows its results are releases that nobody has paid for.

    Args:
      synthetic: a table from ``synthetic_tables``.
      real: rows to train the competitor on.
      test: rows that neither has seen.
      schema: says what is a feature and what the target.
      classifier: any of scikit-learn with probabilities; by default logistic regression.

    Example:
      >>> from tacit.data import NumericColumn, Target
      >>> schema = Schema(
      ...     columns=(NumericColumn(name="dose", low=0, high=10),),
      ...     target=Target(name="ill", classes=("no", "yes")),
      ... )
      >>> table = pd.DataFrame({"dose": [1, 2, 8, 9], "ill": ["no", "no", "yes", "yes"]})
      >>> table_utility(table, real=table, test=table, schema=schema).synthetic
      Scores(auc=1.0, accuracy=1.0)
    """
    model = LogisticRegression(max_iter=1000) if classifier is None else classifier
    return Utility(
        synthetic=_scores(clone(model), synthetic, test, schema),
        real=_scores(clone(model), real, test, schema),
        marginals=marginal_distances(synthetic, test, schema),
    )


def marginal_distances(
    synthetic: pd.DataFrame, real: pd.DataFrame, schema: Schema
) -> dict[str, float]:
    """Returns how far each column is from the real one, from 0 (the same) to 1.

    For categories it is the total variation distance. For numbers it is the Wasserstein distance of
    their positions in the public range: how far, on average, values must move.

    Guarantee:
      None: ``real`` must be public or consented, as for ``table_utility``.
    """
    require_columns(synthetic, _column_names(schema))
    require_columns(real, _column_names(schema))
    return {
        part.name: _distance(part, synthetic[part.name], real[part.name])
        for part in (*schema.columns, schema.class_target)
    }


def _column_names(schema: Schema) -> list[str]:
    return [part.name for part in (*schema.columns, schema.class_target)]


def _distance(part: Column | Target, ours: "pd.Series[Any]", theirs: "pd.Series[Any]") -> float:
    match part:
        case Target(classes=classes):
            shares = [
                np.bincount(part.encode(v), minlength=len(classes)) / len(v) for v in (ours, theirs)
            ]
            return _total_variation(*shares)
        case CategoricalColumn():
            return _total_variation(
                part.encode(ours).mean(axis=0), part.encode(theirs).mean(axis=0)
            )
        case NumericColumn():
            # Without knots the features are a position in [-1, 1] and whether it is missing.
            plain = replace(part, knots=())
            (x, x_missing), (y, y_missing) = plain.encode(ours).T, plain.encode(theirs).T
            missing = abs(float(x_missing.mean() - y_missing.mean()))
            if x_missing.all() or y_missing.all():
                return missing
            moved = stats.wasserstein_distance(x[x_missing == 0], y[y_missing == 0]) / 2
            return max(missing, float(moved))


def _total_variation(p: NDArray[Any], q: NDArray[Any]) -> float:
    return float(np.abs(p - q).sum() / 2)


def _scores(classifier: Any, train: pd.DataFrame, test: pd.DataFrame, schema: Schema) -> Scores:
    """Returns scores; a class that never occurs in the training table has probability zero."""
    train_labels = schema.encode_target(train)
    if np.all(train_labels == train_labels[0]):  # a bad table, about which classifiers complain
        classifier = DummyClassifier()
    classifier.fit(schema.encode(train), train_labels)
    probabilities = np.zeros((len(test), len(schema.class_target.classes)))
    probabilities[:, classifier.classes_] = classifier.predict_proba(schema.encode(test))
    labels = schema.encode_target(test)
    is_binary = probabilities.shape[1] == 2
    return Scores(
        auc=float(
            roc_auc_score(
                labels, probabilities[:, 1] if is_binary else probabilities, multi_class="ovr"
            )
        ),
        accuracy=float(np.mean(probabilities.argmax(axis=1) == labels)),
    )
