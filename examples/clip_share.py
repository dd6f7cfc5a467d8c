"""How many records the clip shortened: what a statement says beside what is true, over 200 runs.

python -m examples.clip_share
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from tacit.errors import IntervalWarning, PrivacyWarning, UtilityWarning
from tacit.inference.clip_norm import gradient_norm
from tacit.inference.fit import CompiledFit
from tacit.models import MLP, Bernoulli, GaussianPrior
from tacit.rng import seeded_key

__all__ = ["Row", "compare", "main"]

NUM_RECORDS, NUM_FEATURES = 2000, 5
CLIP_NORMS = (0.6, 0.9, 1.2, 1.6)
BUDGET = tacit.Budget(epsilon=1.0, delta=1e-5)
NUM_STEPS = 200


class Row(NamedTuple):
    """What was found, as means over runs.

    Attributes:
      batches: full or Poisson.
      clip_norm: of gradients.
      num_runs: on a data set each.
      true: the share of records whose gradients were longer than the clip norm.
      estimated: the share as released.
      bound: the statement's.
      held: in how many runs the bound held.
    """

    batches: str
    clip_norm: float
    num_runs: int
    true: float
    estimated: float
    bound: float
    held: float


def compare(clip_norm: float, batch_size: int, num_runs: int) -> Row:
    """Fits as many data sets by private SGLD, and counts who was really clipped."""
    sampling: tacit.FullBatch | tacit.PoissonBatch = tacit.FullBatch(num_records=NUM_RECORDS)
    if batch_size < NUM_RECORDS:
        sampling = tacit.PoissonBatch(num_records=NUM_RECORDS, batch_size=batch_size)
    release = tacit.GaussianSum(sampling=sampling, clip_norm=clip_norm, noise_multiplier=1.0)
    method = tacit.SGLD.fixed_noise(release=release, step_size=1.0 / NUM_RECORDS)
    plan = tacit.calibrate(
        tacit.Plan(method=method, num_steps=NUM_STEPS, burn_in=NUM_STEPS // 2, thinning=10),
        BUDGET,
    )
    model = tacit.bayesian(
        MLP(num_inputs=NUM_FEATURES, num_outputs=1),
        prior=GaussianPrior(std=1.0),
        likelihood=Bernoulli(),
    )
    compiled = CompiledFit(plan.method, model)
    keys = jax.random.split(seeded_key(0), NUM_RECORDS)

    @jax.jit
    def clipped(params: tacit.typing.Params, records: tacit.Record) -> jax.Array:
        norms = jax.vmap(gradient_norm(model, params))(records, keys)
        return jnp.mean(norms > clip_norm)

    found = []
    for run in range(num_runs):
        rng = np.random.default_rng(run)
        x = rng.uniform(-1, 1, (NUM_RECORDS, NUM_FEATURES)).astype(np.float32)
        y = rng.random(NUM_RECORDS) < 1 / (1 + np.exp(-x @ rng.normal(size=NUM_FEATURES)))
        records = tacit.as_records(x, y.astype(np.int32))
        fit = tacit.fit(plan, model, records, budget=BUDGET, seed=run, compiled=compiled)
        # The states that the run kept stand for all of its second half.
        draws = (fit.posterior.raw or fit.posterior).draws()
        true = float(np.mean([clipped(_at(draws, i), records) for i in range(10)]))
        assert fit.norms is not None
        found.append((true, fit.norms.clipped, fit.norms.at_most, fit.norms.at_most >= true))
    kind = "full" if batch_size >= NUM_RECORDS else "Poisson"
    return Row(kind, clip_norm, num_runs, *map(float, np.mean(found, axis=0)))


def _at(draws: tacit.typing.Params, index: int) -> tacit.typing.Params:
    return jax.tree.map(lambda leaf: leaf[index], draws)


def main(num_runs: int = 25) -> list[Row]:
    """Prints the rows of the table in docs/uncertainty.md."""
    rows = []
    for batch_size in (NUM_RECORDS, NUM_RECORDS // 10):
        for clip_norm in CLIP_NORMS:
            with warnings.catch_warnings():
                for category in (PrivacyWarning, IntervalWarning, UtilityWarning):
                    warnings.simplefilter("ignore", category)
                row = compare(clip_norm, batch_size, num_runs)
            rows.append(row)
            shares = f"{row.true:.1%} | {row.estimated:.1%} | {row.bound:.1%} | {row.held:.0%}"
            print(f"| {row.batches} | {row.clip_norm:g} | {row.num_runs} | {shares} |", flush=True)
    return rows


if __name__ == "__main__":
    main()
