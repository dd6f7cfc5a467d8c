"""Synthetic tables: draws from the posterior predictive of a program over all columns."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from numpyro import handlers
from numpyro.infer import Predictive

from tacit import _check
from tacit.data import Schema
from tacit.errors import InvalidArgumentError
from tacit.numpyro.rows import RowCode
from tacit.numpyro.tables import as_table
from tacit.typing import Array, Key

__all__ = ["synthetic_tables"]


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
      >>> from tacit.data import Numeric, Target
      >>> schema = Schema(
      ...     columns=(Numeric(name="age", low=17, high=90),),
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
    return code.decode(sites["rows"]) if isinstance(code, RowCode) else as_table(code, sites)
