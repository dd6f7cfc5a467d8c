"""A seeded fit in a process of its own; prints what computed the noise and a digest of draws."""

import hashlib

import jax
import numpy as np
import optax

from tacit import native
from tacit.data import as_records
from tacit.inference import SGD, Plan, fit
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch

if __name__ == "__main__":
    x = np.random.default_rng(0).normal(size=(200, 3))
    release = GaussianSum(
        sampling=PoissonBatch(num_records=200, batch_size=20), clip_norm=1.0, noise_multiplier=1.0
    )
    result = fit(
        Plan(method=SGD(release=release, optimizer=optax.sgd(0.5)), num_steps=5),
        bayesian(
            MLP(num_inputs=3, hidden=(300,), num_outputs=2),
            prior=GaussianPrior(std=1.0),
            likelihood=Categorical(num_classes=2),
        ),
        as_records(x, (x[:, 0] > 0).astype(int)),
        budget=Budget(epsilon=8.0, delta=1e-4),
        seed=0,
    )
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.posterior.kept)]
    assert result.statement.software["generator"] == native.name()
    print(native.name(), hashlib.sha256(b"".join(leaves)).hexdigest(), sep=",")
