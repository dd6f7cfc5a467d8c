"""``tacit fit``: a private table becomes a posterior that may be published."""

import contextlib
import json
import math
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from tacit import studies
from tacit._display import CAUTION
from tacit.cli import _options, note
from tacit.cli.launch import CoordinatorOption, NumProcessesOption, ProcessIdOption, join
from tacit.errors import InvalidArgumentError
from tacit.inference import ProgressBar
from tacit.inference.chains import OnProgress
from tacit.privacy.accounting.accountants import round_up
from tacit.processes import is_coordinator, stop_processes, translating_lost_workers
from tacit.studies import execute, read_study
from tacit.studies.coefficients import is_linear
from tacit.studies.execution import Interrupted
from tacit.studies.rehearsed import chosen_settings
from tacit.studies.study import make_study
from tacit.studies.table_fit import TableFit

__all__ = ["fit_command"]

_RESUMABLE = ("table", "output", "seed")
_OPTIONS = {
    "method": "--method",
    "hidden": "--hidden",
    "num_steps": "--steps",
    "batch_size": "--batch",
    "clip_norm": "--clip-norm",
    "learning_rate": "--learning-rate",
}
"""Of settings that a rehearsal may choose."""


def fit_command(
    table: Annotated[
        Path | None, typer.Argument(help="A CSV file with the private records.")
    ] = None,
    *,
    target: _options.TargetOption = None,
    schema: _options.SchemaOption = None,
    groups: _options.GroupsOption = None,
    max_rows: _options.MaxRowsOption = None,
    weight: _options.WeightOption = None,
    max_weight: _options.MaxWeightOption = None,
    epsilon: _options.FitEpsilonOption = None,
    delta: _options.FitDeltaOption = None,
    ledger: _options.FitLedgerOption = None,
    data_set: _options.FitDataSetOption = None,
    non_private: _options.NonPrivateOption = False,
    method: _options.MethodOption = None,
    hidden: _options.HiddenOption = None,
    steps: _options.StepsOption = None,
    batch: _options.BatchOption = None,
    clip_norm: _options.ClipNormOption = None,
    learning_rate: _options.LearningRateOption = None,
    rehearsal: _options.RehearsalOption = None,
    output: _options.RunOutputOption = None,
    study: _options.StudyOption = None,
    resume: _options.ResumeOption = False,
    half_precision: _options.HalfPrecisionOption = False,
    overwrite: _options.OverwriteOption = False,
    seed: _options.SeedOption = None,
    num_processes: NumProcessesOption = None,
    process_id: ProcessIdOption = None,
    coordinator: CoordinatorOption = None,
    as_json: _options.JsonOption = False,
) -> None:
    """Fit a private table: a posterior and its privacy statement, ready to be published.

    What is not given is chosen from public facts. Ctrl-C stops the run without losing what was
    paid for.

    [bold]tacit fit data.csv --target income --schema schema.toml --epsilon 1 --output run[/]

    [bold]tacit fit --study study.toml --epsilon 0.5 --output other-run[/]

    [bold]tacit fit data.csv --schema schema.toml --epsilon 1 --rehearsal rehearsal -o run[/]

    [bold]tacit fit --resume --output run[/]
    """
    settings = {
        **{"table": table, "target": target, "schema": schema, "groups": groups},
        **{"max_rows": max_rows, "weight": weight, "max_weight": max_weight},
        **{"epsilon": _epsilon(epsilon, non_private=non_private), "delta": delta},
        **{"ledger": ledger, "data_set": data_set, "method": method},
        **{"hidden": _options.hidden_of(hidden), "num_steps": steps, "batch_size": batch},
        **{"clip_norm": clip_norm, "learning_rate": learning_rate},
        **{"output": output, "seed": seed, "half_precision": half_precision or None},
    }
    if rehearsal is not None:
        settings |= _rehearsed(rehearsal, settings)
    join(num_processes, process_id, coordinator)
    try:
        if resume:
            _require_resumable(settings, study)
            with translating_lost_workers(), _gentle_progress("fit") as progress:
                found = studies.resume(str(output), table=table, seed=seed, progress=progress)
        else:
            own = make_study(settings) if study is None else read_study(study, changes=settings)
            output = own.output
            with translating_lost_workers(), _gentle_progress(own.recipe.method) as progress:
                found = execute(own, overwrite=overwrite, progress=progress)
    except Interrupted as stopped:
        _show_interrupted(stopped, as_json=as_json)
        raise typer.Exit(130) from None
    rounding = found.posterior.rounding
    if as_json:
        document = {
            "output": str(output),
            "statement": dict(found.statement),
            "intervals": found.posterior.intervals.to_json(),
            "kept": rounding.text if rounding is not None else "as they were made",
        }
        typer.echo(json.dumps(document))
    else:
        _show(found, output)
    stop_processes()


