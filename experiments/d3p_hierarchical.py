"""d3p's figures 4, 5 and 6: AUC of hierarchical logistic regression on small simulated tables.

Figure 4 varies epsilon at 500 records and 100 000 steps, figure 5 the number of records, figure 6
the number of steps. The paper gives neither batch size nor learning rate; those of its listing 3
and a rate of one tenth were taken, and nothing was tuned.
"""

import jax
import numpyro
from examples.programs.hierarchical_logistic_regression import auc, guide, model, people
from numpyro.infer import Trace_ELBO
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from experiments.cells import Experiment, Measured, Settings, main
from tacit.numpyro import DPSVI

__all__ = ["EPSILONS", "EXPERIMENT", "NUM_RECORDS", "NUM_STEPS", "baseline"]

EPSILONS = (2.0, 4.0, 8.0, "infinity")
NUM_RECORDS = (100, 200, 500, 1000)
NUM_STEPS = (1_000, 10_000, 100_000)


def measure(settings: Settings, seed: int) -> Measured:
    """Fits one table; the table is the same for all seeds."""
    num_records = settings["num_records"]
    train, test = people(num_records)
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.Adam(settings["learning_rate"]),
        Trace_ELBO(),
        epsilon=float(settings["epsilon"]),
        delta=1 / num_records,
        clip_norm=float(settings["clip_norm"]),
        batch_size=settings["rate"] * num_records,
        public=("gs",),
        seed=seed,
    )
    key, prediction_key = jax.random.split(jax.random.key(seed))
    result = svi.run(key, settings["num_steps"], *train, num_records, progress_bar=False)
    return Measured({"AUC": auc(prediction_key, result.params, test)}, svi.statement(result.state))


def baseline(num_records: int) -> float:
    """Returns the AUC of plain logistic regression, neither hierarchical nor private."""
    train, test = people(num_records)
    plain = LogisticRegression().fit(train.xs, train.ys)
    return float(roc_auc_score(test.ys, plain.predict_proba(test.xs)[:, 1]))


def _cell(epsilon: float | str, num_records: int = 500, num_steps: int = 100_000) -> Settings:
    return {
        "epsilon": epsilon,
        "num_records": num_records,
        "num_steps": num_steps,
        "clip_norm": epsilon if epsilon == "infinity" else 1.0,
        "rate": 0.1,
        "learning_rate": 1e-3,
    }


EXPERIMENT = Experiment(
    name="d3p_hierarchical",
    cells=(
        *(_cell(epsilon) for epsilon in EPSILONS),
        *(_cell(epsilon, num_steps=n) for n in NUM_STEPS if n != 100_000 for epsilon in EPSILONS),
        *(_cell(epsilon, num_records=n) for n in NUM_RECORDS if n != 500 for epsilon in EPSILONS),
    ),
    num_seeds=3,
    measure=measure,
    quick={"num_records": 100, "num_steps": 10},
)

if __name__ == "__main__":
    main(EXPERIMENT)
