"""What the classifier and the regressor share: parameters, and the way to a fitted table."""

import abc
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import pandas as pd
from dp_accounting import DpEvent
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, _clone_parametrized
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from tacit.data import NumericTarget, Schema, Target, as_records
from tacit.errors import InvalidArgumentError
from tacit.estimators.inputs import Limits, UnknownColumns, as_frame, as_limits, warn_of_refits
from tacit.estimators.inputs import numeric_columns as columns_of
from tacit.inference import ProgressBar
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.cost import Cost
from tacit.privacy.private_bounds import PrivateBounds
from tacit.privacy.statement import Statement
from tacit.studies.preparation import Recipe, prepare
from tacit.studies.table_fit import FittedTable, Predicted, TableFit, fit_table
from tacit.typing import Params, Record

__all__ = ["EncodedTable", "GivenRows", "TableEstimator", "Uncertainty"]


class Uncertainty(NamedTuple):
    """What each prediction's uncertainty is made of; the parts add up to the total.

    Attributes:
      aleatoric: noise that more records would not remove.
      epistemic: what the posterior does not know, as the disagreement of its draws.
      total: of the predictive distribution.
    """

    aleatoric: NDArray[np.float64]
    epistemic: NDArray[np.float64]
    total: NDArray[np.float64]


class GivenRows(NamedTuple):
    """What ``fit`` was given.

    Attributes:
      frame: inputs, as the schema names them.
      labels: targets, as they were given.
      weight: of each row; None where all are the same.
      groups: whose each row is; None where each is somebody else's.
    """

    frame: pd.DataFrame
    labels: NDArray[Any]
    weight: NDArray[Any] | None
    groups: ArrayLike | None


class EncodedTable(NamedTuple):
    """A table ready to be fitted.

    Attributes:
      schema: public, or read off private bounds.
      records: one for each unit of privacy.
    """

    schema: Schema
    records: Record


