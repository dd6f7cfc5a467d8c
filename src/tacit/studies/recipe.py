"""A recipe: the settings of a fit, each chosen from public facts where it is left open."""

from dataclasses import dataclass, replace
from typing import Any

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.inference.method import table_method

__all__ = ["TARGET_NOISE", "Recipe", "TableFacts", "clip_factor", "completed"]

TARGET_NOISE = 0.3
"""Standard deviation of a numeric target's noise before it is learnt; the range is two."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a table is fitted. None leaves a setting to `completed`.

    Args:
      method: the name of an inference method, from `tacit.inference.method.table_methods`.
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

    method: str = "sgld"
    hidden: tuple[int, ...] | None = None
    num_steps: int | None = None
    batch_size: int | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    prior_std: float | None = None

    def __post_init__(self) -> None:
        table_method(self.method)
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
class TableFacts:
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


def completed(recipe: Recipe, facts: TableFacts) -> Recipe:
    """Returns the recipe with every setting but the clip norm, which needs the model.

    Guarantee:
      Depends on public facts only; two tables of one size get the same recipe.

    Example:
      >>> facts = TableFacts(num_records=500, num_features=20, num_classes=2, epsilon=1.0)
      >>> completed(Recipe(), facts).hidden
      ()
    """
    defaults = (_of_a_large_table if _is_large(facts) else _of_a_small_table)(facts)
    open_fields = {name: value for name, value in defaults.items() if getattr(recipe, name) is None}
    if "learning_rate" in open_fields:
        open_fields["learning_rate"] *= table_method(recipe.method).relative_rate
    done = replace(recipe, **open_fields)
    assert done.batch_size is not None
    return replace(done, batch_size=min(done.batch_size, facts.num_records))


def clip_factor(facts: TableFacts) -> float:
    """Returns the clip norm as a multiple of the median gradient norm of synthetic records.

    Clipping below the median halves the noise for a little bias, but distorts probabilities and
    the spread of numbers; where records abound, noise is not what limits a fit.
    """
    if _is_large(facts):
        return 2.25
    return 0.5 if facts.num_classes is not None else 1.5


def _is_large(facts: TableFacts) -> bool:
    return facts.num_records >= 10_000


def _of_a_large_table(facts: TableFacts) -> dict[str, Any]:
    return {
        "hidden": (32,),
        "num_steps": 400,
        "batch_size": 2048,
        "learning_rate": 3.0 if facts.num_classes is not None else 0.03,
        "prior_std": 0.3,
    }


def _of_a_small_table(facts: TableFacts) -> dict[str, Any]:
    # How far a run may go in all: noise grows with that as the signal does, but the signal ends.
    # Losses of numbers are steep once their noise is learnt to be small.
    longest, slope = (300.0, 2.0) if facts.num_classes is not None else (100.0, 0.05)
    length = min(max(facts.num_records * facts.epsilon / 16, 10.0), longest)
    num_steps = 100
    return {
        "hidden": (),
        "num_steps": num_steps,
        "batch_size": facts.num_records,
        "learning_rate": slope * length / num_steps,
        "prior_std": 3.0,
    }
