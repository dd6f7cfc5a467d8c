"""``tacit demo``: a private Bayesian network on real census records, in half a minute or so.

Three fits of one network on UCI Adult: DP-SGLD, DP-SGD, and SGD without privacy. The official
test part is taken as public. Settings were chosen on a held-out part of the training records,
after trials of neighbouring settings had been scored on the test part, so its figures are not
blind. Both parts are public; on records that are not, such a choice would have to be paid for.
"""

import json
import math
import textwrap
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import optax
import typer
from rich.console import Console
from rich.table import Table

from tacit import _check, metrics
from tacit.cli._options import JsonOption, SeedOption
from tacit.data import ADULT_SCHEMA, encode_table, load_adult
from tacit.errors import InvalidArgumentError, PrivacyWarning
from tacit.inference import SGD, SGLD, Fit, Plan, ProgressBar, calibrate, fit
from tacit.inference.chains import OnProgress
from tacit.metrics.calibration import ReliabilityTable
from tacit.metrics.uncertainty import ClassificationUncertainty
from tacit.models import MLP, Bernoulli, GaussianPrior, bayesian
from tacit.posterior import predict
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch
from tacit.report.figures import reliability_diagram
from tacit.typing import Record

__all__ = ["DemoRow", "demo_command", "run_demo"]

_NUM_STEPS = 400
_CLIP_NORM = 4.0
_SGLD_STEP = 3.0  # as a learning rate on the mean gradient: h = 2 * 3 / n
_SGD_RATE, _PLAIN_RATE, _SGD_MOMENTUM = 0.2, 1.0, 0.9


@dataclass(frozen=True, kw_only=True)
class DemoRow:
    """One line of the demo's table; metrics are of the public test part.

    Attributes:
      name: of the method.
      epsilon: of what was executed, rounded up, as text.
      delta: of the same.
      accuracy: share of right classes.
      nll: mean negative log likelihood.
      ece: expected calibration error with 15 bins.
      epistemic: mean mutual information, in nats: how much the draws disagree.
      seconds: of the fit.
    """

    name: str
    epsilon: str
    delta: float
    accuracy: float
    nll: float
    ece: float
    epistemic: float
    seconds: float


