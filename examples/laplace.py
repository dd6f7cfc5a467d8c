"""Laplace: a regression, or the last layer of a network on fixed features, in ten private steps.

`run` fits a logistic regression to census records. `last_layer` tells even digits from odd ones by
a head on scattering features, which are fixed: no record has a part in them. An embedding that was
made from public data would serve as well.
"""

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import tacit
from examples.census import BUDGET, Scores, census, main, network, scores
from tacit.inference import synthetic_records
from tacit.models import MLP, Bernoulli, GaussianPrior, Scattering, extract_features

__all__ = ["last_layer", "run"]


def run(
    num_steps: int = 10, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Fits a logistic regression on all 87 features."""
    train, test = census(num_records)
    # A record has one feature for each level of fourteen columns, and a bias: no norm is above 4.
    method = tacit.Laplace(release=_engine(len(train.y), clip_norm=4.0))
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=num_steps), BUDGET)
    fit = tacit.fit(plan, network(hidden=()), train, budget=BUDGET, seed=seed)
    return fit, scores(fit, test)


def last_layer(num_steps: int = 10, seed: int | None = None) -> tuple[tacit.Fit, Scores]:
    """Fits a Bayesian last layer on fixed features of scikit-learn's digits."""
    images, digits = load_digits(return_X_y=True)
    front_end = Scattering(image_shape=(8, 8), num_scales=1, num_orientations=4, num_groups=None)
    pixels = jnp.asarray(images.reshape(-1, 8, 8) / 16, jnp.float32)
    features = extract_features(front_end, pixels).reshape(len(pixels), -1)
    records = tacit.as_records(np.asarray(features), digits % 2)
    train, test = (
        tacit.Record(*(leaf[part] for leaf in records[:3]))
        for part in (slice(None, 1400), slice(1400, None))
    )
    model = tacit.bayesian(
        MLP(num_inputs=features.shape[1], num_outputs=1),
        prior=GaussianPrior(std=3.0),
        likelihood=Bernoulli(),
    )
    # Features of random images say how long a gradient and its curvature can be.
    noise = np.random.default_rng(0).uniform(size=(256, 8, 8)).astype(np.float32)
    made_up = extract_features(front_end, noise).reshape(256, -1)
    clip_norm = tacit.Laplace.clip_norm_for(model, synthetic_records(model, made_up))
    method = tacit.Laplace(release=_engine(len(train.y), clip_norm=clip_norm))
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=num_steps), BUDGET)
    fit = tacit.fit(plan, model, train, budget=BUDGET, seed=seed)
    return fit, scores(fit, test)


def _engine(num_records: int, *, clip_norm: float) -> tacit.GaussianSum:
    return tacit.GaussianSum(
        sampling=tacit.FullBatch(num_records=num_records),
        clip_norm=clip_norm,
        noise_multiplier=1.0,
    )


if __name__ == "__main__":
    main(run)
