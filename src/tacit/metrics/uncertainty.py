"""Uncertainty: what a posterior does not know, and what no posterior could.

Each draw of a posterior predicts a distribution. Its own spread, averaged over draws, is
*aleatoric*: noise that more records will not remove. The disagreement between draws is
*epistemic*. They add up to the total, in variance and in entropy.

``classification_uncertainty`` and ``regression_uncertainty`` take all draws at once and compute
in float64. Where the draws do not fit in memory, summarise chunks of them as ``DrawMoments``,
``merge_moments`` and decompose once. Those functions are pure and accept NumPy arrays, JAX arrays
and tracers, so that they run inside ``jit`` and ``scan``; they check nothing.
"""

from typing import Generic, NamedTuple, TypeVar

import jax
from numpy.typing import ArrayLike

from tacit.errors import InvalidArgumentError
from tacit.metrics.scores import Floats, draws_of, numbers

__all__ = [
    "ClassificationUncertainty",
    "DrawMoments",
    "RegressionUncertainty",
    "classification_moments",
    "classification_uncertainty",
    "decompose_classification",
    "decompose_regression",
    "merge_moments",
    "regression_moments",
    "regression_uncertainty",
]

A = TypeVar("A", jax.Array, Floats)


class ClassificationUncertainty(NamedTuple, Generic[A]):
    """The predictive distribution of each input and what its uncertainty is made of.

    Entropies are in nats. Variances are those of each class's indicator.

    Attributes:
      probabilities: the posterior predictive, ``(num_inputs, num_classes)``.
      total_entropy: entropy of the predictive, ``(num_inputs,)``, at most log num_classes.
      aleatoric_entropy: mean entropy of the draws, ``(num_inputs,)``.
      mutual_information: the epistemic rest, between the label and the parameters.
      total_variance: of each class's indicator, ``(num_inputs, num_classes)``.
      aleatoric_variance: mean of ``p * (1 - p)`` over draws p.
      epistemic_variance: variance of p over draws.
    """

    probabilities: A
    total_entropy: A
    aleatoric_entropy: A
    mutual_information: A
    total_variance: A
    aleatoric_variance: A
    epistemic_variance: A


class RegressionUncertainty(NamedTuple, Generic[A]):
    """The predictive mean of each input and what its variance is made of.

    Attributes:
      mean: mean of the draws' means.
      total_variance: of the predictive, the sum of the two parts.
      aleatoric_variance: mean of the draws' variances.
      epistemic_variance: variance of the draws' means.
    """

    mean: A
    total_variance: A
    aleatoric_variance: A
    epistemic_variance: A


class DrawMoments(NamedTuple, Generic[A]):
    """What is remembered of the draws seen so far; all zeros is none.

    Means rather than sums, and a variance rather than a sum of squares: the difference of two
    large squares would lose the epistemic part in float32.

    Attributes:
      num_draws: how many draws, as a floating scalar.
      mean: mean of the draws' predictions (class probabilities, or means).
      variance: variance of the draws' predictions, with divisor ``num_draws``.
      noise: mean over draws of each draw's own spread (entropy, or variance).
    """

    num_draws: A
    mean: A
    variance: A
    noise: A


def classification_uncertainty(probabilities: ArrayLike) -> ClassificationUncertainty[Floats]:
    """Returns the decomposition for class probabilities of several draws.

    Args:
      probabilities: of shape ``(num_draws, num_inputs, num_classes)``; they sum to one over
        classes.

    Example:
      Two draws that are each certain but disagree, and two that agree to be uncertain:

      >>> draws = [[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]
      >>> parts = classification_uncertainty(draws)
      >>> parts.total_entropy.round(3)
      array([0.693, 0.693])
      >>> parts.mutual_information.round(3)
      array([0.693, 0.   ])

    Reference:
      Depeweg et al., Decomposition of uncertainty in Bayesian deep learning, ICML 2018.
    """
    return decompose_classification(classification_moments(draws_of(probabilities)))


