"""Scores of one rehearsed run, by the true parameters that made its records."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit import _tree, metrics
from tacit.inference.clip_norm import gradient_norm
from tacit.inference.evidence import MAX_PARAMETERS, has_hidden_layers
from tacit.inference.fit import Fit
from tacit.inference.laplace import Laplace, joint_norm
from tacit.metrics.uncertainty import RegressionUncertainty
from tacit.models import Model
from tacit.models.base import Moments
from tacit.posterior import Posterior, predict
from tacit.privacy.clipping import Flat
from tacit.rehearsal.outlook import engine_of, signal_to_noise, simulated_signal
from tacit.rehearsal.simulated import DataSet
from tacit.rng import seeded_key
from tacit.typing import Array, Params, Record, Scalar

__all__ = ["MEASURES", "Scorer"]

MEASURES: Mapping[str, str] = {
    "coverage": "intervals that contain the truth",
    "width": "width of intervals over that without privacy",
    "cautioned": "posteriors that warn about their intervals",
    "accuracy": "accuracy",
    "best_accuracy": "accuracy given the true parameters",
    "rmse": "root mean square error",
    "best_rmse": "root mean square error given the true parameters",
    "nll": "negative log likelihood",
    "best_nll": "negative log likelihood given the true parameters",
    "ece": "expected calibration error",
    "confidence": "mean confidence",
    "clipped": "records clipped at the true parameters",
    "signal_to_noise": "signal-to-noise ratio at the start",
    "acceptance": "proposals that are accepted",
    "seconds": "seconds of one run",
}
"""What is measured, in the order in which it is shown."""

_NUM_POINTS = 30
"""Inputs at which the intervals of a network's predictions are looked at."""

_NUM_DRAWS = 400
_NUM_NORMS = 1000


class Scorer:
    """Scores runs of one method on one model; compiled once."""

    def __init__(self, method: Any, model: Model, *, level: float) -> None:
        """Compiles nothing yet.

        Args:
          method: of the plan that is rehearsed.
          model: which is fitted.
          level: of the intervals.
        """
        self._model, self._level, self._engine = model, level, engine_of(method)
        size = _tree.size(jax.eval_shape(model.init, seeded_key(0)))
        self._is_function = size > MAX_PARAMETERS or has_hidden_layers(model)
        self._predictions = jax.jit(jax.vmap(functools.partial(_prediction, model), (None, 0)))
        self._ends = jax.jit(jax.vmap(functools.partial(_means, model), (0, None)))
        self._std = jax.jit(functools.partial(_std_without_privacy, model))
        self._informed = jax.jit(functools.partial(_informed, model))
        self._norms = _norms_of(method, model)
        self._clipped_sum = jax.jit(functools.partial(simulated_signal, model))

    def measures(self, found: Fit, data: DataSet, *, seconds: float) -> dict[str, float]:
        """Returns a number for each of `MEASURES`; NaN where there is none.

        Args:
          found: the run.
          data: what it was made on.
          seconds: that it took.
        """
        return {
            **dict.fromkeys(MEASURES, math.nan),
            **self._of_intervals(found.posterior, data),
            **self._of_predictions(found.posterior, data),
            **self._of_clip(found, data),
            "acceptance": _acceptance(found.info),
            "seconds": seconds,
        }

    def _of_intervals(self, posterior: Posterior, data: DataSet) -> dict[str, float]:
        draws = posterior.draws(None if posterior.sampler.min_draws == 1 else _NUM_DRAWS)
        if self._is_function:
            x = jax.tree.map(lambda leaf: leaf[:_NUM_POINTS], data.scored.x)
            values = np.asarray(self._ends(draws, x), np.float64)
            truth = np.asarray(self._ends(_stacked(data.truth), x), np.float64)[0]
        else:
            values = np.asarray(jax.vmap(_flat)(draws), np.float64)
            truth = np.asarray(_flat(data.truth), np.float64)
            # Of a weight on what never occurs, such as a missing value, there is nothing to learn:
            # its interval is that of the prior, which would only flatter the others.
            informed = np.asarray(self._informed(data.truth, data.records))
            values, truth = values[:, informed], truth[informed]
        tail = (1 - self._level) / 2
        low, high = np.quantile(values, [tail, 1 - tail], axis=0)
        row = {
            "coverage": float(np.mean((low <= truth) & (truth <= high))),
            "cautioned": float(bool(posterior.intervals.caveats)),
        }
        if not self._is_function:
            without = np.asarray(self._std(data.truth, data.records), np.float64)[informed]
            row["width"] = float(np.mean(values.std(axis=0)) / np.mean(without))
        return row

    def _of_predictions(self, posterior: Posterior, data: DataSet) -> dict[str, float]:
        best = self._predictions(data.truth, data.scored.x)
        found = predict(posterior, data.scored.x)
        y = np.asarray(data.scored.y)
        if isinstance(found, RegressionUncertainty):
            return {
                "rmse": metrics.rmse(found.mean, y),
                "best_rmse": metrics.rmse(best.mean, y),
                "nll": metrics.gaussian_nll(found.mean, found.total_variance, y),
                "best_nll": metrics.gaussian_nll(best.mean, best.variance, y),
            }
        return {
            "accuracy": metrics.accuracy(found.probabilities, y),
            "best_accuracy": metrics.accuracy(best, y),
            "nll": metrics.nll(found.probabilities, y),
            "best_nll": metrics.nll(best, y),
            "ece": metrics.ece(found.probabilities, y),
            "confidence": float(np.mean(np.max(found.probabilities, axis=1))),
        }

    def _of_clip(self, found: Fit, data: DataSet) -> dict[str, float]:
        engine = self._engine
        if engine is None or not engine.is_private:
            return {}
        few = jax.tree.map(lambda leaf: leaf[:_NUM_NORMS], data.records)
        norms = np.asarray(self._norms(data.truth, few), np.float64)
        start = self._model.init(seeded_key(0))
        total = self._clipped_sum(start, few, engine.clip_norm)
        is_flat = isinstance(engine.clipping, Flat)
        return {
            "clipped": float(np.mean(~(norms <= engine.clip_norm))) if is_flat else math.nan,
            "signal_to_noise": signal_to_noise(found.plan, total, len(norms)),
        }


