"""Memory, time and loss of accuracy of a posterior of many draws of a large network.

``python -m benchmarks.posterior_memory`` makes 500 draws of 784-1200-1200-10 by a private fit on
generated records, each step in a process of its own, and renews the table of docs/performance.md;
``--num-draws 20 --no-page`` is a trial. The last rows are of a tenth of the draws in memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import tacit
from benchmarks.scaling_worker import MemoryWatch, kilobytes
from tacit import metrics
from tacit.data import as_records
from tacit.inference import SGLD, load_checkpoint, save_checkpoint
from tacit.models import MLP, Categorical, GaussianPrior, bayesian

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- posterior: begin -->", "<!-- posterior: end -->"
STEPS = ("fit", "save", "load", "predict", "resume", "credible")
NUM_RECORDS, NUM_INPUTS, BATCH = 10_000, 10_000, 64
MODEL = bayesian(
    MLP(num_inputs=784, hidden=(1200, 1200), num_outputs=10),
    prior=GaussianPrior(std=0.1),
    likelihood=Categorical(num_classes=10),
)


class Task(NamedTuple):
    """One step, as a process is told.

    Attributes:
      step: which of `STEPS`.
      folder: where all steps of one posterior find its files.
      num_draws: how many draws it has.
      is_half: whether its states are on disk in half precision.
    """

    step: str
    folder: str
    num_draws: int
    is_half: bool


class Measured(NamedTuple):
    """What a step took.

    Attributes:
      task: what was done.
      seconds: how long it took.
      before_mb: anonymous memory before the step.
      peak_mb: anonymous memory at its peak.
      whole_mb: the most memory that the process ever had, with that of files.
      note: what the step found.
    """

    task: Task
    seconds: float
    before_mb: float
    peak_mb: float
    whole_mb: float
    note: str


def inputs_and_labels() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns generated records: the label is the largest of ten random projections."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_RECORDS, 784)).astype(np.float32)
    return x, np.argmax(x @ rng.normal(size=(784, 10)), axis=1)


def plan(num_draws: int, *, more: int = 0) -> tacit.Plan:
    """Returns a run that retains the state after every step."""
    sampling = tacit.PoissonBatch(num_records=NUM_RECORDS, batch_size=BATCH)
    method = SGLD.fixed_temperature(sampling=sampling, clip_norm=1.0, step_size=1e-6)
    return tacit.Plan(method=method, num_steps=num_draws + more, thinning=1)


def _fit(task: Task, **resumed: Any) -> tacit.Fit:
    def keep(checkpoint: Any) -> None:
        save_checkpoint(checkpoint, task.folder)

    return tacit.fit(
        plan(task.num_draws, more=5 if resumed else 0),
        MODEL,
        as_records(*inputs_and_labels()),
        budget=tacit.Budget(1e6, 1e-5),
        half_precision=task.folder if task.is_half else None,
        on_chunk=keep,
        **resumed,
    )


def _steps(task: Task) -> dict[str, Callable[[], str]]:
    folder = Path(task.folder)

    def fit() -> str:
        made = _fit(task).posterior
        return "" if made.rounding is None else made.rounding.text

    def save() -> str:
        checkpoint = _checkpoint(task)
        posterior = tacit.Posterior(
            model=MODEL, sampler=tacit.samplers.Points(), kept=checkpoint.kept
        )
        posterior.save(folder / "saved")
        size = sum(file.stat().st_size for file in (folder / "saved").iterdir())
        return f"{size / 1e9:.2f} GB"

    def load() -> str:
        return repr(tacit.load_posterior(folder / "saved"))

    def predict() -> str:
        x, y = inputs_and_labels()
        found = tacit.predict(tacit.load_posterior(folder / "saved"), x[:NUM_INPUTS])
        accuracy = metrics.accuracy(np.asarray(found.probabilities), y[:NUM_INPUTS])
        ece = metrics.ece(np.asarray(found.probabilities), y[:NUM_INPUTS])
        return f"accuracy {accuracy:.3f}, calibration error {ece:.3f}"

    def resume() -> str:
        return repr(_fit(task, resume=_checkpoint(task)).posterior)

    def credible() -> str:
        interval = tacit.load_posterior(folder / "saved").credible()
        widths = jax.tree.map(lambda low, high: float((high - low).mean()), *interval)
        return f"mean width {np.mean(jax.tree.leaves(widths)):.3g}"

    found = locals()
    return {name: found[name] for name in STEPS}


def _checkpoint(task: Task) -> Any:
    return load_checkpoint(
        task.folder, plan(task.num_draws), MODEL, as_records(*inputs_and_labels())
    )


def _measure(task: Task) -> Measured:
    run = _steps(task)[task.step]
    jax.block_until_ready(jax.numpy.zeros(3) + 1)
    watch = MemoryWatch(every=0.002)
    before, started = kilobytes("RssAnon"), time.perf_counter()
    watch.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is an example, and its delta
        note = run()
    seconds = time.perf_counter() - started
    peak = max(watch.peak, kilobytes("RssAnon"))
    return Measured(task, seconds, before / 1e3, peak / 1e3, kilobytes("VmHWM") / 1e3, note)


def in_child(task: Task) -> Measured:
    """Returns what a step takes in a new process."""
    command = [sys.executable, "-m", "benchmarks.posterior_memory", "--child", json.dumps(task)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=_ROOT)
    own, *rest = json.loads(found.stdout.splitlines()[-1])
    return Measured(Task(*own), *rest)


def measured(num_draws: int) -> Iterator[Measured]:
    """Yields all steps in half precision, and of a tenth of the draws in memory."""
    for draws, is_half in ((num_draws, True), (max(4, num_draws // 10), False)):
        with tempfile.TemporaryDirectory() as folder:
            for step in STEPS:
                found = in_child(Task(step, folder, draws, is_half))
                print(json.dumps(found), file=sys.stderr)
                yield found


def render(rows: list[Measured]) -> str:
    """Returns the table, and what rounding changed."""
    names = {
        "fit": "fit, with a checkpoint for each chunk",
        "save": "load the checkpoint, save the posterior",
        "load": "open the posterior",
        "predict": f"predict and evaluate {NUM_INPUTS:,} inputs",
        "resume": "resume the run for 5 steps",
        "credible": "credible intervals of all parameters",
    }
    lines = [
        "| draws | states | step | s | anonymous MB beyond the start | whole process, peak MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        kind = "half precision, on disk" if row.task.is_half else "float32, in memory"
        lines.append(
            f"| {row.task.num_draws:,} | {kind} | {names[row.task.step]} | {row.seconds:.3g} |"
            f" {row.peak_mb - row.before_mb:,.0f} | {row.whole_mb:,.0f} |"
        )
    notes = {row.task.step: row.note for row in rows if row.task.is_half}
    lines += ["", f"The posterior of {rows[0].task.num_draws} draws says: {notes['fit']}."]
    return "\n".join(lines)


def main() -> None:
    """Measures, prints, and renews the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-draws", type=int, default=500)
    parser.add_argument("--no-page", action="store_true", help="only print")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(_measure(Task(*json.loads(options.child)))))
        return
    table = render(list(measured(options.num_draws)))
    print(table)
    if not options.no_page:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
