"""Fitting a table: records and what was prepared become a posterior that knows its columns."""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from tacit import _check
from tacit._artefact import read_text
from tacit.data import NumericTarget, Schema, Target
from tacit.data.schema import parse_toml, toml_of
from tacit.errors import InvalidArgumentError, TacitError
from tacit.inference import Fit, fit, save_checkpoint
from tacit.inference.chains import Checkpoint, OnProgress
from tacit.intervals import IntervalFacts
from tacit.metrics.calibration import gaussian_interval
from tacit.metrics.uncertainty import ClassificationUncertainty, RegressionUncertainty
from tacit.models.bayesian import model_from_spec
from tacit.posterior import Posterior, load_posterior, predict
from tacit.privacy.accounting import GDP, PLD, RDP
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.statement.fields import statement_from_json
from tacit.rehearsal.outlook import warn_if_hopeless
from tacit.samplers import sampler_from_spec, sampler_spec
from tacit.studies.coefficients import coefficient_table, is_linear
from tacit.studies.preparation import Prepared, Recipe, prepare
from tacit.tables import OnHost
from tacit.tables.distributed import Distributed
from tacit.typing import Record

__all__ = [
    "FittedTable",
    "Moment",
    "Predicted",
    "TableFit",
    "fit_table",
    "load_fitted_table",
    "load_prepared",
    "prediction_table",
]

_ACCOUNTANTS = {accountant.name: accountant for accountant in (PLD(), RDP(), GDP())}

_Floats: TypeAlias = NDArray[np.float64]
Predicted: TypeAlias = ClassificationUncertainty[_Floats] | RegressionUncertainty[_Floats]


class Moment(NamedTuple):
    """How much was spent after some steps."""

    step: int
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class FittedTable:
    """A posterior and the schema under which it reads tables and speaks of them.

    Attributes:
      schema: the public description of the table.
      posterior: may be published; its ``statement`` says what is promised.
      statement_text: the statement for people.
    """

    schema: Schema
    posterior: Posterior
    statement_text: str

    def __reduce__(self) -> tuple[Any, ...]:
        # Models are functions, which cannot be copied between processes; their specs can.
        parts = {
            "schema": self.schema,
            "model": self.posterior.model.spec,
            "posteriors": [
                (
                    sampler_spec(posterior.sampler),
                    jax.tree.map(np.asarray, posterior.kept),
                    jax.tree.map(np.asarray, posterior.intervals.parts),
                    posterior.intervals.caveats,
                )
                for posterior in (self.posterior.raw, self.posterior)
                if posterior is not None
            ],
            "statement": dict(self.statement),
            "statement_text": self.statement_text,
        }
        return _restored, (parts,)

    @property
    def statement(self) -> Mapping[str, Any]:
        """The privacy statement as JSON-able data."""
        return self.posterior.statement

    def coefficients(self, level: float = 0.9, *, stacklevel: int = 2) -> pd.DataFrame:
        """Returns the coefficients of a linear model with their credible intervals, by name.

        See `coefficient_table`. Warns with `IntervalWarning` for every reason not to trust the
        intervals, which are corrected for privacy noise where ``privacy_share`` is a number.

        Args:
          level: the posterior probability of each interval.
          stacklevel: whose line the warnings name; by default the caller's.

        Raises:
          InvalidArgumentError: where the model is a network with hidden layers.
        """
        table = coefficient_table(self.posterior, self.schema, level=level)
        self.posterior.intervals.warn(stacklevel=stacklevel + 1)
        return table

    def predict(self, frame: pd.DataFrame, *, num_draws: int | None = None) -> Predicted:
        """Returns what the posterior says of each row; numbers are in the user's units.

        Args:
          frame: has the columns of the schema; the target is not needed.
          num_draws: as in `tacit.predict`.
        """
        return self.predict_features(self.schema.encode(frame), num_draws=num_draws)

    def predict_features(self, features: ArrayLike, *, num_draws: int | None = None) -> Predicted:
        """Returns the same for rows that are encoded already."""
        found = predict(self.posterior, features, num_draws=num_draws, batch_size=4096)
        parts = (np.asarray(part, np.float64) for part in found)
        if isinstance(found, ClassificationUncertainty):
            return ClassificationUncertainty(*parts)
        target = self.schema.target
        assert isinstance(target, NumericTarget)
        mean, *variances = parts
        return RegressionUncertainty(
            target.decode(mean), *(target.half_range**2 * variance for variance in variances)
        )


