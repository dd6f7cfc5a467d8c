"""What the laws are checked on: every exported method, on models of every kind."""

import jax.numpy as jnp
import numpy as np
import optax

from tacit.certify import certified
from tacit.inference import (
    HMC,
    IVON,
    SGD,
    SGHMC,
    SGLD,
    SWAG,
    VI,
    Ensemble,
    IterateAverage,
    Laplace,
    LowRank,
    Scheduled,
)
from tacit.inference.schedules import Cyclical, Exponential, Polynomial
from tacit.inference.vi import RecordDraws
from tacit.models import (
    CNN,
    MLP,
    Bernoulli,
    Categorical,
    Conv,
    EmbeddingBag,
    FixedGaussian,
    GaussianPrior,
    LaplacePrior,
    MaxPool,
    bayesian,
)
from tacit.privacy.clipping import Normalised, PerLayer
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FixedBatch, FullBatch, PoissonBatch
from tacit.robust import FGSM, Linf, adversarial
from tacit.typing import Record

NUM_RECORDS = 12
CLIP_NORM = 0.8

poisson = PoissonBatch(num_records=NUM_RECORDS, batch_size=4, max_batch_size=5)
full = FullBatch(num_records=NUM_RECORDS)
fixed = FixedBatch(num_records=NUM_RECORDS, batch_size=5)


def engine(sampling=poisson, **changes):
    settings = {"clip_norm": CLIP_NORM, "noise_multiplier": 1.1} | changes
    return GaussianSum(sampling=sampling, **settings)


METHODS = {
    "SGD": SGD(release=engine(), optimizer=optax.sgd(0.1)),
    "SGD with Adam": SGD(release=engine(full), optimizer=optax.adam(0.1)),
    "SGD on fixed batches": SGD(release=engine(fixed), optimizer=optax.sgd(0.1)),
    "SGD per layer": SGD(release=engine(clipping=PerLayer()), optimizer=optax.sgd(0.1, 0.9)),
    "SGD normalised": SGD(release=engine(clipping=Normalised()), optimizer=optax.sgd(0.1)),
    "SGLD fixed noise": SGLD.fixed_noise(release=engine(), step_size=1e-3),
    "SGLD fixed temperature": SGLD.fixed_temperature(
        sampling=poisson, clip_norm=CLIP_NORM, step_size=1e-3
    ),
    "SGLD decaying": SGLD.fixed_temperature(
        sampling=poisson, clip_norm=CLIP_NORM, step_size=1e-3, schedule=Polynomial(delay=1.0)
    ),
    "SGLD Zhang": SGLD.zhang(sampling=full, clip_norm=CLIP_NORM, learning_rate=1e-3),
    "SGLD Zhang with clip norms that fall": SGLD.zhang(
        sampling=poisson,
        clip_norm=CLIP_NORM,
        learning_rate=1e-3,
        clip_schedule=Polynomial(delay=2.0),
    ),
    "SGD with clip norms that fall": SGD(
        release=engine(), optimizer=optax.sgd(0.1), clip_schedule=Polynomial(delay=1.0)
    ),
    "SGLD Knolle with pre-noise": SGLD.knolle(
        sampling=poisson,
        clip_norm=CLIP_NORM,
        learning_rate=0.1,
        temperature=5.0,
        schedule=Polynomial(delay=2.0),
        pre_noise=0.01,
    ),
    "SWAG": SWAG(base=SGLD.fixed_noise(release=engine(), step_size=1e-3), start=1, rank=2),
    "IterateAverage": IterateAverage(base=SGD(release=engine(), optimizer=optax.sgd(0.1)), start=0),
    "Ensemble": Ensemble(
        member=SGD(release=engine(FullBatch(num_records=6)), optimizer=optax.sgd(0.1)),
        num_shards=2,
    ),
    "Scheduled": Scheduled(
        base=SGD(release=engine(), optimizer=optax.sgd(0.1)),
        transform=lambda model, step: model._replace(
            log_likelihood=lambda w, r, k: (1 + step) * model.log_likelihood(w, r, k)
        ),
    ),
    "HMC": HMC(gradient=engine(full), ratio=engine(full), step_size=0.1, num_leapfrog=2),
    "HMC reusing gradients": HMC(
        gradient=engine(full),
        ratio=engine(full, noise_multiplier=0.7),
        step_size=0.1,
        num_leapfrog=2,
        jitter=0.3,
        reuse_gradient=True,
    ),
    "HMC with Poisson gradients": HMC(
        gradient=engine(), ratio=engine(full), step_size=0.1, num_leapfrog=2, mass=2.0
    ),
    "HMC on the paths of a standard normal": HMC(
        gradient=None, ratio=engine(full), step_size=0.1, num_leapfrog=2
    ),
    "VI": VI(release=engine(), optimizer=optax.sgd(0.1)),
    "VI low rank with per-record draws": VI(
        release=engine(), optimizer=optax.sgd(0.1), guide=LowRank(rank=2), draws=RecordDraws()
    ),
    "VI with Adam on full batches and several particles": VI(
        release=engine(full), optimizer=optax.adam(0.1), num_particles=2
    ),
    "IVON": IVON(release=engine(), learning_rate=0.1),
    "Laplace": Laplace(release=engine(full)),
    "Laplace on Poisson batches with noise that falls": Laplace(
        release=engine(), noise_schedule=Exponential(half_life=2.0)
    ),
    "Laplace with a curvature of low rank": Laplace(release=engine(full), rank=2),
    "Laplace with a level alone, on Poisson batches": Laplace(release=engine(), rank=0),
    "SGHMC": SGHMC.fixed_noise(release=engine(full), step_size=1e-3, friction=0.1),
    "SGHMC cyclical": SGHMC.fixed_temperature(
        sampling=poisson,
        clip_norm=CLIP_NORM,
        step_size=1e-3,
        friction=0.1,
        schedule=Cyclical(num_steps=3),
    ),
}


