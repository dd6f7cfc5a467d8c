"""Rehearsing candidates for a table, and the settings of the best as a fit takes them."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit import _artefact, _check
from tacit.data import Schema
from tacit.errors import InvalidArgumentError
from tacit.privacy.budget import Budget
from tacit.rehearsal import Choice, choose, plausible_truths
from tacit.rehearsal.rehearsing import OnRepeat
from tacit.studies.preparation import Prepared, Recipe, prepare
from tacit.studies.study import KEYS

__all__ = ["FILE", "TableRehearsal", "chosen_settings"]

FILE = "rehearsal.json"
"""The name of the file in the folder that ``tacit rehearse`` writes."""


@dataclass(frozen=True, kw_only=True)
class TableRehearsal:
    """What is rehearsed: recipes for one table, all of it public.

    Attributes:
      schema: the public description of the table.
      recipes: the candidates, by name.
      num_records: units of privacy.
      budget: of the real run.
      num_repeats: how many tables are simulated; all candidates see the same.
      from_prior: draws truths from the prior as it is, and not from `plausible_truths`.
    """

    schema: Schema
    recipes: Mapping[str, Recipe]
    num_records: int
    budget: Budget
    num_repeats: int = 20
    from_prior: bool = False

    def run(self, *, progress: OnRepeat | None = None) -> Choice:
        """Returns the best candidate, by its negative log likelihood, and all rehearsals.

        Guarantee:
          No private record is involved.

        Args:
          progress: is told how many repeats of all candidates are done.
        """
        _check.positive_integer(num_records=self.num_records, num_repeats=self.num_repeats)
        # Before anything is run, so that what is wrong is told at once.
        prepared = {name: self.prepared(name) for name in self.recipes}
        # Methods do not decide the model: all were prepared with the same one.
        model = next(iter(prepared.values())).model
        return choose(
            {name: each.plan for name, each in prepared.items()},
            model,
            self.schema,
            budget=self.budget,
            num_repeats=self.num_repeats,
            truths=None if self.from_prior else plausible_truths(model, self.schema),
            progress=progress,
        )

    def prepared(self, name: str) -> Prepared:
        """Returns the model and the plan of a candidate."""
        return prepare(
            self.schema, self.recipes[name], num_records=self.num_records, budget=self.budget
        )

    def settings(self, name: str) -> dict[str, Any]:
        """Returns the recipe of a candidate as plain values, by the names that a study has.

        A batch that was left open stays so: of other numbers of records it is another one.
        """
        given, filled = asdict(self.recipes[name]), asdict(self.prepared(name).recipe)
        kept = {key: value for key, value in filled.items() if key != "batch_size"}
        if given["batch_size"] is not None:
            kept["batch_size"] = given["batch_size"]
        return {key: list(value) if key == "hidden" else value for key, value in kept.items()}

    def document(self, found: Choice) -> dict[str, Any]:
        """Returns what ``rehearsal.json`` holds; `chosen_settings` reads it.

        Args:
          found: what `run` returned.
        """
        return {
            "best": found.name,
            "settings": self.settings(found.name),
            "rehearsals": {
                name: {"settings": self.settings(name), **each.to_json()}
                for name, each in found.rehearsals.items()
            },
        }


def chosen_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the settings that a rehearsal chose, by the names that a study has for them.

    Guarantee:
      The file is public: it was made of simulated records.

    Args:
      path: ``rehearsal.json``, or the folder that it is in.

    Raises:
      InvalidArgumentError: where it does not say them.
    """
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    text = _artefact.read_text(file, what="a rehearsal")
    try:
        found = json.loads(text)["settings"]
        Recipe(**{**found, "hidden": tuple(found["hidden"])})
        if not set(found) <= set(KEYS["recipe"]):
            raise KeyError
    except (ValueError, KeyError, TypeError):
        raise InvalidArgumentError(
            f"{file} does not say what was chosen. Give the folder that `tacit rehearse` wrote."
        ) from None
    return dict(found)