def regression_uncertainty(mean: ArrayLike, variance: ArrayLike) -> RegressionUncertainty[Floats]:
    """Returns the decomposition for predictive means and variances of several draws.

    Args:
      mean: of shape ``(num_draws, num_inputs)``, or with further axes.
      variance: of the same shape, not negative.

    Example:
      >>> parts = regression_uncertainty([[1.0], [3.0]], [[0.5], [0.7]])
      >>> parts.mean, parts.aleatoric_variance, parts.epistemic_variance
      (array([2.]), array([0.6]), array([1.]))

    Reference:
      Kendall and Gal, What uncertainties do we need in Bayesian deep learning for computer
      vision?, NeurIPS 2017.
    """
    centres, spreads = numbers("mean", mean), numbers("variance", variance)
    if centres.ndim < 2 or centres.shape != spreads.shape:
        raise InvalidArgumentError(
            "mean and variance must both have shape (num_draws, num_inputs); "
            f"got {centres.shape} and {spreads.shape}."
        )
    if spreads.min() < 0:
        raise InvalidArgumentError(
            f"variance must not be negative; got {spreads.min():.6g}. Pass variances, not logs."
        )
    return decompose_regression(regression_moments(centres, spreads))


def classification_moments(probabilities: A) -> DrawMoments[A]:
    """Returns the moments of a chunk ``(num_draws, num_inputs, num_classes)`` of draws."""
    draws = _at_least_float32(probabilities)
    return _moments(draws, _entropy(draws))


def regression_moments(mean: A, variance: A) -> DrawMoments[A]:
    """Returns the moments of chunks of draws' means and variances ``(num_draws, num_inputs)``."""
    return _moments(_at_least_float32(mean), _at_least_float32(variance))


def merge_moments(first: DrawMoments[A], second: DrawMoments[A]) -> DrawMoments[A]:
    """Returns the moments of two sets of draws together.

    Example:
      A posterior in chunks of two draws, in bounded memory; zeros start the sum.

      >>> import jax, jax.numpy as jnp
      >>> draws = jax.nn.softmax(jax.random.normal(jax.random.key(0), (6, 4, 3)))
      >>> chunks = draws.reshape(3, 2, 4, 3)
      >>> start = jax.tree.map(jnp.zeros_like, classification_moments(chunks[0]))
      >>> step = lambda seen, chunk: (merge_moments(seen, classification_moments(chunk)), None)
      >>> moments, _ = jax.lax.scan(step, start, chunks)
      >>> bool(jnp.allclose(moments.mean, draws.mean(axis=0)))
      True

    Reference:
      Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983.
    """
    xp = first.num_draws.__array_namespace__()
    num_draws = first.num_draws + second.num_draws
    share = second.num_draws / xp.maximum(num_draws, 1)  # 0 of 0 draws is none, not NaN
    shift = second.mean - first.mean
    within = (1 - share) * first.variance + share * second.variance
    return DrawMoments(
        num_draws=num_draws,
        mean=first.mean + share * shift,
        variance=within + share * (1 - share) * shift**2,
        noise=(1 - share) * first.noise + share * second.noise,
    )


def decompose_classification(moments: DrawMoments[A]) -> ClassificationUncertainty[A]:
    """Returns what the uncertainty of accumulated class probabilities is made of."""
    xp = moments.mean.__array_namespace__()
    entropy = _entropy(moments.mean)
    variance = moments.mean * (1 - moments.mean)
    return ClassificationUncertainty(
        probabilities=moments.mean,
        total_entropy=entropy,
        aleatoric_entropy=moments.noise,
        # Both differences are non-negative in exact arithmetic (Jensen); rounding may undercut.
        mutual_information=xp.maximum(entropy - moments.noise, 0),
        total_variance=variance,
        aleatoric_variance=xp.maximum(variance - moments.variance, 0),
        epistemic_variance=moments.variance,
    )


def decompose_regression(moments: DrawMoments[A]) -> RegressionUncertainty[A]:
    """Returns what the variance of accumulated means and variances is made of."""
    return RegressionUncertainty(
        mean=moments.mean,
        total_variance=moments.noise + moments.variance,
        aleatoric_variance=moments.noise,
        epistemic_variance=moments.variance,
    )


def _moments(predictions: A, noise: A) -> DrawMoments[A]:
    xp = predictions.__array_namespace__()
    return DrawMoments(
        num_draws=xp.asarray(predictions.shape[0], dtype=predictions.dtype),
        mean=predictions.mean(axis=0),
        variance=predictions.var(axis=0),
        noise=noise.mean(axis=0),
    )


def _entropy(probabilities: A) -> A:
    xp = probabilities.__array_namespace__()
    # 0 log 0 is 0: the logarithm is only taken where it is finite, so no NaN and no warning.
    logs = xp.log(xp.where(probabilities > 0, probabilities, 1))
    entropy: A = -xp.sum(probabilities * logs, axis=-1)
    return entropy


def _at_least_float32(array: A) -> A:
    # Half precision would round the epistemic part away.
    return array.astype(array.__array_namespace__().result_type(array.dtype, "float32"))
