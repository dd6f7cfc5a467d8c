"""Coefficients of a linear model of a table: their intervals, and what privacy noise adds to them.

A coefficient is in units of the table: how far the output moves when a column moves by the stated
unit. The output is a target in its own units, the log-odds of the second of two classes, or the
logit of each of more classes.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit import _check
from tacit.data import NumericColumn, NumericTarget, Schema
from tacit.errors import InvalidArgumentError
from tacit.intervals import equal_tailed
from tacit.models import MLP, Model
from tacit.models.base import Network, from_spec
from tacit.posterior import Posterior

__all__ = ["INTERCEPT", "NOISE", "coefficient_table", "is_linear"]

INTERCEPT, NOISE = "(intercept)", "(noise)"
"""The rows that belong to no column; the noise is the standard deviation of a numeric target."""

_NUM_DRAWS = 1000

_Floats = NDArray[np.float64]


class _Terms(NamedTuple):
    """Draws of some terms of a model and of their shares, by the output they are part of.

    Attributes:
      names: of the terms.
      units: by how much a column moves.
      draws: ``(num_draws, num_terms, num_outputs)``.
      shares: of their widths; the same without draws.
    """

    names: tuple[str, ...]
    units: tuple[float, ...]
    draws: _Floats
    shares: _Floats


def is_linear(model: Model) -> bool:
    """Whether a model's network is a linear map of its inputs, so that it has coefficients."""
    spec = model.spec
    network = None if spec is None else from_spec(spec["network"], Network)
    return isinstance(network, MLP) and not network.hidden


def coefficient_table(
    posterior: Posterior, schema: Schema | None, *, level: float = 0.9
) -> pd.DataFrame:
    """Returns one row for each coefficient of a linear model, by name.

    The columns are ``unit`` (by how much the column moves, on the scale it is encoded on; 1 for
    membership in a category or at a knot), ``mean``, ``std``, ``low``, ``high`` and
    ``privacy_share``, the share of the interval's width that privacy is responsible for (missing
    where the posterior was not corrected for privacy noise). Of more than two classes each has its
    own rows.

    Guarantee:
      Post-processing of released values; no privacy cost.

    Args:
      posterior: of a linear model.
      schema: names the columns; None, or one of another table, numbers them.
      level: the posterior probability of each interval.

    Raises:
      InvalidArgumentError: where the model has no coefficients.
    """
    _check.fraction(one=False, level=level)
    if not is_linear(posterior.model):
        raise InvalidArgumentError(
            "coefficients exist for linear models only; this model is a network with hidden layers,"
            " whose single weights mean nothing. Fit with hidden=() for a regression table, or"
            " look at predictions."
        )
    terms = list(_terms(posterior, schema))
    draws = np.concatenate([term.draws for term in terms], axis=1)
    low, high = equal_tailed(draws, level=level)
    numbers = {
        "mean": draws.mean(axis=0),
        "std": draws.std(axis=0),
        "low": np.asarray(low, np.float64),
        "high": np.asarray(high, np.float64),
        "privacy_share": np.concatenate([term.shares for term in terms]),
    }
    names = [name for term in terms for name in term.names]
    units = [unit for term in terms for unit in term.units]
    outputs, kind = _outputs(schema, draws.shape[2])
    tables = [
        pd.DataFrame(
            {"unit": units, **{name: values[:, at] for name, values in numbers.items()}},
            index=pd.Index(names, name="coefficient"),
        )
        for at in range(len(outputs))
    ]
    return tables[0] if len(tables) == 1 else pd.concat(tables, keys=outputs, names=[kind])


def _terms(posterior: Posterior, schema: Schema | None) -> Iterator[_Terms]:
    drawn = posterior.draws(_NUM_DRAWS if posterior.sampler.min_draws > 1 else None)
    draws: Any = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), drawn)
    parts = posterior.intervals.parts
    shares: Any = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64),
        jax.tree.map(lambda leaf: np.full(leaf.shape[1:], np.nan), draws)
        if parts is None
        else parts.privacy_share,
    )
    layer, layer_shares = draws["network"]["dense_0"], shares["network"]["dense_0"]
    num_features = layer["kernel"].shape[1]
    if schema is not None and len(schema.feature_names) != num_features:
        schema = None
    # What a target's own units make of the model's.
    target = None if schema is None else schema.target
    factor, centre = 1.0, 0.0
    if isinstance(target, NumericTarget):
        factor, centre = target.half_range, float(target.decode(np.zeros(())))
    yield _Terms(
        (INTERCEPT,),
        (math.nan,),
        factor * layer["bias"][:, None] + centre,
        layer_shares["bias"][None],
    )
    names, units, scale = tuple(f"x{i}" for i in range(num_features)), (1.0,) * num_features, 1.0
    if schema is not None:
        names, units = schema.feature_names, _units(schema)
        # All features of a table are multiplied by the same number.
        scale = schema.norm_bound / math.sqrt(len(schema.columns))
    yield _Terms(names, units, factor * scale * layer["kernel"], layer_shares["kernel"])
    if "log_std" in draws:
        std = factor * np.exp(draws["log_std"])
        yield _Terms((NOISE,), (math.nan,), std[:, None, None], shares["log_std"][None, None])


def _units(schema: Schema) -> tuple[float, ...]:
    """By how much a column moves where its feature moves by one."""
    units: list[float] = []
    for column in schema.columns:
        own = [1.0] * len(column.feature_names)
        if isinstance(column, NumericColumn) and not column.knots:
            low, high = column.scale(np.array([column.low, column.high], np.float64))
            own[0] = float(high - low) / 2
        units += own
    return tuple(units)


def _outputs(schema: Schema | None, num_outputs: int) -> tuple[Sequence[Any], str]:
    """What coefficients belong to, and what kind of thing it is; for where there are several."""
    classes = None if schema is None else getattr(schema.target, "classes", None)
    if classes is not None and len(classes) == num_outputs:
        return list(classes), "class"
    return range(num_outputs), "output"
