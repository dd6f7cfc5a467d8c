"""What rehearsals say of the candidates for six tables: from their schemas alone.

At one epsilon there is a second rehearsal of each, with truths from the prior as it is.
"""

import math

import tacit
from experiments.cells import Experiment, Measured, Settings, main
from experiments.rehearsed_tables import EXPERIMENT as REALISED
from experiments.rehearsed_tables import LARGE, prepared_of
from experiments.small_tables import parts_of, schema_of
from tacit.rehearsal import plausible_truths, rehearse

__all__ = ["EXPERIMENT", "PRIOR_EPSILON"]

PRIOR_EPSILON = 1.0
"""Where candidates are rehearsed with truths from the prior, too."""

_KEPT = ("coverage", "width", "accuracy", "best_accuracy", "rmse", "best_rmse", "nll", "ece")


def measure(settings: Settings, seed: int) -> Measured:
    """Rehearses a candidate; the real table lends nothing but its number of records."""
    schema, train = schema_of(settings["table"]), parts_of(settings["table"], 0).train
    prepared = prepared_of(settings, len(train.y))
    plan, model, budget = prepared.plan, prepared.model, prepared.budget
    kinds = {"": plausible_truths(model, schema)}
    # A large table has a narrow prior already.
    if settings["epsilon"] == PRIOR_EPSILON and settings["table"] != LARGE:
        kinds["prior: "] = None
    scores = {}
    for kind, truths in kinds.items():
        found = rehearse(
            plan,
            model,
            schema,
            budget=budget,
            num_repeats=settings["num_repeats"],
            truths=truths,
            seed=seed,
        )
        for name in _KEPT:
            if not math.isnan(found.mean(name)):
                scores[f"{kind}{name}"] = found.mean(name)
    # For what a fit of the same plan promises.
    statement = tacit.fit(plan, model, train, budget=budget, seed=seed).statement
    return Measured(scores, statement)


def _cell(settings: Settings) -> Settings:
    kept = {name: value for name, value in settings.items() if name != "num_parts"}
    return kept | {"num_repeats": 2 if settings["table"] == LARGE else 10}


EXPERIMENT = Experiment(
    name="rehearsed_predictions",
    cells=tuple(_cell(settings) for settings in REALISED.cells),
    num_seeds=1,
    measure=measure,
    quick={"table": "diabetes", "num_steps": 4, "num_repeats": 1},
)

if __name__ == "__main__":
    main(EXPERIMENT)
