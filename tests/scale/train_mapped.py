"""Trains on a memory-mapped table and prints what memory it took: rows, columns, folder."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from large_tables import sparse_table

import tacit
from tacit.models import MLP, Bernoulli, GaussianPrior, bayesian


def main(num_records: int, num_columns: int, folder: str) -> None:
    """Fits 60 steps."""
    source = sparse_table(Path(folder), num_records=num_records, num_columns=num_columns)
    sampling = tacit.PoissonBatch(num_records=num_records, batch_size=1024)
    release = tacit.GaussianSum(sampling=sampling, clip_norm=1.0, noise_multiplier=1.0)
    plan = tacit.Plan(
        method=tacit.SGLD.fixed_noise(release=release, step_size=1.0 / num_records), num_steps=60
    )
    model = bayesian(
        MLP(num_inputs=num_columns, num_outputs=1, hidden=(16,)),
        prior=GaussianPrior(std=1.0),
        likelihood=Bernoulli(),
    )
    fit = tacit.fit(
        plan, model, tacit.OnHost(source), budget=tacit.Budget(epsilon=1e3, delta=1e-9), seed=0
    )
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(
        json.dumps(
            {
                "peak": int(status["VmHWM"].split()[0]) / 1e3,
                "num_steps": fit.checkpoint.step,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
