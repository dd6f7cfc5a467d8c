"""A recipe: the settings of a fit, each chosen from public facts where it is left open."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from tacit import _check
from tacit.errors import InvalidArgumentError

__all__ = ["TARGET_NOISE", "Facts", "MethodName", "Recipe", "completed"]

MethodName: TypeAlias = Literal["sgld", "sghmc", "sgd", "swag", "vi", "ivon"]

TARGET_NOISE = 0.3
"""Standard deviation of a numeric target's noise before it is learnt; the range is two."""

_RATE_OF_METHOD: dict[str, float] = {
    "sgld": 1.0,
    "sghmc": 0.1,
    "sgd": 1 / 15,
    "swag": 1 / 15,
    "vi": 1 / 15,
    "ivon": 0.01,
}
"""Learning rates beside that of SGLD, as on the census table of docs/how-to-choose.md."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a table is fitted. None leaves a setting to `completed`.

    Args:
      method: the name of an inference method.
      hidden: widths of the hidden layers; ``()`` is logistic or linear regression.
      num_steps: updates. The noise is calibrated so that all of them together spend the budget.
      batch_size: expected number of records in a step; at least all of them is every record.
      clip_norm: the largest gradient norm that one record contributes.
      learning_rate: on the gradient of the mean loss.
      prior_std: of every weight.

    Example:
      >>> Recipe(method="sgd", hidden=())
      Recipe(method='sgd', hidden=(), num_steps=None, batch_size=None, clip_norm=None, ...)
    """

    method: MethodName = "sgld"
    hidden: tuple[int, ...] | None = None
    num_steps: int | None = None
    batch_size: int | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    prior_std: float | None = None

    def __post_init__(self) -> None:
        _check.one_of(get_args(MethodName), method=self.method)
        if self.hidden is not None and not isinstance(self.hidden, tuple):
            raise InvalidArgumentError(
                f"hidden must be a tuple of widths such as (32,), or (); got {self.hidden!r}."
            )
        for i, width in enumerate(self.hidden or ()):
            _check.positive_integer(**{f"hidden[{i}]": width})
        for name in ("num_steps", "batch_size"):
            if getattr(self, name) is not None:
                _check.positive_integer(**{name: getattr(self, name)})
        for name in ("clip_norm", "learning_rate", "prior_std"):
            if getattr(self, name) is not None:
                _check.positive(**{name: getattr(self, name)})


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is public about a table and its budget, and all that defaults may depend on.

    Attributes:
      num_records: units of privacy.
      num_features: after encoding.
      num_classes: None where the target is a number.
      epsilon: of the budget; infinite without privacy.
    """

    num_records: int
    num_features: int
    num_classes: int | None
    epsilon: float


def completed(recipe: Recipe, facts: Facts) -> Recipe:
    """Returns the recipe with every setting but the clip norm, which needs the model.

    Guarantee:
      Depends on public facts only; two tables of one size get the same recipe.

    Example:
      >>> facts = Facts(num_records=500, num_features=20, num_classes=2, epsilon=1.0)
      >>> completed(Recipe(), facts).hidden
      ()
    """
    is_large = facts.num_records >= 10_000
    defaults = Recipe(
        method=recipe.method,
        hidden=(32,) if is_large else (),
        num_steps=400 if is_large else 60,
        batch_size=2048 if is_large else facts.num_records,
        learning_rate=_RATE_OF_METHOD[recipe.method] * _rate(facts, is_large=is_large),
        prior_std=0.3 if is_large else 1.0,
    )
    open_fields = [
        name
        for name in ("hidden", "num_steps", "batch_size", "learning_rate", "prior_std")
        if getattr(recipe, name) is None
    ]
    done = replace(recipe, **{name: getattr(defaults, name) for name in open_fields})
    assert done.batch_size is not None
    return replace(done, batch_size=min(done.batch_size, facts.num_records))


def _rate(facts: Facts, *, is_large: bool) -> float:
    # A numeric target's loss curves like one over the variance of its noise.
    curvature = 1.0 if facts.num_classes is not None else TARGET_NOISE**-2
    return (3.0 if is_large else 1.0) / curvature