@dataclass(frozen=True, kw_only=True)
class TableFit(FittedTable):
    """A table that was fitted just now, with how it came about.

    Attributes:
      prepared: what was run.
      fit: plan, statement and checkpoint of the run.
      progress: how epsilon grew.
    """

    prepared: Prepared
    fit: Fit
    progress: tuple[Moment, ...]

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes a run directory; no record is in it.

        ``study.toml`` (recipe and budget as executed), ``schema.toml``, the posterior, the
        statement as JSON and text, ``progress.json``, the last checkpoint, and, of a linear model,
        ``coefficients.csv`` with 90 % intervals and the caveats about them. Warns with
        `PrivacyWarning` when the statement promises nothing, or the noise was seeded.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self.fit.checkpoint, folder)
        texts = {
            "study.toml": toml_of(_study_of(self.prepared)),
            "schema.toml": self.schema.to_toml(),
            "progress.json": json.dumps(
                [
                    {"step": step, "epsilon": epsilon if math.isfinite(epsilon) else "infinity"}
                    for step, epsilon in self.progress
                ],
                indent=2,
            )
            + "\n",
        }
        if is_linear(self.posterior.model):
            table = coefficient_table(self.posterior, self.schema, level=0.9)
            table["caveats"] = " ".join(self.posterior.intervals.caveats)
            texts["coefficients.csv"] = table.to_csv(lineterminator="\n", float_format="%.6g")
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        self.fit.statement.save(folder)
        self.posterior.save(folder)


def fit_table(
    records: Record | Distributed | OnHost,
    prepared: Prepared,
    *,
    seed: int | None = None,
    ledger: Ledger | None = None,
    progress: OnProgress | None = None,
    resume: Checkpoint | None = None,
    on_chunk: Callable[[Checkpoint], None] | None = None,
    half_precision: str | os.PathLike[str] | None = None,
) -> TableFit:
    """Runs what was prepared on the records of a table.

    Guarantee:
      As `tacit.fit`, which does all of it: records are read by counted releases only.

    Warns with `UtilityWarning`, before a record is read, where the budget can hardly work.

    Args:
      records: from `encode_table` with the schema that was prepared, or where `tacit.fit` takes
        them from otherwise.
      prepared: from `prepare`, for as many records.
      seed: for tests and examples only; marks the statement INSECURE.
      ledger: is charged before anything is released.
      progress: is told steps and epsilon.
      resume: goes on from there.
      on_chunk: receives a checkpoint after each chunk.
      half_precision: as in `tacit.fit`.
    """
    if resume is None:
        warn_if_hopeless(
            prepared.plan,
            prepared.model,
            prepared.schema,
            epsilon=prepared.budget.epsilon,
            stacklevel=3,
        )
    moments: list[Moment] = []

    def remember(*, step: int, num_steps: int, epsilon: float) -> None:
        moments.append(Moment(step, epsilon))
        if progress is not None:
            progress(step=step, num_steps=num_steps, epsilon=epsilon)

    result = fit(
        prepared.plan,
        prepared.model,
        records,
        budget=prepared.budget,
        seed=seed,
        ledger=ledger,
        progress=remember,
        resume=resume,
        on_chunk=on_chunk,
        half_precision=half_precision,
    )
    return TableFit(
        schema=prepared.schema,
        posterior=result.posterior,
        statement_text=str(result.statement),
        prepared=prepared,
        fit=result,
        progress=tuple(moments),
    )


