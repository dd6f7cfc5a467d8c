"""A small table, a small model and plans, for tables wherever they are."""

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.typing import Record

NUM_RECORDS = 203  # no multiple of any number of shards
BUDGET = tacit.Budget(epsilon=1e3, delta=1e-5)


def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_RECORDS, 5))
    return tacit.as_records(x, rng.integers(0, 3, NUM_RECORDS))


def model():
    return bayesian(
        MLP(num_inputs=5, num_outputs=3, hidden=(8,)),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=3),
    )


def release(sampling=None, noise_multiplier=2.0):
    if sampling is None:
        sampling = tacit.PoissonBatch(num_records=NUM_RECORDS, batch_size=40)
    return tacit.GaussianSum(sampling=sampling, clip_norm=1.0, noise_multiplier=noise_multiplier)


def plan(num_steps=9, num_chains=2):
    method = tacit.SGLD.fixed_noise(release=release(), step_size=1e-3)
    return tacit.Plan(method=method, num_steps=num_steps, thinning=2, num_chains=num_chains)


def fitted(records, plan, **options):
    return tacit.fit(plan, MODEL, records, budget=BUDGET, seed=0, **options)


def assert_same_states(one, other, *, atol=0.0):
    for a, b in zip(
        jax.tree.leaves(one.posterior.kept), jax.tree.leaves(other.posterior.kept), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


ROUNDING = 2e-6
"""How far states may be apart whose sums were made of other blocks, and so rounded otherwise."""


class RowsInMemory:
    """A source of rows that counts what it is asked for."""

    def __init__(self, records):
        self.rows = jax.tree.map(np.asarray, records)
        self.num_records = len(jax.tree.leaves(self.rows)[0])
        self.asked = []

    @property
    def record(self) -> Record:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.rows
        )

    def read(self, indices):
        self.asked.append(len(indices))
        return jax.tree.map(lambda leaf: leaf[indices], self.rows)


MODEL = model()  # one, so that kernels are compiled once
PARAMS = MODEL.init(tacit.rng.seeded_key(1))
RECORDS = table()


def record_loss(params, record, key):
    return -MODEL.log_likelihood(params, record, key)


def gradient(release, records, seed=3):
    key = tacit.rng.seeded_key(seed)
    return jax.jit(lambda data: release.gradient(key, record_loss, PARAMS, data))(records)


def largest_difference(one, other):
    return max(
        float(jnp.abs(a - b).max())
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )
