"""What the experiments on Zhang et al.'s tables share: images, network and method from settings."""

import time
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

import tacit
from experiments.architectures import zhang_mnist_cnn, zhang_mnist_mlp
from experiments.cells import Settings
from experiments.images import image_set
from experiments.straightening import straightened
from tacit.inference.method import Method
from tacit.models import CNN, MLP, Categorical, FlatPrior, GaussianPrior, LaplacePrior, Model
from tacit.models.base import Prior
from tacit.models.layers import Activation
from tacit.typing import Array, Key, Params, Record

__all__ = ["Fitted", "fitted", "images", "method_of", "model_of"]

_DROPOUT = 0.5
_PRIORS: dict[str, Prior] = {
    "gaussian": GaussianPrior(std=0.1),
    "laplace": LaplacePrior(scale=0.1),
    "none": FlatPrior(),
}


class Fitted(NamedTuple):
    """A run, the public images that it is judged by, and how long it took, compiling included."""

    fit: tacit.Fit
    test: Record
    seconds: float


def fitted(settings: Settings, seed: int) -> Fitted:
    """Runs what the settings say, within their epsilon."""
    train, test = images(settings)
    is_private = settings["epsilon"] != "infinity"
    budget = (
        tacit.Budget(epsilon=settings["epsilon"], delta=settings["delta"])
        if is_private
        else tacit.Budget.non_private()
    )
    plan = tacit.Plan(
        method=method_of(settings, len(train.y)),
        num_steps=settings["num_steps"],
        burn_in=settings.get("burn_in", 0),
        thinning=settings.get("thinning"),
    )
    if is_private:
        plan = tacit.calibrate(plan, budget)
    start = time.perf_counter()
    fit = tacit.fit(plan, model_of(settings), train, budget=budget, seed=seed)
    for leaf in jax.tree.leaves(fit.posterior.kept):
        leaf.block_until_ready()
    return Fitted(fit, test, time.perf_counter() - start)


def images(settings: Settings) -> tuple[Record, Record]:
    """Returns training and test images; standardised ones lose their own mean and spread.

    Upright ones are straightened before. A record's moments are functions of that record alone, so
    this costs nothing.
    """
    parts = image_set(settings["data"])
    inputs, is_flat = settings["inputs"], settings["network"] == "mlp"

    def seen(part: Record) -> Record:
        x = straightened(part.x) if inputs == "upright" else np.asarray(part.x)
        if inputs != "pixels":
            x = _standardised(x)
        return part._replace(x=jnp.asarray(x.reshape(len(x), -1) if is_flat else x))

    return seen(parts.train), seen(parts.test)


def _standardised(x: NDArray[np.float32]) -> NDArray[np.float32]:
    axes = tuple(range(1, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.maximum(centred.std(axis=axes, keepdims=True), 1e-3)


def model_of(settings: Settings) -> Model:
    """Returns the paper's network under a prior; its last layer may begin smaller than usual."""
    dropout = _DROPOUT if settings["method"] == "MC dropout" else 0.0
    is_mlp = settings["network"] == "mlp"
    network: MLP | CNN = (zhang_mnist_mlp if is_mlp else zhang_mnist_cnn)(dropout=dropout)
    if "hidden" in settings:
        network = replace(network, hidden=tuple(settings["hidden"]))
    network = replace(network, activation=Activation(settings["activation"]))
    model = tacit.bayesian(
        network, prior=_PRIORS[settings["prior"]], likelihood=Categorical(num_classes=10)
    )
    last, factor = f"dense_{len(network.hidden)}", settings["last_layer_init"]

    def init(key: Key) -> Params:
        params = model.init(key)
        layers = params["network"]
        smaller: Array = factor * layers[last]["kernel"]
        layers = layers | {last: layers[last] | {"kernel": smaller}}
        return params | {"network": layers}

    return model._replace(init=init)


def method_of(settings: Settings, num_records: int) -> Method:
    """Returns the method; learning rates are on the mean gradient, as in the paper's theorem 1."""
    sampling = tacit.PoissonBatch(num_records=num_records, batch_size=settings["batch_size"])
    is_private = settings["epsilon"] != "infinity"
    release = (
        tacit.GaussianSum(
            sampling=sampling,
            clip_norm=settings["clip_norm"],
            noise_multiplier=1.0,
            chunk_size=settings.get("chunk_size"),
        )
        if is_private
        else tacit.GaussianSum.non_private(sampling=sampling)
    )
    rate, momentum = settings["learning_rate"], settings.get("momentum", 0.0)
    match settings["method"]:
        case "SGLD" if momentum:
            step: dict[str, Any] = {"step_size": rate / num_records, "friction": 1 - momentum}
            if is_private:
                return tacit.SGHMC.fixed_noise(release=release, **step)
            return tacit.SGHMC.non_private(
                sampling=sampling, temperature=settings["temperature"], **step
            )
        case "SGLD":
            step_size = 2 * rate / num_records
            if is_private:
                return tacit.SGLD.fixed_noise(release=release, step_size=step_size)
            return tacit.SGLD.non_private(
                sampling=sampling, step_size=step_size, temperature=settings["temperature"]
            )
        case "BBP":
            guide = tacit.MeanField(init_std=settings["guide_std"])
            return tacit.VI.zhang(
                release=release,
                optimizer=optax.sgd(rate, momentum or None),
                guide=guide,
            )
        case "SGD" | "MC dropout":
            return tacit.SGD(release=release, optimizer=optax.sgd(rate, momentum or None))
        case other:
            raise ValueError(f"no method {other!r}")