def run_demo(
    directory: Path,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    seed: int | None = None,
    num_steps: int = _NUM_STEPS,
    progress: Callable[[str], AbstractContextManager[OnProgress]],
) -> tuple[list[DemoRow], Fit]:
    """Runs the three fits, writes what may be published, returns the table and the private fit.

    Args:
      directory: receives ``reliability.png``, ``results.json``, ``statement.txt`` and the
        DP-SGLD posterior.
      epsilon: the budget of each private fit.
      delta: the same.
      seed: for a repeatable picture; marks the statements INSECURE.
      num_steps: of each fit.
      progress: makes a progress bar for a method's name.
    """
    train, test = (encode_table(frame, ADULT_SCHEMA) for frame in load_adult())
    budget = Budget(epsilon=epsilon, delta=delta)
    model = bayesian(
        MLP(num_inputs=train.x.shape[1], hidden=(32,), num_outputs=1),
        prior=GaussianPrior(std=0.3),
        likelihood=Bernoulli(),
    )
    rows, tables, fits = [], {}, {}
    for name, (plan, own) in _plans(train, budget, num_steps).items():
        start = time.perf_counter()
        with progress(name) as bar:
            result = fit(plan, model, train, budget=own, seed=seed, progress=bar)
        row, table = _evaluate(name, result, test, time.perf_counter() - start)
        rows.append(row)
        tables[f"{name}, ε = {row.epsilon.split()[0].replace('infinity', '∞')}"] = table
        fits[name] = result

    directory.mkdir(parents=True, exist_ok=True)
    reliability_diagram(tables).savefig(directory / "reliability.png", dpi=150)
    private = fits["DP-SGLD"]
    with warnings.catch_warnings():
        # A seeded demo says INSECURE in its table and its statement.
        warnings.simplefilter("ignore", PrivacyWarning)
        private.posterior.save(directory)
    (directory / "statement.txt").write_text(f"{private.statement}\n")
    results = {"rows": [asdict(row) for row in rows], "statement": private.statement.to_json()}
    (directory / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    return rows, private


def _plans(train: Record, budget: Budget, num_steps: int) -> dict[str, tuple[Plan, Budget]]:
    num_records = len(train.y)
    sampling = PoissonBatch(num_records=num_records, batch_size=2048)
    release = GaussianSum(
        sampling=sampling, clip_norm=_CLIP_NORM, noise_multiplier=1.0, chunk_size=256
    )
    descent = SGD(release=release, optimizer=optax.sgd(_SGD_RATE, momentum=_SGD_MOMENTUM))
    langevin = Plan(
        method=SGLD.fixed_noise(release=release, step_size=2 * _SGLD_STEP / num_records),
        num_steps=num_steps,
        burn_in=num_steps // 2,
        thinning=num_steps // 40,
    )
    plain = SGD(
        release=replace(release, clip_norm=math.inf, noise_multiplier=0.0),
        optimizer=optax.sgd(_PLAIN_RATE, momentum=_SGD_MOMENTUM),
    )
    return {
        "DP-SGLD": (calibrate(langevin, budget), budget),
        "DP-SGD": (calibrate(Plan(method=descent, num_steps=num_steps), budget), budget),
        "SGD, not private": (Plan(method=plain, num_steps=num_steps), Budget.non_private()),
    }


def _evaluate(
    name: str, result: Fit, test: Record, seconds: float
) -> tuple[DemoRow, ReliabilityTable]:
    predictions = predict(result.posterior, test.x, batch_size=4096)
    assert isinstance(predictions, ClassificationUncertainty)
    probabilities, labels = np.asarray(predictions.probabilities), np.asarray(test.y)
    table = metrics.reliability(probabilities, labels)
    row = DemoRow(
        name=name,
        epsilon=result.statement.epsilon_text,
        delta=result.statement.delta,
        accuracy=metrics.accuracy(probabilities, labels),
        nll=metrics.nll(probabilities, labels),
        ece=table.ece,
        epistemic=float(np.mean(predictions.mutual_information)),
        seconds=seconds,
    )
    return row, table


_FEWEST_STEPS = 40  # the second half of the chain is thinned to twenty states


def demo_command(
    *,
    epsilon: Annotated[float, typer.Option(help="Budget of each private fit.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Chance that the promise fails.")] = 1e-5,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the picture and the posterior.")
    ] = Path("tacit-demo"),
    seed: SeedOption = None,
    steps: Annotated[int, typer.Option(help="Updates of each fit, at least 40.")] = 400,
    as_json: JsonOption = False,
) -> None:
    """Fit a private Bayesian network to census records and compare it with two others.

    The records are UCI Adult (does a person earn over 50 000 dollars?), which ships with tacit.
    Nothing is downloaded. It takes about half a minute on two cores. For example, with a tenth
    of the budget:

    [bold]tacit demo --epsilon 0.1 --output demo-tenth[/]
    """
    _check.positive(epsilon=epsilon)
    _check.fraction(one=False, delta=delta)
    if steps < _FEWEST_STEPS:
        raise InvalidArgumentError(f"--steps must be at least {_FEWEST_STEPS}; got {steps}.")
    if seed is not None and seed < 0:
        raise InvalidArgumentError(
            f"--seed must be a whole number of at least 0; got {seed}. Leave it out for secret"
            " noise."
        )
    _check.writable_directory(output=output)
    progress_console = Console(stderr=True)
    rows, private = run_demo(
        output,
        epsilon=epsilon,
        delta=delta,
        seed=seed,
        num_steps=steps,
        progress=lambda name: ProgressBar(f"{name:<17}", console=progress_console),
    )
    if as_json:
        document = {
            "rows": [asdict(row) for row in rows],
            "statement": private.statement.to_json(),
            "output": str(output),
        }
        typer.echo(json.dumps(document))
    else:
        _show(rows, private, output)


def _show(rows: list[DemoRow], private: Fit, output: Path) -> None:
    table = Table(title="UCI Adult: income above 50 000 dollars, public test part")
    table.add_column("method")
    for column in ("epsilon", "accuracy", "NLL", "ECE", "epistemic", "seconds"):
        table.add_column(column, justify="right")
    for row in rows:
        numbers = (row.accuracy, row.nll, row.ece, row.epistemic)
        epsilon = row.epsilon.split()[0]  # one note below serves all rows, and the table stays slim
        table.add_row(
            row.name, epsilon, *(f"{value:.3f}" for value in numbers), f"{row.seconds:.0f}"
        )
    if not private.statement.is_secure:
        table.caption = "INSECURE: whoever knows the seed can take the noise off."
    console = Console(highlight=False)
    console.print()
    console.print(table)
    console.print()
    hanging = " " * 15  # where the statement's second column begins
    for line in f"DP-SGLD is {private.statement}".splitlines():
        wrapped = textwrap.fill(line, console.width, subsequent_indent=hanging)
        console.print(wrapped, markup=False, soft_wrap=True)
    files = "reliability.png, posterior.*, statement.txt, results.json"
    console.print(f"\nWritten to {output}: {files}", markup=False, soft_wrap=True)
