"""Private ensembles: members on disjoint shards cost as much as one of them."""

import numpy as np
import optax

import tacit
from examples.census import BUDGET, Scores, census, engine, main, network, scores
from tacit.inference import assign_shards
from tacit.inference.ensemble import shard_records, shard_size

__all__ = ["run"]


def run(
    num_steps: int = 400, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Fits four networks, each to a quarter of the people."""
    train, test = census(num_records)
    # The identity of a person decides the shard: here the row of the original file.
    size = shard_size(len(train.y), 4)
    shards = assign_shards(np.arange(len(train.y)), num_shards=4, salt="examples")
    table = shard_records(train, shards, num_shards=4, size=size)
    member = tacit.SGD(
        release=engine(size, batch_size=512),
        optimizer=optax.sgd(0.2, momentum=0.9),
    )
    method = tacit.Ensemble(member=member, num_shards=4)
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=num_steps), BUDGET)
    fit = tacit.fit(plan, network(), table, budget=BUDGET, seed=seed)
    return fit, scores(fit, test)


if __name__ == "__main__":
    main(run)
