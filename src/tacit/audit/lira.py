"""LiRA: is a score more like those of models that saw the record, or of those that did not?"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError

__all__ = ["lira_scores", "shadow_coins"]

_SMALLEST_STD = 1e-12


def shadow_coins(num_shadows: int, num_canaries: int, *, seed: int | None) -> NDArray[np.bool_]:
    """Returns which shadow model has which canary: each canary is in exactly half of them."""
    _check.positive_integer(num_shadows=num_shadows, num_canaries=num_canaries)
    if num_shadows < 4 or num_shadows % 2:
        raise InvalidArgumentError(
            f"num_shadows must be an even number of at least 4; got {num_shadows}."
        )
    generator = np.random.default_rng(None if seed is None else [seed, 0x5AD0])
    half = np.arange(num_shadows)[:, None] < num_shadows // 2
    return generator.permuted(np.broadcast_to(half, (num_shadows, num_canaries)), axis=0)


def lira_scores(
    target: ArrayLike, shadows: ArrayLike, is_present: ArrayLike, *, is_online: bool
) -> NDArray[np.float64]:
    """Returns the likelihood ratio of each canary's score in the target model; high means present.

    Online, the scores of shadow models with the canary and without it each are a Gaussian; offline,
    only those without it are known. Every canary has means of its own; as shadow models are few,
    all share the standard deviations.

    Args:
      target: the score of each canary in the model that is attacked.
      shadows: the same in each shadow model, with shape ``(num_shadows, num_canaries)``.
      is_present: which shadow model had which canary, in the same shape.
      is_online: whether models with the canary may be used too.

    Example:
      >>> shadows, coins = [[0.0, 1.0], [1.0, 0.0]] * 2, [[False, True], [True, False]] * 2
      >>> np.sign(lira_scores([0.9, 0.2], np.add(shadows, [[0], [0], [.1], [.1]]), coins,
      ...                     is_online=True))
      array([ 1., -1.])

    Reference:
      Carlini et al., "Membership inference attacks from first principles" (2022), algorithm 1 and
      section IV C.
    """
    attacked, known = np.asarray(target, np.float64), np.asarray(shadows, np.float64)
    there = np.asarray(is_present, bool)
    if known.ndim != 2 or there.shape != known.shape or attacked.shape != known.shape[1:]:
        raise InvalidArgumentError(
            "target, shadows and is_present must agree in the number of canaries; got shapes"
            f" {attacked.shape}, {known.shape} and {there.shape}."
        )
    out_mean, out_std = _gaussian(known, ~there)
    standardised = (attacked - out_mean) / out_std
    if not is_online:
        return standardised
    in_mean, in_std = _gaussian(known, there)
    log_in = -0.5 * ((attacked - in_mean) / in_std) ** 2 - np.log(in_std)
    return log_in + 0.5 * standardised**2 + np.log(out_std)


def _gaussian(
    scores: NDArray[np.float64], kept: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], float]:
    """The mean of each canary's kept scores, and their common standard deviation about it."""
    count = kept.sum(axis=0)
    if np.any(count == 0):
        raise InvalidArgumentError(
            "is_present must have, for each canary, shadow models with it and without it; got some"
            " with none. Use shadow_coins."
        )
    mean = np.where(kept, scores, 0.0).sum(axis=0) / count
    spread = np.where(kept, scores - mean, 0.0)
    freedom = max(1, int(count.sum()) - len(count))
    return mean, max(float(np.sqrt((spread**2).sum() / freedom)), _SMALLEST_STD)
