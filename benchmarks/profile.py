"""Where the time of a private step goes; the command is ``python -m benchmarks.profile``."""

import argparse
import os

import numpy as np

from benchmarks import tasks
from benchmarks.markdown import markdown, number
from benchmarks.parts import PARTS, STEP, parts_in, visits_of_parts
from benchmarks.timing import Effort, interleave
from benchmarks.workloads import WORKLOADS, Workload
from tacit.privacy.sampling import PoissonBatch

__all__ = ["profile", "render_profile"]

_NUM_THREADS = 2
_EFFORT = Effort(rounds=15, visit_seconds=0.1, min_rounds=5, max_seconds=3.0)


def profile(workload: Workload, batch: int, effort: Effort) -> dict[str, float]:
    """Returns the milliseconds of each part of a private step, and of the whole."""
    data = workload.records(np.random.default_rng(0), workload.num_records)
    sampling = PoissonBatch(num_records=workload.num_records, batch_size=batch)
    method, model = tasks.method_of(workload, sampling), tasks.model_of(workload)
    times = interleave(visits_of_parts(method, model, data), effort)
    ms = {name: time.best for name, time in times.items()}
    return parts_in(ms) | {STEP: ms[STEP]}


def render_profile(name: str, batch: int, ms: dict[str, float]) -> str:
    """Returns a profile as a table in Markdown."""
    rows = [
        [part, number(ms[part]), f"{100 * ms[part] / ms[STEP]:.0f} %"]
        for part in PARTS
        if part in ms
    ]
    head = [f"{name}, {batch}", "ms in a loop", "share"]
    return markdown(head, [*rows, ["the step", number(ms[STEP]), ""]])


def main() -> None:
    """Prints the profile of one workload, or of all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("workload", nargs="?", choices=[*WORKLOADS], help="by default all")
    parser.add_argument("--batch", type=int, help="by default those of the benchmark")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_NUM_THREADS])
    for name in [arguments.workload] if arguments.workload else WORKLOADS:
        for batch in [arguments.batch] if arguments.batch else WORKLOADS[name].batches:
            found = profile(WORKLOADS[name], batch, _EFFORT)
            print(render_profile(name, batch, found) + "\n", flush=True)


if __name__ == "__main__":
    main()
