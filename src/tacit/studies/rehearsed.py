"""Rehearsing candidates for a table, in one process or several, and fitting with the best."""

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tacit import _artefact, _check
from tacit.data import Schema
from tacit.errors import InvalidArgumentError, TacitError
from tacit.privacy.budget import Budget
from tacit.rehearsal import Choice, Rehearsal, plausible_truths, rehearse
from tacit.rehearsal.choosing import best_of
from tacit.rehearsal.rehearsing import OnRepeat
from tacit.rehearsal.scoring import MEASURES
from tacit.studies.preparation import Prepared, Recipe, prepare
from tacit.studies.study import KEYS

__all__ = ["FILE", "TableRehearsal", "chosen_settings"]

FILE = "rehearsal.json"
"""The name of the file in the folder that ``tacit rehearse`` writes."""

_LEVEL = 0.9

_Measures: TypeAlias = Mapping[str, list[float | None]]
_Event: TypeAlias = dict[str, _Measures] | None
"""That one more repeat is done, or what was measured of a candidate, whose repeats all are."""


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

    def run(self, *, num_processes: int = 1, progress: OnRepeat | None = None) -> Choice:
        """Returns the best candidate, by its negative log likelihood, and all rehearsals.

        Guarantee:
          No private record is involved.

        Args:
          num_processes: among which candidates are shared; each has its own interpreter.
          progress: is told how many repeats of all candidates are done.
        """
        _check.positive_integer(num_records=self.num_records, num_repeats=self.num_repeats)
        _check.positive_integer(num_processes=num_processes)
        # Before anything is started, so that what is wrong is told at once.
        prepared = {name: self.prepared(name) for name in self.recipes}
        total, done = self.num_repeats * len(self.recipes), 0
        measures: dict[str, _Measures] = {}

        def tell(event: _Event) -> None:
            nonlocal done
            if event is not None:
                measures.update(event)
                return
            done += 1
            if progress is not None:
                progress(done, total)

        num_processes = min(num_processes, len(self.recipes))
        if num_processes > 1:
            _run_in_processes(self, num_processes, tell)
        else:
            _run_here(self, tell)
        found = {
            name: Rehearsal(
                plan=each.plan,
                budget=self.budget,
                level=_LEVEL,
                measures={
                    measure: np.array(
                        [math.nan if v is None else v for v in measures[name][measure]]
                    )
                    for measure in MEASURES
                },
            )
            for name, each in prepared.items()
        }
        return best_of({name: each.plan for name, each in prepared.items()}, found)

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
            f"{file} does not say what was chosen. Give the folder that `tacit rehearse --output`"
            " wrote."
        ) from None
    return dict(found)


def _run_here(wanted: TableRehearsal, tell: Callable[[_Event], None]) -> None:
    for name in wanted.recipes:
        prepared = wanted.prepared(name)
        model = prepared.model
        found = rehearse(
            prepared.plan,
            model,
            wanted.schema,
            budget=wanted.budget,
            num_repeats=wanted.num_repeats,
            level=_LEVEL,
            truths=None if wanted.from_prior else plausible_truths(model, wanted.schema),
            progress=lambda done, total: tell(None),
        )
        tell(
            {
                name: {
                    measure: [None if math.isnan(value) else value for value in values.tolist()]
                    for measure, values in found.measures.items()
                }
            }
        )


def _run_in_processes(wanted: TableRehearsal, number: int, tell: Callable[[_Event], None]) -> None:
    """Shares the candidates among processes; none outlives this call."""
    names = list(wanted.recipes)
    # Threads of linear algebra in every process would wait for each other's cores.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with contextlib.ExitStack() as opened:
        workers = []
        for first in range(number):
            worker = subprocess.Popen(
                [sys.executable, "-m", "tacit.studies.rehearsed"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            opened.callback(worker.communicate)
            opened.callback(worker.kill)
            workers.append(worker)
            assert worker.stdin is not None
            worker.stdin.write(_to_json(wanted, names[first::number]))
            worker.stdin.close()
            worker.stdin = None
        for event in _events_of(workers):
            tell(event)


def _events_of(workers: list[subprocess.Popen[str]]) -> Iterator[_Event]:
    lines: queue.Queue[str | int] = queue.Queue()

    def listen(number: int) -> None:
        out = workers[number].stdout
        assert out is not None
        for line in out:
            lines.put(line)
        lines.put(number)

    for number in range(len(workers)):
        threading.Thread(target=listen, args=(number,), daemon=True).start()
    running = len(workers)
    while running:
        line = lines.get()
        if isinstance(line, str):
            yield json.loads(line)
            continue
        running -= 1
        worker = workers[line]
        if worker.wait() != 0:
            assert worker.stderr is not None
            told = worker.stderr.read().strip().splitlines() or ["no word of why"]
            raise TacitError(f"a rehearsal in a process of its own has failed: {told[-1]}")


def _to_json(wanted: TableRehearsal, names: list[str]) -> str:
    return json.dumps(
        {
            "schema": wanted.schema.to_toml(),
            "recipes": {name: asdict(wanted.recipes[name]) for name in names},
            "num_records": wanted.num_records,
            "budget": [wanted.budget.epsilon, wanted.budget.delta],
            "num_repeats": wanted.num_repeats,
            "from_prior": wanted.from_prior,
        }
    )


def _from_json(text: str) -> TableRehearsal:
    found = json.loads(text)
    recipes = {}
    for name, each in found["recipes"].items():
        hidden = None if each["hidden"] is None else tuple(each["hidden"])
        recipes[name] = Recipe(**{**each, "hidden": hidden})
    return TableRehearsal(
        **{
            **found,
            "schema": Schema.from_toml(found["schema"]),
            "recipes": recipes,
            "budget": Budget(*found["budget"]),
        }
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _run_here(_from_json(sys.stdin.read()), lambda event: print(json.dumps(event), flush=True))