def load_fitted_table(directory: str | os.PathLike[str]) -> FittedTable:
    """Returns what predicts from a run directory; no training record is needed.

    Raises:
      TacitError: where a file is missing or damaged.
    """
    folder = Path(directory)
    try:
        schema = Schema.from_toml((folder / "schema.toml").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TacitError(
            f"{folder} is not a run: {Path(error.filename).name} is missing. Give the folder that"
            " a fit was saved to."
        ) from None
    posterior = load_posterior(folder)
    statement = statement_from_json(posterior.statement)
    return FittedTable(schema=schema, posterior=posterior, statement_text=str(statement))


def load_prepared(directory: str | os.PathLike[str]) -> Prepared:
    """Returns what the folder of a run says was prepared, to be run again or audited.

    Its noise is calibrated anew, to the run's own budget.

    Raises:
      InvalidArgumentError: where the folder does not say it.
    """
    folder = Path(directory)
    study = parse_toml(read_text(folder / "study.toml", what="a run's study"))
    schema = Schema.from_toml(read_text(folder / "schema.toml", what="a run's schema"))
    try:
        recipe = {**study["recipe"], "hidden": tuple(study["recipe"]["hidden"])}
        budget = Budget(
            float(study["budget"]["epsilon"]),
            float(study["budget"]["delta"]),
            _ACCOUNTANTS[study["budget"]["accountant"]],
        )
        num_records = int(study["num_records"])
        return prepare(schema, Recipe(**recipe), num_records=num_records, budget=budget)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{folder / 'study.toml'} does not say what was run: {error} is missing or wrong."
        ) from None


def _restored(parts: dict[str, Any]) -> FittedTable:
    """Returns a copy made in another process; it can predict, but not be saved as a run."""
    if parts["model"] is None:
        raise TacitError("a table whose model is made of functions cannot be copied.")
    posterior = None
    for sampler, kept, stds, caveats in parts["posteriors"]:
        posterior = Posterior(
            model=model_from_spec(parts["model"]),
            sampler=sampler_from_spec(sampler),
            kept=jax.tree.map(jnp.asarray, kept),
            statement=parts["statement"],
            intervals=IntervalFacts(parts=jax.tree.map(jnp.asarray, stds), caveats=caveats),
            raw=posterior,
        )
    assert posterior is not None
    return FittedTable(
        schema=parts["schema"], posterior=posterior, statement_text=parts["statement_text"]
    )


def _study_of(prepared: Prepared) -> dict[str, Any]:
    """Returns recipe and budget as executed, for TOML."""
    recipe = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(prepared.recipe).items()
        if value is not None
    }
    budget: Budget = prepared.budget
    return {
        "num_records": prepared.plan.method.num_records,
        "budget": {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "accountant": budget.accountant.name,
        },
        "recipe": recipe,
    }


def prediction_table(
    found: ClassificationUncertainty[_Floats] | RegressionUncertainty[_Floats],
    target: Target | NumericTarget,
    *,
    level: float = 0.9,
) -> pd.DataFrame:
    """Returns one row for each input.

    For classes: the most probable one, its probability as ``confidence``, the probability of each,
    and the entropy in nats, ``aleatoric`` (noise that more records would not remove) and
    ``epistemic`` (what the posterior does not know). For numbers: mean, standard deviation, the
    interval that holds the truth with probability ``level`` if the model is right, and the standard
    deviations of both kinds.

    Args:
      found: what a posterior predicts.
      target: names the classes.
      level: of intervals.

    Example:
      >>> from tacit.metrics import classification_uncertainty
      >>> draws = [[[0.9, 0.1]], [[0.7, 0.3]]]
      >>> table = prediction_table(
      ...     classification_uncertainty(draws), Target(name="ill", classes=("no", "yes"))
      ... )
      >>> table.round(2).to_dict("records")[0]
      {'prediction': 'no', 'confidence': 0.8, 'probability(no)': 0.8, 'probability(yes)': 0.2, ...}
    """
    _check.fraction(one=False, level=level)
    if isinstance(found, RegressionUncertainty):
        low, high = gaussian_interval(found.mean, found.total_variance, level=level)
        return pd.DataFrame(
            {
                "prediction": found.mean,
                "std": np.sqrt(found.total_variance),
                "low": low,
                "high": high,
                "aleatoric": np.sqrt(found.aleatoric_variance),
                "epistemic": np.sqrt(found.epistemic_variance),
            }
        )
    assert isinstance(target, Target)
    classes = np.asarray(target.classes, object)
    columns = {f"probability({name})": found.probabilities[:, i] for i, name in enumerate(classes)}
    return pd.DataFrame(
        {
            "prediction": classes[found.probabilities.argmax(axis=1)],
            "confidence": found.probabilities.max(axis=1),
            **columns,
            "aleatoric": found.aleatoric_entropy,
            "epistemic": found.mutual_information,
        }
    )
