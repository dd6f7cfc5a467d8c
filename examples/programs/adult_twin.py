"""A synthetic twin of the census table: private draws of whole rows, and what they are good for."""

import jax
import numpy as np
import numpyro
from numpyro.infer import Trace_ELBO

from examples.programs.command import Outcome, main
from tacit.data import ADULT_SCHEMA, load_adult
from tacit.numpyro import DPSVI
from tacit.synthetic.rows import RowCode
from tacit.synthetic.tables import synthetic_tables, table_utility
from tacit.synthetic.twin import twin_guide, twin_program

__all__ = ["CODE", "run"]

CODE = RowCode(
    schema=ADULT_SCHEMA,
    whole=("age", "education_num", "capital_gain", "capital_loss", "hours_per_week"),
    atoms=(("capital_gain", 0), ("capital_loss", 0), ("hours_per_week", 40)),
)
"""All numbers are whole. Most people have no capital gain or loss, and an ordinary week."""


def run(
    num_steps: int = 2000,
    num_records: int | None = None,
    epsilon: float = 1.0,
    seed: int | None = None,
    num_tables: int = 3,
) -> Outcome:
    """Fits the twin, draws tables as long as the real one, and trains a classifier on each."""
    train, test = (table[:num_records] for table in load_adult())
    program = twin_program(CODE, num_components=16)
    guide = twin_guide(program)
    svi = DPSVI(
        program,
        guide,
        numpyro.optim.Adam(0.02),
        Trace_ELBO(),
        epsilon=epsilon,
        clip_norm=2.0,
        batch_size=min(1024, len(train) // 4),
        seed=seed,
    )
    key, draw_key, table_key = jax.random.split(jax.random.key(seed or 0), 3)
    result = svi.run(key, num_steps, CODE.encode(train), progress_bar=False)
    draws = guide.sample_posterior(draw_key, result.params, sample_shape=(num_tables,))
    tables = synthetic_tables(
        table_key, program, draws, code=CODE, num_rows=len(train), num_tables=num_tables
    )
    # Adult is public, so that real rows may be looked at for comparison.
    found = [table_utility(t, real=train, test=test, schema=ADULT_SCHEMA) for t in tables]
    scores = {
        "AUC": float(np.mean([one.synthetic.auc for one in found])),
        "AUC of real rows": found[0].real.auc,
        "accuracy": float(np.mean([one.synthetic.accuracy for one in found])),
        "accuracy of real rows": found[0].real.accuracy,
        "distance of marginals": float(np.mean([list(one.marginals.values()) for one in found])),
    }
    return Outcome(scores, svi.statement(result.state))


if __name__ == "__main__":
    main(run)