def _flat(params: Params) -> Array:
    return ravel_pytree(_tree.at_least_float32(params))[0]


def _stacked(params: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], params)


def _prediction(model: Model, params: Params, x: Any) -> Any:
    return model.predict(params, x, seeded_key(0))


def _means(model: Model, params: Params, x: Any) -> Array:
    """Returns what parameters predict at inputs: probabilities or means, flat."""
    found = jax.vmap(lambda row: model.predict(params, row, seeded_key(0)))(x)
    if isinstance(found, Moments):
        return jnp.ravel(found.mean)
    # Probabilities sum to one: of two classes the second says all.
    return jnp.ravel(found[:, 1:] if found.shape[1] == 2 else found)


def _std_without_privacy(model: Model, truth: Params, records: Record) -> Array:
    """Returns the standard deviations of the posterior without privacy, by the curvature there."""
    vector, unflat = ravel_pytree(_tree.at_least_float32(truth))
    key = seeded_key(0)

    def loss(vector: Array) -> Scalar:
        params = unflat(vector)
        each = jax.vmap(lambda record: model.log_likelihood(params, record, key))(records)
        return -jnp.sum(each) - model.log_prior(params)

    values, basis = jnp.linalg.eigh(jax.hessian(loss)(vector))
    return jnp.sqrt(jnp.sum(basis**2 / jnp.maximum(values, 1e-6), axis=1))


def _informed(model: Model, truth: Params, records: Record) -> Array:
    """Returns which parameters any record has a gradient in."""
    vector, unflat = ravel_pytree(_tree.at_least_float32(truth))

    def loss(vector: Array, record: Record) -> Scalar:
        return -model.log_likelihood(unflat(vector), record, seeded_key(0))

    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(vector, records)
    return jnp.any(gradients != 0, axis=0)


def _norms_of(method: Any, model: Model) -> Callable[[Params, Record], Array]:
    """Returns the norms that the engine of a method clips, of each record."""

    @jax.jit
    def norms(params: Params, records: Record) -> Array:
        keys = jax.random.split(seeded_key(0), _tree.num_records(records))
        if isinstance(method, Laplace):
            return jax.vmap(joint_norm(method, model, params))(records, keys)
        return jax.vmap(gradient_norm(model, params))(records, keys)

    return norms


def _acceptance(info: Any) -> float:
    found = getattr(info, "acceptance", None)
    return math.nan if found is None else float(np.mean(found))
