"""What the robust examples share: small images of digits that come with scikit-learn."""

import numpy as np
from sklearn.datasets import load_digits

import tacit
from tacit.models import MLP, Categorical, GaussianPrior
from tacit.robust import Linf

__all__ = ["BALL", "BUDGET", "NETWORK", "digits", "engine", "plain_model"]

BUDGET = tacit.Budget(epsilon=8.0, delta=1e-4)
BALL = Linf(radius=0.1, low=0.0, high=1.0)
NETWORK = MLP(num_inputs=64, hidden=(64,), num_outputs=10)


def digits(num_records: int | None = None) -> tuple[tacit.Record, tacit.Record]:
    """Returns 1400 private images with pixels from 0 to 1, and 397 public ones to test on."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = images[order] / 16.0, labels[order]
    train = tacit.as_records(x[:1400][:num_records], y[:1400][:num_records])
    return train, tacit.as_records(x[1400:], y[1400:])


def plain_model() -> tacit.Model:
    """Returns the network under a prior, not robust yet."""
    return tacit.bayesian(
        NETWORK, prior=GaussianPrior(std=0.5), likelihood=Categorical(num_classes=10)
    )


def engine(num_records: int) -> tacit.GaussianSum:
    """Returns the engine; calibration will set its noise to what the budget asks for."""
    return tacit.GaussianSum(
        sampling=tacit.PoissonBatch(num_records=num_records, batch_size=num_records / 5),
        clip_norm=1.0,
        noise_multiplier=1.0,
    )
