"""Small tables with a signal, and their schemas."""

import numpy as np
import pandas as pd

from tacit.data import CategoricalColumn, NumericColumn, NumericTarget, Schema, Target

COLUMNS = (
    NumericColumn(name="dose", low=0, high=10),
    NumericColumn(name="age", low=18, high=90),
    CategoricalColumn(name="city", categories=("Oslo", "Rome")),
)
ILL = Schema(columns=COLUMNS, target=Target(name="ill", classes=("no", "yes")))
WEEKS = Schema(columns=COLUMNS, target=NumericTarget(name="weeks", low=0, high=40))


def patients(num_rows=200, seed=0):
    """Who takes more is ill more often, and for longer."""
    rng = np.random.default_rng(seed)
    dose, age = rng.uniform(0, 10, num_rows), rng.uniform(18, 90, num_rows)
    noise = rng.normal(size=num_rows)
    return pd.DataFrame(
        {
            "dose": dose,
            "age": age,
            "city": rng.choice(["Oslo", "Rome"], num_rows),
            "ill": np.where(dose + noise > 5, "yes", "no"),
            "weeks": 10 + 2 * dose + 2 * noise,
        }
    )
