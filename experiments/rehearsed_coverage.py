"""How often intervals contain the truth on six tables, at the defaults and as rehearsed.

Of a real table no truth is known. So the posterior mode without privacy on the whole table is taken
for one, real inputs are kept (rows are drawn with replacement), and targets are drawn from the
model at that truth: a parametric bootstrap. The private plan is then run on each such table.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import tacit
from experiments.cells import Experiment, Measured, Settings, main, read_rows
from experiments.markdown import at
from experiments.rehearsed_predictions import EXPERIMENT as PREDICTIONS
from experiments.rehearsed_tables import DEFAULT, EPSILONS, LARGE, prepared_of
from experiments.small_tables import TABLES, parts_of, whole
from tacit.models import Model
from tacit.rehearsal import rehearse
from tacit.typing import Array, Params, Record, Scalar

__all__ = ["EXPERIMENT", "mode"]

_NUM_REPEATS = 20


def measure(settings: Settings, seed: int) -> Measured:
    """Runs one plan on tables that its model has made at the mode of the real one."""
    records, train = whole(settings["table"]), parts_of(settings["table"], 0).train
    prepared = prepared_of(settings, len(train.y))
    plan, model, budget = prepared.plan, prepared.model, prepared.budget
    truth = mode(model, records)
    found = rehearse(
        plan,
        model,
        records.x,
        budget=budget,
        num_repeats=settings["num_repeats"],
        truths=lambda key: truth,
        seed=seed,
    )
    scores = {name: found.mean(name) for name in ("coverage", "width", "cautioned")}
    scores["error of coverage"] = found.error("coverage")
    statement = tacit.fit(plan, model, train, budget=budget, seed=seed).statement
    return Measured(scores, statement)


def mode(model: Model, records: Record) -> Params:
    """Returns the most probable parameters, without privacy: for public records only."""
    vector, unflat = ravel_pytree(model.init(jax.random.key(0)))
    key = jax.random.key(0)

    def loss(vector: Array) -> Scalar:
        params = unflat(vector)
        each = jax.vmap(lambda record: model.log_likelihood(params, record, key))(records)
        return -jnp.sum(each) - model.log_prior(params)

    slope = jax.jit(jax.value_and_grad(loss))

    def at_point(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = slope(jnp.asarray(point, jnp.float32))
        return float(value), np.asarray(gradient, np.float64)

    found = minimize(at_point, np.asarray(vector, np.float64), jac=True, method="L-BFGS-B")
    return unflat(jnp.asarray(found.x, jnp.float32))


def _cells() -> tuple[Settings, ...]:
    """Returns the default and the rehearsed candidate of each table, which may be the same."""
    rows, cells = read_rows(PREDICTIONS.name), []
    for epsilon in EPSILONS:
        for table in TABLES:
            place = {"table": table, "epsilon": epsilon}
            of_table = at(rows, place)
            chosen = {DEFAULT}
            if of_table:
                chosen.add(
                    min(of_table, key=lambda row: row["scores"]["nll"])["settings"]["candidate"]
                )
            for settings in PREDICTIONS.cells:
                if place.items() <= settings.items() and settings["candidate"] in chosen:
                    cells.append(settings | {"num_repeats": _NUM_REPEATS})
    # Twenty runs on Adult take longer than all the others together.
    return tuple(cell for cell in cells if cell["table"] != LARGE)


EXPERIMENT = Experiment(
    name="rehearsed_coverage",
    cells=_cells(),
    num_seeds=1,
    measure=measure,
    quick={"table": "diabetes", "num_steps": 4, "num_repeats": 1},
)

if __name__ == "__main__":
    main(EXPERIMENT)