def table(kind, seed=0):
    generator = np.random.default_rng(seed)
    shape = (NUM_RECORDS, 3) if kind == "grouped" else (NUM_RECORDS,)
    x = {
        "conv": generator.normal(size=(*shape, 6, 6, 1)),
        "embedding": generator.integers(0, 11, size=(*shape, 4)),
    }.get(kind, generator.normal(size=(*shape, 5)))
    y = generator.normal(size=shape) if kind == "regression" else generator.integers(0, 2, shape)
    as_type = np.int32 if kind == "embedding" else np.float32
    mask = jnp.asarray(generator.random(shape) < 0.7) if kind == "grouped" else None
    return Record(
        jnp.asarray(x.astype(as_type)),
        jnp.asarray(y.astype(np.float32 if kind == "regression" else np.int32)),
        jnp.asarray(generator.uniform(0.2, 1.0, shape), jnp.float32),
        mask,
    )


prior = GaussianPrior(std=1.0)
two_classes = Categorical(num_classes=2)
small = MLP(num_inputs=5, hidden=(4,), num_outputs=2)
ball = Linf(radius=0.2, low=-3.0, high=3.0)
MODELS = {
    "dense": bayesian(
        MLP(num_inputs=5, hidden=(4,), num_outputs=2), prior=prior, likelihood=two_classes
    ),
    "conv": bayesian(
        CNN(
            input_shape=(6, 6, 1),
            stages=(Conv(features=2, kernel=3), MaxPool(window=2, stride=1)),
            num_outputs=2,
        ),
        prior=LaplacePrior(scale=0.5),
        likelihood=two_classes,
    ),
    "dropout": bayesian(
        MLP(num_inputs=5, hidden=(6,), num_outputs=1, dropout=0.5),
        prior=prior,
        likelihood=Bernoulli(),
    ),
    "embedding": bayesian(
        EmbeddingBag(num_tokens=11, num_features=3, num_outputs=2),
        prior=prior,
        likelihood=two_classes,
    ),
    "grouped": bayesian(
        MLP(num_inputs=5, hidden=(4,), num_outputs=2), prior=prior, likelihood=two_classes
    ),
    "regression": bayesian(
        MLP(num_inputs=5, hidden=(3,), num_outputs=1),
        prior=prior,
        likelihood=FixedGaussian(std=0.5),
    ),
    "adversarial": adversarial(
        bayesian(small, prior=prior, likelihood=two_classes), FGSM(ball=ball)
    ),
    "certified": certified(
        bayesian(small, prior=prior, likelihood=two_classes), small, ball, weight=0.3
    ),
}
