"""Runs every experiment: the cells that are missing, or one tiny cell of each."""

import argparse

from experiments.cells import measure_missing, run_quick
from experiments.registry import EXPERIMENTS, WITHOUT_REPEATS
from tacit.errors import TacitError


def main() -> None:
    """Runs what the command line says; an experiment without its data is skipped, in one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one tiny cell, nothing is kept")
    arguments = parser.parse_args()
    if arguments.quick:
        for experiment in WITHOUT_REPEATS:
            print(experiment.name, run_quick(experiment)["scores"], flush=True)
        return
    for experiment in EXPERIMENTS:
        try:
            measure_missing(experiment, experiment.cells, range(experiment.num_seeds))
        except TacitError as error:
            print(f"{experiment.name}: {error}", flush=True)


if __name__ == "__main__":
    main()