@dataclass(kw_only=True, eq=False, repr=False)
class TableEstimator(BaseEstimator, abc.ABC):  # type: ignore[misc]
    """Reads what scikit-learn passes, spends the budget once, predicts; see the two that extend it.

    Guarantee:
      Of the records, `fit` computes nothing but what one row or one unit says by itself, counted
      releases, and a warning for their owner. All attributes that end in an underscore may be
      published under ``privacy_``, except ``classes_`` where it warned that labels are public.

    Args:
      epsilon: the budget; ``math.inf`` runs the same fit without privacy.
      delta: the chance that the promise of epsilon fails; well below 1 / (number of records).
      method: ``"sgld"``, ``"sghmc"``, ``"sgd"``, ``"swag"``, ``"vi"`` or ``"ivon"``.
      schema: the public description of a table with numeric and categorical columns; X is then
        a frame, whose columns are found by name.
      bounds: the public range of numeric inputs, ``(low, high)``, each a number or one for each
        column. Without schema and bounds, a tenth of the budget finds them privately.
      hidden: widths of hidden layers; ``()`` is a linear model. This and what follows is chosen
        from public facts where it is None: records, features, classes and epsilon.
      num_steps: updates; the noise is such that all of them together spend the budget.
      batch_size: expected number of records in an update.
      clip_norm: the largest gradient norm that one record contributes.
      learning_rate: on the gradient of the mean loss.
      max_rows: how many rows of one person count, where ``fit`` is given groups.
      max_weight: the largest sample weight; public.
      ledger: is charged for all that is released.
      random_state: None draws secret noise. A number is for tests and marks the statement
        INSECURE.
      verbose: shows a bar with steps and epsilon.

    Attributes:
      privacy_: the privacy statement of the fit.
      table_: the posterior with its schema; ``table_.save(directory)`` writes a run directory.
      n_iter_: how many updates were made.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    method: str = "sgld"
    schema: Schema | None = None
    bounds: Any = None
    hidden: Sequence[int] | None = None
    num_steps: int | None = None
    batch_size: int | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    max_rows: int | None = None
    max_weight: float = 1.0
    ledger: Ledger | None = None
    random_state: Any = None
    verbose: bool = False

    table_: FittedTable = field(init=False)
    privacy_: Statement = field(init=False)
    n_iter_: int | None = field(init=False)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fits within the budget; nothing is read when that is impossible.

        Args:
          X: inputs; with a schema a frame whose columns are found by name, else numbers.
          y: targets, one for each row.
          sample_weight: how much each row counts, between 0 and ``max_weight``; it acts inside
            the clip.
          groups: whose each row is, where a person has several; ``max_rows`` is then needed.
        """
        budget, recipe = self._budget(), self._recipe()
        bounds_seed, seed = self._seeds(2)
        rows = self._read(X, y, sample_weight, groups)
        encoded, unknown = self._encode(rows, None), self._unknown(rows, budget)
        search = None if unknown is None else unknown.search
        prepared = prepare(
            encoded.schema,
            recipe,
            num_records=len(encoded.records.weight),
            budget=budget,
            ledger=self.ledger,
            spent=None if search is None else Cost(search.cost, is_secure=bounds_seed is None),
        )
        plan = prepared.plan
        if self.ledger is not None:
            # For all of it, before the first part is paid.
            self.ledger.ask(plan.cost)
        self._warn_of_refits(X, y, plan.cost, budget)
        if unknown is not None:
            found, _ = unknown.find(budget=budget, seed=bounds_seed, ledger=self.ledger)
            encoded = self._encode(rows, found)
        prepared = replace(prepared, schema=encoded.schema)
        with ProgressBar(type(self).__name__) if self.verbose else nullcontext() as bar:
            return self._keep(
                fit_table(encoded.records, prepared, seed=seed, ledger=self.ledger, progress=bar)
            )

    def sample_posterior(self, num_draws: int | None = None, *, seed: int = 0) -> Params:
        """Returns draws of the network's parameters, stacked along a leading axis.

        Args:
          num_draws: how many; by default one for each retained state.
          seed: nothing private hangs on it.
        """
        check_is_fitted(self)
        return jax.tree.map(np.asarray, self.table_.posterior.draws(num_draws, seed=seed))

    def coefficients(self, level: float = 0.9) -> pd.DataFrame:
        """Returns the coefficients of a linear model with their credible intervals, by name.

        One row for each column of the encoded table, with ``unit``, ``mean``, ``std``, ``low``,
        ``high`` and ``privacy_share``; of more than two classes each has its own rows. A
        coefficient says how far the prediction (a number in the units of y, the log-odds of the
        second of two classes, or the logit of each class) moves when the column moves by ``unit``.
        ``privacy_share`` is the share of the interval's width that privacy noise accounts for; it
        is missing where the posterior was not corrected for that noise.

        Warns with `IntervalWarning` for every reason not to trust the intervals.

        Args:
          level: the posterior probability of each interval.

        Raises:
          InvalidArgumentError: where the model is a network, which has no coefficients: pass
            ``hidden=()`` for a linear model.
        """
        check_is_fitted(self)
        return self._with_labels(self.table_.coefficients(level, stacklevel=3))

    def _with_labels(self, table: pd.DataFrame) -> pd.DataFrame:
        """Returns a table of coefficients in which classes are called as they were given."""
        return table

    def _keep(self, table: TableFit) -> Self:
        self.table_ = table
        self.privacy_ = table.fit.statement
        self.n_iter_ = table.prepared.recipe.num_steps
        return self

    def _predicted(self, X: Any) -> Predicted:
        check_is_fitted(self)
        return self.table_.predict(self._frame(X, reset=False))

    def _budget(self) -> Budget:
        if isinstance(self.epsilon, float) and math.isinf(self.epsilon) and self.epsilon > 0:
            return Budget.non_private()
        return Budget(epsilon=self.epsilon, delta=self.delta)

    def _recipe(self) -> Recipe:
        return Recipe(
            method=self.method,
            hidden=None if self.hidden is None else tuple(self.hidden),
            num_steps=self.num_steps,
            batch_size=self.batch_size,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
        )

    def _seeds(self, count: int) -> list[int | None]:
        """Returns different seeds that follow from ``random_state``; None stays secret."""
        state = self.random_state
        if state is None:
            return [None] * count
        if isinstance(state, np.random.RandomState | np.random.Generator):
            draw = state.randint if isinstance(state, np.random.RandomState) else state.integers
            state = int(draw(2**31 - 1))
        seeds = np.random.SeedSequence(state).generate_state(count)
        return [int(seed) >> 1 for seed in seeds]

    def _frame(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """Returns the inputs as the table that the schema describes."""
        schema = self.schema
        if schema is not None:
            if not isinstance(schema, Schema):
                raise InvalidArgumentError(
                    f"schema must be a tacit.data.Schema; got {type(schema).__name__}."
                )
            frame = as_frame(X, schema)
            validate_data(self, frame, skip_check_array=True, reset=reset)
            return frame
        array = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
        return pd.DataFrame(array, columns=self._names())

    def _names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        return [f"x{i}" for i in range(self.n_features_in_)] if names is None else list(names)

    def _read(
        self, X: Any, y: Any, sample_weight: ArrayLike | None, groups: ArrayLike | None
    ) -> GivenRows:
        """Returns the rows, checked as far as that needs no bounds."""
        frame = self._frame(X, reset=True)
        labels = self._labels(y, len(frame))
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, frame, ensure_non_negative=True)
            if not np.any(weight):
                raise InvalidArgumentError(
                    "sample_weight must have at least one non-zero number; got zeros only."
                )
        if (groups is None) != (self.max_rows is None):
            raise InvalidArgumentError(
                "groups and max_rows go together: groups says whose each row is, max_rows how many"
                f" rows of one person count at most, and is public; got max_rows={self.max_rows!r}."
            )
        return GivenRows(frame, labels, weight, groups)

    def _encode(self, rows: GivenRows, found: PrivateBounds | None) -> EncodedTable:
        """Returns records; without ``found``, unknown bounds are taken as (-1, 1) for now.

        What is wrong with a row is wrong under any bounds, and is found before any are paid for.
        Nor do model, clip norm and cost depend on bounds: inputs are scaled by them.
        """
        schema = self.schema
        if schema is None:
            limits, target = self._limits(rows.frame.shape[1], found)
            schema = Schema(columns=columns_of(list(rows.frame.columns), limits), target=target)
        records = as_records(
            schema.encode(rows.frame),
            self._encode_labels(schema, rows.labels),
            weight=rows.weight,
            max_weight=self.max_weight,
            groups=rows.groups,
            max_rows=self.max_rows,
        )
        return EncodedTable(schema, records)

    def _unknown(self, rows: GivenRows, budget: Budget) -> UnknownColumns | None:
        """Returns the columns whose bounds are not public, target last."""
        if self.schema is not None:
            return None
        columns = [] if self.bounds is not None else [rows.frame.to_numpy(np.float64)]
        if self._public_target() is None:
            columns.append(np.asarray(rows.labels, np.float64)[:, None])
        if not columns:
            return None
        return UnknownColumns.of_rows(
            np.hstack(columns), budget=budget, groups=rows.groups, max_rows=self.max_rows
        )

    def _limits(
        self, num_columns: int, found: PrivateBounds | None
    ) -> tuple[Limits, Target | NumericTarget]:
        """Returns bounds and target, public where they were given."""
        low, high = (
            (-np.ones(num_columns + 1), np.ones(num_columns + 1))
            if found is None
            else (found.low, found.high)
        )
        target = self._public_target()
        if target is None:
            target = NumericTarget(
                name=self._target_name(), low=float(low[-1]), high=float(high[-1])
            )
        if self.bounds is not None:
            return as_limits("bounds", self.bounds, num_columns), target
        return Limits(low[:num_columns], high[:num_columns]), target

    def _target_name(self) -> str:
        names = self._names()
        return next(name for name in ("target", "y", "(target)") if name not in names)

    def _warn_of_refits(self, X: Any, y: Any, cost: DpEvent, budget: Budget) -> None:
        if self.ledger is not None:
            return
        frame = pd.DataFrame(X if isinstance(X, pd.DataFrame) else np.asarray(X)).copy()
        frame["(y)"] = np.asarray(y)
        warn_of_refits(frame, cost, delta=budget.delta)

    @abc.abstractmethod
    def _labels(self, y: Any, num_rows: int) -> NDArray[Any]:
        """Returns the targets as they were given, checked."""

    @abc.abstractmethod
    def _encode_labels(self, schema: Schema, labels: NDArray[Any]) -> NDArray[Any]:
        """Returns the targets as the model wants them."""

    @abc.abstractmethod
    def _public_target(self) -> Target | NumericTarget | None:
        """Returns the target where it is publicly known."""

    def __sklearn_clone__(self) -> Self:
        # A copy of a ledger would be charged in vain: all clones draw on the one that was given.
        ledger, self.ledger = self.ledger, None
        try:
            copied: Self = _clone_parametrized(self)
        finally:
            self.ledger = ledger
        return copied.set_params(ledger=ledger)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        tags.non_deterministic = True
        return tags
