"""Randomised smoothing: a certified Euclidean radius for any classifier, by vote under noise.

The smoothed classifier gives an input the class that the posterior predictive gives most often to
the input with Gaussian noise on it. Its votes change slowly with the input, so that a clear vote
certifies a ball. It is another classifier than the predictive: its accuracy is its own.

Post-processing, free on public inputs; on private test records a published accuracy is a release.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics.confidence import Interval, clopper_pearson, clopper_pearson_lower
from tacit.metrics.scores import Floats
from tacit.models.base import Moments, Prediction
from tacit.over_draws import OfDraw, sum_over_draws
from tacit.posterior import Posterior
from tacit.rng import seeded_key
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["ABSTAINED", "Smoothed", "smooth"]

_Counts: TypeAlias = NDArray[np.int64]

ABSTAINED = -1
"""The class of an input whose vote is not clear."""


class Smoothed(NamedTuple):
    """What the smoothed classifier says.

    Attributes:
      predicted: the class of each input, or `ABSTAINED`.
      radius: within which the class is certain, with the confidence asked for; 0 if abstained.
    """

    predicted: _Counts
    radius: Floats

    def certified_accuracy(self, y: Array, radius: float, *, level: float = 0.95) -> Interval:
        """Returns the share of inputs that are right and certified at a radius.

        The interval is that of the population of inputs; it leaves aside that each radius
        may be wrong with the small probability that was allowed.
        """
        is_sure = (self.predicted == np.asarray(y)) & (self.radius >= radius)
        return clopper_pearson(int(is_sure.sum()), len(is_sure), level=level)


def smooth(
    posterior: Posterior,
    x: Array,
    *,
    std: float,
    num_selection: int = 100,
    num_estimation: int = 1000,
    alpha: float = 0.001,
    num_draws: int | None = None,
    seed: int = 0,
    batch_size: int = 500,
) -> Smoothed:
    """Returns the smoothed classifier's class for each input, with its certified radius.

    Guarantee:
      For each input, with probability at least ``1 - alpha`` over the noise, either the
      classifier abstains or it gives its class to every point within the radius. The noise that
      selects the class and the noise that counts its votes are independent. Points are anywhere
      in space: a range of the inputs is not used.

    Args:
      posterior: any classifier, of functions too.
      x: public inputs, one row for each.
      std: of the noise; more noise reaches farther and sees less.
      num_selection: how many noisy copies choose the class.
      num_estimation: how many others count its votes; no radius is larger than
        ``std * ndtri(alpha ** (1 / num_estimation))``.
      alpha: the probability of a wrong certificate, for each input.
      num_draws: as in `tacit.predict`.
      seed: of draws, masks and noise. It must not depend on the inputs.
      batch_size: how many noisy copies are looked at together.

    Reference:
      Cohen, Rosenfeld and Kolter, Certified adversarial robustness via randomized smoothing, ICML
      2019, theorem 1 and algorithm CERTIFY.
    """
    _check.positive(std=std)
    _check.fraction(one=False, alpha=alpha)
    _check.positive_integer(
        num_selection=num_selection, num_estimation=num_estimation, batch_size=batch_size
    )
    x = jnp.asarray(x)
    if x.ndim == 0 or len(x) == 0 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise InvalidArgumentError(
            "x must have a row of floating numbers for each input, at least one; "
            f"got {x.dtype} of shape {x.shape}."
        )
    chosen, function = posterior.chosen(num_draws), _scores(posterior.model.predict)
    # The draws of `predict` come from this key by `fold_in`; what is split off is independent.
    _, noise_key = jax.random.split(seeded_key(seed))

    def votes(row: int, start: int, num_copies: int) -> _Counts:
        """Returns how many noisy copies, numbered from ``start``, are given each class."""
        row_key, end, counts = jax.random.fold_in(noise_key, row), start + num_copies, []
        for first in range(start, end, batch_size):
            copies = first + jnp.arange(batch_size)
            scores = sum_over_draws(
                function,
                chosen,
                _noisy(x[row], std, row_key, copies),
                seed=seed,
                batch_size=batch_size,
                numbered_from=first,
            )
            own = np.argmax(np.asarray(scores)[: end - first], axis=-1)
            counts.append(np.bincount(own, minlength=scores.shape[-1]))
        return np.asarray(np.sum(counts, axis=0))

    predicted, radii = [], []
    for row in range(len(x)):
        best = int(np.argmax(votes(row, 0, num_selection)))
        hits = int(votes(row, num_selection, num_estimation)[best])
        probability = clopper_pearson_lower(hits, num_estimation, level=1 - alpha)
        is_clear = probability > 0.5
        predicted.append(best if is_clear else ABSTAINED)
        radii.append(std * float(ndtri(probability)) if is_clear else 0.0)
    return Smoothed(np.array(predicted), np.array(radii))


@jax.jit
def _noisy(x: Array, std: Scalar, row_key: Key, copies: Array) -> Array:
    keys = jax.vmap(lambda copy: jax.random.fold_in(row_key, copy))(copies)
    return x + std * jax.vmap(lambda key: jax.random.normal(key, x.shape, x.dtype))(keys)


@functools.lru_cache(maxsize=64)
def _scores(predict_one: Callable[[Params, Array, Key], Prediction]) -> OfDraw:
    def scores(params: Params, x: Array, key: Key) -> Array:
        output = predict_one(params, x, key)
        if isinstance(output, Moments):
            raise InvalidArgumentError(
                "posterior must be a classifier to be smoothed; got one of a real target."
            )
        return output

    return scores
