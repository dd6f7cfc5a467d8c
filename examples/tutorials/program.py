"""A NumPyro program with a synthetic twin: patients whose table must not leave the house.

The story: a clinic knows the age, sex and treatment of its patients and who recovered. Others want
to ask questions of that table that nobody has thought of yet. The clinic writes down how it thinks
such rows come about, fits that program privately, and publishes tables of patients who never
were. The patients here are made up. Run it with

    python -m examples.tutorials.program
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from tacit.data import CategoricalColumn, NumericColumn, Schema, Target
from tacit.numpyro import DPSVI
from tacit.synthetic import combined, synthetic_tables
from tacit.typing import Array

__all__ = ["SCHEMA", "patients", "program", "run"]

SCHEMA = Schema(
    columns=(
        NumericColumn(name="age", low=18, high=100),
        CategoricalColumn(name="sex", categories=("f", "m")),
        CategoricalColumn(name="treatment", categories=("old", "new")),
    ),
    target=Target(name="recovered", classes=("no", "yes")),
)
"""What is public about the table: its columns, ranges and categories."""


def program(
    age: Array | None = None,
    sex: Array | None = None,
    treatment: Array | None = None,
    recovered: Array | None = None,
    num_records: int | None = None,
) -> None:
    """How a row comes about; categories are given by their numbers."""
    # In units of twenty years, so that all latents are of one size: one clip serves all of them.
    shift = numpyro.sample("shift", dist.Normal())
    log_spread = numpyro.sample("log_spread", dist.Normal(0.0, 0.5))
    of_women = numpyro.sample("of_women", dist.Normal())
    of_new = numpyro.sample("of_new", dist.Normal())
    weights = numpyro.sample("weights", dist.Normal().expand([4]).to_event(1))
    size = num_records if age is None else age.shape[0]
    with numpyro.plate("records", num_records or size, subsample_size=size):
        age = numpyro.sample("age", dist.Normal(50 + 20 * shift, 20 * jnp.exp(log_spread)), obs=age)
        sex = numpyro.sample("sex", dist.Bernoulli(logits=-of_women), obs=sex)
        treatment = numpyro.sample("treatment", dist.Bernoulli(logits=of_new), obs=treatment)
        logits = weights @ jnp.stack([jnp.ones_like(age), (age - 50) / 20, sex, treatment])
        numpyro.sample("recovered", dist.Bernoulli(logits=logits), obs=recovered)


def patients(num_records: int) -> pd.DataFrame:
    """Makes up the clinic's table; the new treatment helps."""
    rng = np.random.default_rng(0)
    age = np.clip(rng.normal(58, 14, num_records), 18, 100)
    sex, treatment = rng.integers(2, size=(2, num_records))
    logits = 0.3 - 0.8 * (age - 50) / 20 + 0.9 * treatment
    recovered = rng.uniform(size=num_records) < 1 / (1 + np.exp(-logits))
    return pd.DataFrame(
        {
            "age": age,
            "sex": np.array(["f", "m"])[sex],
            "treatment": np.array(["old", "new"])[treatment],
            "recovered": np.array(["no", "yes"])[recovered.astype(int)],
        }
    )


def effect(table: pd.DataFrame) -> tuple[float, float]:
    """Returns by how much more recover with the new treatment, and the variance of that."""
    rates, variance = {}, 0.0
    for name, part in table.groupby("treatment"):
        rates[name] = float((part.recovered == "yes").mean())
        variance += rates[name] * (1 - rates[name]) / len(part)
    return rates["new"] - rates["old"], variance


def run(
    *, num_records: int = 5000, num_steps: int = 400, num_tables: int = 20, seed: int | None = None
) -> dict[str, float]:
    """Fits the program, draws tables, and asks them a question that the fit knew nothing of."""
    # 1. Rows as the program wants them: numbers for numbers, and the number of each category.
    table = patients(num_records)
    columns = [jnp.asarray(table.age, jnp.float32)] + [
        jnp.asarray(table[name] == last, jnp.float32)
        for name, last in (("sex", "m"), ("treatment", "new"), ("recovered", "yes"))
    ]

    # 2. Private inference is NumPyro's own with one other class, which knows its price. (It
    #    warns that it shows no loss: a loss of private records would be one more release.)
    guide = AutoNormal(program, init_scale=0.1)
    svi = DPSVI(
        program,
        guide,
        numpyro.optim.Adam(0.05),
        Trace_ELBO(),
        epsilon=1.0,
        clip_norm=3.0,
        batch_size=min(1000, num_records // 2),
        seed=seed,
    )
    key, draw_key, table_key = jax.random.split(jax.random.key(seed or 0), 3)
    result = svi.run(key, num_steps, *columns, progress_bar=False)
    statement = svi.statement(result.state)
    print(statement)

    # 3. Tables of people who never were, each from a draw of its own. They cost nothing more, so
    #    they may be long: then what they differ by is the posterior's doubt, and not their luck.
    draws = guide.sample_posterior(draw_key, result.params, sample_shape=(num_tables,))
    twins = synthetic_tables(
        table_key, program, draws, code=SCHEMA, num_rows=5 * num_records, num_tables=num_tables
    )
    print(twins[0].head(3).to_string(index=False))

    # 4. A question, asked of each table as if it were real. Their differences say how uncertain
    #    the answer is, privacy noise included; the rule of Raghunathan, Reiter and Rubin combines.
    answers = [effect(twin) for twin in twins]
    answer = combined([value for value, _ in answers], [variance for _, variance in answers])
    low, high = answer.interval(0.95)
    truth, _ = effect(table)
    print(f"the new treatment helps {low:.2f} to {high:.2f} more; in the real table {truth:.2f}")
    return {
        "low": low,
        "high": high,
        "truth": truth,
        "epsilon": statement.epsilon,
        "num_tables": len(twins),
    }


def main() -> None:
    """Runs the tutorial from the command line."""
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument("--steps", type=int, default=400, help="how many")
    run(num_steps=parser.parse_args().steps)


if __name__ == "__main__":
    main()
