"""Zhang et al.'s figures 1 and 2: DP-SGLD inside the DP-SGD family, and what sizes do to each.

Their theorem 1: DP-SGLD with drift ``eta`` is DP-SGD with learning rate ``eta n`` and noise
multiplier ``B / (n sqrt(eta) C)``. So for SGLD epsilon follows from batch size, learning rate and
clip; for SGD it is chosen apart from them. Batches of 256, delta 1e-5, as there. Different: a
network of 784-100-10 instead of the CNN and 5 epochs instead of 15, so that a cell takes seconds;
both are judged by their last iterate.
"""

import math

import optax

import tacit
from experiments.cells import Experiment, Measured, Settings, main
from experiments.images import image_set
from experiments.scoring import class_scores, predictions
from tacit.inference.method import Method
from tacit.models import MLP, Categorical, FlatPrior

__all__ = ["EXPERIMENT", "cell", "coupled_noise", "method_of", "swept"]

_BATCH_SIZES = (128, 256, 512, 1024)
_LEARNING_RATES = (0.05, 0.25, 1.0)
_CLIP_NORMS, _NOISES = (0.5, 1.5, 5.0), (0.7, 1.3, 3.0)
_NUM_IMAGES, _NUM_EPOCHS = 60_000, 5
_NO_LIMIT = 1000.0


def measure(settings: Settings, seed: int) -> Measured:
    """Fits with the noise that the cell states; its epsilon is what that costs."""
    train, test = image_set(settings["data"], flat=True)
    model = tacit.bayesian(
        MLP(num_inputs=784, hidden=tuple(settings["hidden"]), num_outputs=10),
        prior=FlatPrior(),
        likelihood=Categorical(num_classes=10),
    )
    plan = tacit.Plan(method=method_of(settings, len(train.y)), num_steps=settings["num_steps"])
    budget = tacit.Budget(epsilon=_NO_LIMIT, delta=settings["delta"])
    fit = tacit.fit(plan, model, train, budget=budget, seed=seed)
    scores = class_scores(predictions(fit.posterior, test.x), test)
    return Measured(scores | {"epsilon": fit.statement.epsilon}, fit.statement)


def papers_batch(num_records: int, batch_size: int) -> tacit.PoissonBatch:
    """Returns a Poisson batch with room for nearly every draw, so that its mean is its size."""
    room = math.ceil(batch_size + 5 * math.sqrt(batch_size))
    return tacit.PoissonBatch(
        num_records=num_records, batch_size=batch_size, max_batch_size=min(room, num_records)
    )


def method_of(settings: Settings, num_records: int) -> Method:
    """Returns the member of the family; the learning rate is on the mean gradient."""
    sampling = papers_batch(num_records, settings["batch_size"])
    clip_norm, rate = settings["clip_norm"], settings["learning_rate"]
    if settings["method"] == "SGLD":
        return tacit.SGLD.zhang(
            sampling=sampling, clip_norm=clip_norm, learning_rate=rate / num_records
        )
    return tacit.SGD(
        release=tacit.GaussianSum(
            sampling=sampling, clip_norm=clip_norm, noise_multiplier=settings["noise_multiplier"]
        ),
        optimizer=optax.sgd(rate),
    )


def coupled_noise(batch_size: int, learning_rate: float, clip_norm: float) -> float:
    """Returns the multiplier of DP-SGD that equals DP-SGLD on MNIST, by their theorem 1.

    Example:
      >>> round(coupled_noise(256, 0.3, 1.5), 3)  # their DP-SGLD, with eta = 5e-6
      1.272
    """
    return batch_size / ((_NUM_IMAGES * learning_rate) ** 0.5 * clip_norm)


def cell(
    method: str,
    *,
    batch_size: int = 256,
    learning_rate: float = 0.25,
    clip_norm: float = 1.5,
    noise_multiplier: float = 1.3,
) -> Settings:
    """Returns the settings of one point."""
    if method == "SGLD":
        noise_multiplier = round(coupled_noise(batch_size, learning_rate, clip_norm), 4)
    return {
        "data": "mnist",
        "hidden": [100],
        "method": method,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "clip_norm": clip_norm,
        "noise_multiplier": noise_multiplier,
        "num_steps": round(_NUM_EPOCHS * _NUM_IMAGES / batch_size),
        "delta": 1e-5,
    }


def swept(method: str, name: str) -> list[Settings]:
    """Returns the points at which only the batch size, or only the learning rate, changes."""
    if name == "batch_size":
        return [cell(method, batch_size=size) for size in _BATCH_SIZES]
    return [cell(method, learning_rate=rate) for rate in _LEARNING_RATES]


def _cells() -> list[Settings]:
    sweeps = [cell(method) for method in ("SGD", "SGLD")]
    for method in ("SGD", "SGLD"):
        sweeps += swept(method, "batch_size") + swept(method, "learning_rate")
    # A clip of 5 would leave a multiplier of 0.42, too little for any bound at this delta.
    sweeps += [cell("SGLD", clip_norm=clip_norm) for clip_norm in (0.5, 1.0, 3.0)]
    sweeps += [
        cell("SGD", clip_norm=clip_norm, noise_multiplier=noise)
        for noise in _NOISES
        for clip_norm in _CLIP_NORMS
    ]
    return [settings for i, settings in enumerate(sweeps) if settings not in sweeps[:i]]


EXPERIMENT = Experiment(
    name="zhang_family",
    cells=_cells(),
    num_seeds=1,
    measure=measure,
    quick={"data": "digits", "batch_size": 32, "num_steps": 4},
)

if __name__ == "__main__":
    main(EXPERIMENT)
