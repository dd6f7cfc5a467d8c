"""Robust posteriors of images: interval training under privacy, and what is certain of the result.

The network averages windows of pixels before anything else, so that fewer weights see noise. For
speed it is trained on averages that were made beforehand, in a ball on them that holds the averages
of every image in the ball of images. Predictions and certificates are of the whole network, with
the ball on the pixels themselves, in [0, 1]. The first layer starts small, the radius grows from
zero, and the states of the last part of the run are the posterior.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import tacit
from experiments.cells import Settings
from experiments.scoring import class_scores, predictions
from tacit.certify import Intervals, Linear, certify_predictive
from tacit.inference.method import Method
from tacit.models import CNN, MLP, Categorical, GaussianPrior
from tacit.models.base import Network
from tacit.models.networks import AveragePool
from tacit.robust import Linf
from tacit.typing import Array, Key, Params, Record, Scalar

__all__ = ["base_method", "budget_of", "certified_share", "robust_fit", "robust_scores"]

_PIXELS = Linf(radius=0.0, low=0.0, high=1.0)
_SIZE = 28


def robust_fit(settings: Settings, train: Record, num_classes: int, seed: int) -> tacit.Fit:
    """Returns the fit; its posterior is of the network that takes images as they are."""
    window = settings["pool"]
    pool = AveragePool(window=window, stride=window)
    shape = (_SIZE, _SIZE, 1)
    whole = CNN(
        input_shape=shape,
        stages=(pool,),
        hidden=tuple(settings["hidden"]),
        num_outputs=num_classes,
    )
    head, averages = whole.head, _averages(train.x, window)
    is_mirrored = settings.get("mirrored", False)
    if is_mirrored:
        averages = _folded(averages, _SIZE // window)
        head = replace(head, num_inputs=averages.shape[1])
    fit = tacit.fit(
        _plan(settings, head, len(train.y)),
        _model(settings, head),
        train._replace(x=averages),
        budget=budget_of(settings),
        seed=seed,
    )
    kept = fit.posterior.kept
    if is_mirrored:
        kept = _unfolded(kept, _SIZE // window)
    return replace(fit, posterior=replace(fit.posterior, kept=kept, model=_model(settings, whole)))


def base_method(settings: Settings, num_records: int) -> Method:
    """Returns the method without what makes it robust; learning rates are of the mean gradient."""
    size = settings["batch_size"]
    full, drawn = tacit.FullBatch, tacit.PoissonBatch
    release = tacit.GaussianSum(
        sampling=full(num_records=num_records)
        if size == num_records
        else drawn(num_records=num_records, batch_size=size),
        clip_norm=settings["clip_norm"],
        noise_multiplier=1.0,
    )
    rate, friction = settings["learning_rate"], settings["friction"]
    if settings["method"] == "VI":
        optimizer = optax.sgd(rate, momentum=1 - friction)
        guide = tacit.MeanField(init_std=settings["guide_std"])
        # As tuned: the guide's own gradient is released, and the last step is kept.
        return tacit.VI.zhang(
            release=release,
            optimizer=optimizer,
            guide=guide,
        )
    return tacit.SGHMC.fixed_noise(release=release, step_size=rate / num_records, friction=friction)


def budget_of(settings: Settings) -> tacit.Budget:
    """Returns what may be spent."""
    return tacit.Budget(epsilon=settings["epsilon"], delta=1e-5)


def robust_scores(posterior: tacit.Posterior, settings: Settings, test: Record) -> dict[str, float]:
    """Returns what is right and what is certain: of the same draws, on all test images."""
    found = predictions(posterior, test.x, num_draws=settings["num_draws"])
    return class_scores(found, test) | certified_share(posterior, settings, test)


def certified_share(
    posterior: tacit.Posterior, settings: Settings, test: Record
) -> dict[str, float]:
    """Returns the share of images that are classified rightly with a certificate.

    Both bounds are certificates of the same predictor, so either is enough, and the dear one is
    asked only about images that the cheap one leaves open.
    """
    ball, num_draws = _PIXELS.at(settings["radius"]), settings["num_draws"]
    cheap = certify_predictive(
        posterior,
        test.x,
        test.y,
        ball,
        bounds=Intervals(),
        num_draws=num_draws,
        batch_size=250,
    )
    by_intervals = np.asarray(cheap.is_right & cheap.is_certified)
    is_open = np.flatnonzero(np.asarray(cheap.is_right) & ~by_intervals)
    by_either = by_intervals.copy()
    if len(is_open):
        dear = certify_predictive(
            posterior,
            test.x[is_open],
            test.y[is_open],
            ball,
            bounds=Linear(),
            num_draws=num_draws,
            batch_size=50,
        )
        by_either[is_open] = np.asarray(dear.is_right & dear.is_certified)
    classes = np.asarray(test.y)
    return {
        "certified": float(by_either.mean()),
        "certified balanced": float(
            np.mean([by_either[classes == label].mean() for label in np.unique(classes)])
        ),
        "certified by intervals": float(by_intervals.mean()),
    }


def _model(settings: Settings, network: CNN | MLP) -> tacit.Model:
    """Returns the network under a prior; weights of the first layer start smaller than usual."""
    model = tacit.bayesian(
        network,
        prior=GaussianPrior(std=settings["prior_std"]),
        likelihood=Categorical(num_classes=network.num_outputs),
    )

    def init(key: Key) -> Params:
        params = model.init(key)
        first = params["network"]["dense_0"]
        small = first | {"kernel": settings["first_layer"] * first["kernel"]}
        return params | {"network": params["network"] | {"dense_0": small}}

    return model._replace(init=init)


def _plan(settings: Settings, network: Network, num_records: int) -> tacit.Plan:
    """Returns the plan, calibrated to the budget."""
    num_steps, every = settings["num_steps"], settings["thinning"]
    stop = max(1, round(settings["ramp"] * num_steps))
    ramp = tacit.inference.Ramp(first=0.0, last=settings["training_radius"], stop=stop)

    def robust(model: tacit.Model, step: Scalar) -> tacit.Model:
        ball = _PIXELS.at(ramp(step))
        return tacit.certified(model, network, ball, weight=settings["clean_weight"])

    method: Any = tacit.inference.Scheduled(
        base=base_method(settings, num_records), transform=robust
    )
    if settings["average"]:
        method = tacit.inference.IterateAverage(base=method, start=0, decay=settings["average"])
    plan = tacit.Plan(
        method=method,
        num_steps=num_steps,
        burn_in=max(0, num_steps - every * settings["num_draws"]),
        thinning=None if settings["method"] == "VI" else every,
    )
    return tacit.calibrate(plan, budget_of(settings))


def _folded(averages: Array, size: int) -> Array:
    """Returns the means of what lies left and right of the middle, mirror images of each other."""
    rows = averages.reshape(-1, size, size)
    return ((rows + rows[:, :, ::-1]) / 2)[:, :, : size // 2].reshape(len(averages), -1)


def _unfolded(params: Params, size: int) -> Params:
    """Returns the same function as weights of both sides."""
    first = params["network"]["dense_0"]
    kernel = first["kernel"]
    half = kernel.reshape(*kernel.shape[:-2], size, size // 2, kernel.shape[-1]) / 2
    both = jnp.concatenate([half, half[..., ::-1, :]], axis=-2)
    whole = first | {"kernel": both.reshape(*kernel.shape[:-2], size * size, kernel.shape[-1])}
    return params | {"network": params["network"] | {"dense_0": whole}}


def _averages(x: Array, window: int) -> Array:
    size = _SIZE // window
    cut = x[:, : size * window, : size * window]
    return jnp.mean(cut.reshape(-1, size, window, size, window), axis=(2, 4)).reshape(len(x), -1)
