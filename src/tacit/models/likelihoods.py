"""Likelihoods: how the outputs of a network become a distribution of one target.

A target outside the support (a class that does not exist, a negative or broken count, NaN) has a
log-likelihood of NaN and a gradient of zero with respect to the outputs, or NaN for the Gaussians:
either way its record contributes nothing to a clipped sum. Targets may be whole or floating
numbers, of shape ``()`` or ``(1,)``.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models.base import Likelihood, Moments, part
from tacit.typing import Array, Key, Scalar

__all__ = [
    "Bernoulli",
    "Categorical",
    "FixedGaussian",
    "HeteroscedasticGaussian",
    "LearntGaussian",
    "NegativeBinomial",
    "ParameterFree",
    "PoissonCounts",
    "WorstAtCorner",
]

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def _scalar(y: Array) -> Array:
    y = jnp.asarray(y)
    if y.size != 1:
        raise InvalidArgumentError(f"a target must be one number; got shape {y.shape}.")
    return jnp.reshape(y, ())


def _normal(key: Key, moments: Moments) -> Array:
    noise = jax.random.normal(key, jnp.shape(moments.mean))
    return moments.mean + jnp.sqrt(moments.variance) * noise


class ParameterFree:
    """What likelihoods share that have no parameters of their own."""

    def init(self) -> dict[str, Array]:
        """Returns no parameters."""
        return {}

    def draw_own(self, key: Key) -> dict[str, Array]:
        """Returns no parameters."""
        del key
        return {}

    def log_prior(self, params: Mapping[str, Any]) -> Scalar:
        """Returns zero."""
        del params
        return jnp.zeros(())

    def expected_log_prior(self, mean: Mapping[str, Any], std: Mapping[str, Any]) -> Scalar:
        """Returns zero."""
        del mean, std
        return jnp.zeros(())


class WorstAtCorner:
    """What likelihoods share whose density, along each output, first rises and then falls.

    Then it is least, over a box of outputs, at one of the corners.

    Example:
      >>> lower, upper = jnp.array([-1.0]), jnp.array([2.0])
      >>> round(float(Bernoulli().worst_log_prob({}, lower, upper, jnp.array(0))), 3)
      -2.127
    """

    def worst_log_prob(
        self: Likelihood, params: Mapping[str, Any], lower: Array, upper: Array, y: Array
    ) -> Scalar:
        """Returns the least log density of ``y`` at a corner of the box."""
        choices = jnp.array(list(itertools.product((0, 1), repeat=self.num_outputs)))
        corners = jnp.take_along_axis(jnp.stack([lower, upper]), choices, axis=0)
        return jnp.min(jax.vmap(lambda corner: self.log_prob(params, corner, y))(corners))


@part(Likelihood)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Categorical(ParameterFree):
    """One of several classes, numbered from zero, from one logit each.

    Example:
      >>> likelihood = Categorical(num_classes=2)
      >>> likelihood.predict({}, jnp.array([0.0, 0.0]))
      Array([0.5, 0.5], dtype=float32)
    """

    num_classes: int

    def __post_init__(self) -> None:
        _check.positive_integer(num_classes=self.num_classes)

    @property
    def num_outputs(self) -> int:
        """One logit for each class."""
        return self.num_classes

    def log_prob(self, params: Mapping[str, Any], outputs: Array, y: Array) -> Scalar:
        """Returns the log probability of class ``y``."""
        del params
        is_class = jnp.arange(self.num_classes) == _scalar(y)
        log_prob = jnp.sum(jnp.where(is_class, jax.nn.log_softmax(outputs), 0.0))
        return jnp.where(jnp.any(is_class), log_prob, jnp.nan)

    def worst_log_prob(
        self, params: Mapping[str, Any], lower: Array, upper: Array, y: Array
    ) -> Scalar:
        """Returns it for the least logit of class ``y`` and the greatest of all others."""
        is_class = jnp.arange(self.num_classes) == _scalar(y)
        return self.log_prob(params, jnp.where(is_class, lower, upper), y)

    def logits(self, outputs: Array) -> Array:
        """Returns the outputs, which are the logits."""
        return outputs

    def predict(self, params: Mapping[str, Any], outputs: Array) -> Array:
        """Returns the class probabilities."""
        del params
        return jax.nn.softmax(outputs)

    def draw(self, params: Mapping[str, Any], outputs: Array, key: Key) -> Array:
        """Returns a draw of the class."""
        del params
        return jax.random.categorical(key, outputs)


@part(Likelihood)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Bernoulli(ParameterFree, WorstAtCorner):
    """Zero or one, from the logit of one.

    Example:
      >>> Bernoulli().predict({}, jnp.array([0.0]))
      Array([0.5, 0.5], dtype=float32)
    """

    @property
    def num_outputs(self) -> int:
        """One logit."""
        return 1

    def log_prob(self, params: Mapping[str, Any], outputs: Array, y: Array) -> Scalar:
        """Returns the log probability of ``y``."""
        del params
        y = _scalar(y)
        log_prob = jax.nn.log_sigmoid(jnp.where(y == 1, outputs[0], -outputs[0]))
        return jnp.where((y == 0) | (y == 1), log_prob, jnp.nan)

    def logits(self, outputs: Array) -> Array:
        """Returns zero, and the output."""
        return jnp.concatenate([jnp.zeros_like(outputs), outputs])

    def predict(self, params: Mapping[str, Any], outputs: Array) -> Array:
        """Returns the probabilities of zero and of one."""
        del params
        return jax.nn.sigmoid(jnp.stack([-outputs[0], outputs[0]]))

    def draw(self, params: Mapping[str, Any], outputs: Array, key: Key) -> Array:
        """Returns a draw of zero or one."""
        del params
        return jax.random.bernoulli(key, jax.nn.sigmoid(outputs[0])).astype(jnp.int32)


@part(Likelihood)
@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedGaussian(ParameterFree, WorstAtCorner):
    """A real target around the output, with noise of known standard deviation.

    Example:
      >>> FixedGaussian(std=2.0).predict({}, jnp.array([1.0])).variance
      Array(4., dtype=float32)
    """

    std: float

    def __post_init__(self) -> None:
        _check.positive(std=self.std)

    @property
    def num_outputs(self) -> int:
        """The mean."""
        return 1

    def log_prob(self, params: Mapping[str, Any], outputs: Array, y: Array) -> Scalar:
        """Returns the log density of ``y``."""
        del params
        score = (_scalar(y) - outputs[0]) / self.std
        return -0.5 * jnp.square(score) - math.log(self.std) - _HALF_LOG_TWO_PI

    def predict(self, params: Mapping[str, Any], outputs: Array) -> Moments:
        """Returns the mean and the known variance."""
        del params
        return Moments(outputs[0], jnp.full_like(outputs[0], self.std**2))

    def draw(self, params: Mapping[str, Any], outputs: Array, key: Key) -> Array:
        """Returns a draw of the target."""
        return _normal(key, self.predict(params, outputs))


@part(Likelihood)
@dataclasses.dataclass(frozen=True, kw_only=True)
class LearntGaussian(WorstAtCorner):
    """A real target around the output, with noise whose standard deviation is learnt.

    The parameters have one more leaf, ``log_std``. The network's prior would usually pin it to
    zero, so it has its own: normal around ``log(initial_std)``.

    Attributes:
      initial_std: the noise at the start, and the median of its prior.
      prior_std: the prior standard deviation of ``log_std``; at 1 the noise is within a
        factor of seven of ``initial_std`` with probability 0.95.

    Example:
      >>> likelihood = LearntGaussian(initial_std=2.0)
      >>> likelihood.predict(likelihood.init(), jnp.array([1.0])).variance
      Array(4., dtype=float32)
    """

    initial_std: float = 1.0
    prior_std: float = 1.0

    def __post_init__(self) -> None:
        _check.positive(initial_std=self.initial_std, prior_std=self.prior_std)

    @property
    def num_outputs(self) -> int:
        """The mean."""
        return 1

    def init(self) -> dict[str, Array]:
        """Returns ``log_std`` at its starting value."""
        return {"log_std": jnp.array(math.log(self.initial_std), jnp.float32)}

    def log_prior(self, params: Mapping[str, Any]) -> Scalar:
        """Returns the log density of ``log_std``."""
        score: Array = (params["log_std"] - math.log(self.initial_std)) / self.prior_std
        return -0.5 * jnp.square(score) - math.log(self.prior_std) - _HALF_LOG_TWO_PI

    def expected_log_prior(self, mean: Mapping[str, Any], std: Mapping[str, Any]) -> Scalar:
        """Returns the expected log density when ``log_std`` is itself normal."""
        spread: Array = std["log_std"] / self.prior_std
        return self.log_prior(mean) - 0.5 * jnp.square(spread)

    def log_prob(self, params: Mapping[str, Any], outputs: Array, y: Array) -> Scalar:
        """Returns the log density of ``y``."""
        log_std: Array = params["log_std"]
        score = (_scalar(y) - outputs[0]) * jnp.exp(-log_std)
        return -0.5 * jnp.square(score) - log_std - _HALF_LOG_TWO_PI

    def predict(self, params: Mapping[str, Any], outputs: Array) -> Moments:
        """Returns the mean and the learnt variance."""
        return Moments(outputs[0], jnp.exp(2 * params["log_std"]))

    def draw_own(self, key: Key) -> dict[str, Array]:
        """Returns a draw of ``log_std`` from its prior."""
        return {"log_std": math.log(self.initial_std) + self.prior_std * jax.random.normal(key)}

    def draw(self, params: Mapping[str, Any], outputs: Array, key: Key) -> Array:
        """Returns a draw of the target."""
        return _normal(key, self.predict(params, outputs))


@part(Likelihood)
@dataclasses.dataclass(frozen=True, kw_only=True)
class HeteroscedasticGaussian(ParameterFree, WorstAtCorner):
    """A real target whose mean and noise both depend on the input.

    The first output is the mean; the variance is softplus of the second plus a floor, without
    which one record that is fitted exactly would have an unbounded density.

    Example:
      >>> moments = HeteroscedasticGaussian().predict({}, jnp.array([1.0, 0.0]))
      >>> round(float(moments.variance), 4)
      0.6941
    """

    min_variance: float = 1e-3

    def __post_init__(self) -> None:
        _check.positive(min_variance=self.min_variance)

    @property
    def num_outputs(self) -> int:
        """The mean and the raw variance."""
        return 2

    def log_prob(self, params: Mapping[str, Any], outputs: Array, y: Array) -> Scalar:
        """Returns the log density of ``y``."""
        mean, variance = self.predict(params, outputs)
        square = jnp.square(_scalar(y) - mean) / variance
        return -0.5 * (square + jnp.log(variance)) - _HALF_LOG_TWO_PI

    def predict(self, params: Mapping[str, Any], outputs: Array) -> Moments:
        """Returns the mean and the variance at this input."""
        del params
        return Moments(outputs[0], jax.nn.softplus(outputs[1]) + self.min_variance)

    def draw(self, params: Mapping[str, Any], outputs: Array, key: Key) -> Array:
        """Returns a draw of the target."""
        return _normal(key, self.predict(params, outputs))


@part(Likelihood)
@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonCounts(ParameterFree, WorstAtCorner):
    """A count, from the log of its rate.

    Example:
      >>> PoissonCounts().predict({}, jnp.array([0.0]))
      Moments(mean=Array(1., dtype=float32), variance=Array(1., dtype=float32))
    """

    @property
    def num_outputs(self) -> int:
        """The log rate."""
        return 1

    def log_prob(self, params: Mapping[str, Any], outputs: Array, y: Array) -> Scalar:
        """Returns the log probability of ``y``."""
        del params
        count = _scalar(y).astype(outputs.dtype)
        is_count = (count >= 0) & (count == jnp.floor(count))
        log_factorial = jax.lax.lgamma(jnp.where(is_count, count, 0.0) + 1)
        log_prob = count * outputs[0] - jnp.exp(outputs[0]) - log_factorial
        return jnp.where(is_count, log_prob, jnp.nan)

    def predict(self, params: Mapping[str, Any], outputs: Array) -> Moments:
        """Returns the rate, which is both mean and variance."""
        del params
        rate = jnp.exp(outputs[0])
        return Moments(rate, rate)

    def draw(self, params: Mapping[str, Any], outputs: Array, key: Key) -> Array:
        """Returns a draw of the count."""
        del params
        return jax.random.poisson(key, jnp.exp(outputs[0]))


@part(Likelihood)
@dataclasses.dataclass(frozen=True, kw_only=True)
class NegativeBinomial(ParameterFree, WorstAtCorner):
    """A count that varies more than a Poisson count, from the log of its mean.

    Attributes:
      dispersion: the variance of a count of mean ``m`` is ``m + dispersion * m**2``.

    Example:
      >>> NegativeBinomial(dispersion=0.5).predict({}, jnp.array([0.0]))
      Moments(mean=Array(1., dtype=float32), variance=Array(1.5, dtype=float32))
    """

    dispersion: float

    def __post_init__(self) -> None:
        _check.positive(dispersion=self.dispersion)

    @property
    def num_outputs(self) -> int:
        """The log mean."""
        return 1

    def log_prob(self, params: Mapping[str, Any], outputs: Array, y: Array) -> Scalar:
        """Returns the log probability of ``y``."""
        del params
        count, concentration = _scalar(y).astype(outputs.dtype), 1 / self.dispersion
        is_count = (count >= 0) & (count == jnp.floor(count))
        known = jnp.where(is_count, count, 0.0)
        # Of trials that succeed with these odds, the failures before a number of successes.
        log_odds = outputs[0] + math.log(self.dispersion)
        log_choices = (
            jax.lax.lgamma(known + concentration)
            - jax.lax.lgamma(known + 1)
            - math.lgamma(concentration)
        )
        log_prob = (
            count * jax.nn.log_sigmoid(log_odds)
            + concentration * jax.nn.log_sigmoid(-log_odds)
            + log_choices
        )
        return jnp.where(is_count, log_prob, jnp.nan)

    def predict(self, params: Mapping[str, Any], outputs: Array) -> Moments:
        """Returns the mean and the variance of the count."""
        del params
        mean = jnp.exp(outputs[0])
        return Moments(mean, mean + self.dispersion * mean**2)

    def draw(self, params: Mapping[str, Any], outputs: Array, key: Key) -> Array:
        """Returns a draw of the count."""
        del params
        rate_key, count_key = jax.random.split(key)
        # A Poisson count whose rate is gamma.
        relative = self.dispersion * jax.random.gamma(rate_key, 1 / self.dispersion)
        return jax.random.poisson(count_key, jnp.exp(outputs[0]) * relative)