def _rehearsed(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that a rehearsal chose, and that it did; others must not be given."""
    chosen = chosen_settings(path)
    extra = [_OPTIONS[name] for name in _OPTIONS if settings[name] is not None]
    if extra:
        raise InvalidArgumentError(
            f"--rehearsal says how to fit; leave out {', '.join(extra)}, or give all settings as"
            " options. The statement then no longer says that they were tuned on simulated records."
        )
    return {**chosen, "tuning": "simulated"}


def _epsilon(epsilon: float | None, *, non_private: bool) -> float | None:
    if non_private and epsilon is not None:
        raise InvalidArgumentError("give either --epsilon or --non-private, not both.")
    if epsilon is not None and math.isinf(epsilon):
        raise InvalidArgumentError("--epsilon must be finite; to promise nothing, --non-private.")
    return math.inf if non_private else epsilon


def _require_resumable(settings: dict[str, Any], file: Path | None) -> None:
    """Raises unless no more is said than a resumed run takes: the table may have moved."""
    if settings["output"] is None:
        raise InvalidArgumentError("say which run to go on with: --resume --output run.")
    given = {**settings, "study": file}
    extra = [name for name, value in given.items() if value is not None and name not in _RESUMABLE]
    if extra:
        raise InvalidArgumentError(
            f"--resume goes on with the run's own study.toml; leave out {', '.join(extra)}."
        )


@contextlib.contextmanager
def _gentle_progress(name: str) -> Iterator[OnProgress]:
    """Shows a bar from where a run begins; from then on the first Ctrl-C only asks it to stop.

    The second stops it at once.
    """
    bar = ProgressBar(name, console=Console(stderr=True, quiet=not is_coordinator()))
    has_begun = is_asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked
        del number, frame
        if is_asked:
            raise KeyboardInterrupt
        is_asked = True
        note("stopping after the steps that are paid for; Ctrl-C again stops now, and loses them")

    with contextlib.ExitStack() as opened:

        def tell(*, step: int, num_steps: int, epsilon: float) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                # Elsewhere than in the main thread nobody can press Ctrl-C.
                if threading.current_thread() is threading.main_thread():
                    opened.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, ask))
                opened.enter_context(bar)
            bar(step=step, num_steps=num_steps, epsilon=epsilon)
            if is_asked and step < num_steps:  # a finished run is not worth stopping
                raise KeyboardInterrupt

        yield tell


def _show(found: TableFit, output: Path | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(found.statement_text, markup=False)
    facts = found.posterior.intervals
    if facts.rows:
        console.print()
    for name, text in facts.rows:
        style = "yellow" if name == CAUTION else None
        console.print(f"{name}: {text}", style=style, markup=False)
    if found.posterior.rounding is not None:
        console.print(f"draws: {found.posterior.rounding.text}", markup=False)
    console.print(f"\nwrote {output}: posterior, statement and schema, and no record", markup=False)
    if is_linear(found.posterior.model):
        console.print(f"90 % intervals of the coefficients are in {output}/coefficients.csv")
    console.print(
        f"next: tacit evaluate {output} test.csv --public, tacit report {output}",
        style="dim",
        markup=False,
    )


def _show_interrupted(stopped: Interrupted, *, as_json: bool) -> None:
    remedy = f"tacit fit --resume --output {stopped.output}" if stopped.step else None
    if as_json:
        document = {
            "interrupted": True,
            "step": stopped.step,
            "num_steps": stopped.num_steps,
            "epsilon": stopped.epsilon,
            "resume": remedy,
        }
        typer.echo(json.dumps(document))
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    spent = stopped.epsilon if isinstance(stopped.epsilon, str) else round_up(stopped.epsilon)
    console.print(
        f"{stopped}; epsilon {spent} is stated for them, as for all that were declared",
        style="bold",
    )
    if remedy is None:
        console.print("no step was finished", markup=False)
    else:
        console.print(f"kept in {stopped.output}; go on with: {remedy}", markup=False)
