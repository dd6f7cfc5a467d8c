"""``tacit certify``: for how many records no change within a radius can alter a prediction."""

import enum
import json
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import typer
from rich.console import Console
from rich.table import Table

from tacit import _check
from tacit.certify import certified_curve
from tacit.cli import _labelled
from tacit.cli._files import write_json
from tacit.cli._labelled import Terms, read_labelled
from tacit.cli._options import SeedOption
from tacit.cli._plan import JsonOption, check_positive
from tacit.data import Schema, Target
from tacit.errors import InvalidArgumentError
from tacit.estimators import load_fitted_table
from tacit.report.certification import METHOD, certificate_points, private_certificate_points
from tacit.robust import L2, Ball, Linf

__all__ = ["certify"]


class NormName(enum.Enum):
    """How far an input may move."""

    LINF = "linf"
    L2 = "l2"

    def ball(self, schema: Schema) -> Ball:
        """Returns the ball of this norm within the range of features."""
        kind = Linf if self is NormName.LINF else L2
        if schema.max_norm is not None:  # then features are scaled, and their range is another
            return kind(radius=0.0)
        return kind(radius=0.0, low=-1.0, high=1.0)


def certify(
    run: Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)],
    table: Annotated[Path, typer.Argument(help="A CSV file with labels.", show_default=False)],
    *,
    radius: Annotated[
        list[float], typer.Option(help="How far features in [-1, 1] may move; repeat it.")
    ],
    norm: Annotated[
        NormName, typer.Option(help="Each feature by so much (linf), or all together (l2).")
    ] = NormName.LINF,
    first: Annotated[
        int | None, typer.Option(help="Only the first so many rows: a certificate takes time.")
    ] = None,
    public: _labelled.PublicOption = False,
    epsilon: _labelled.ChargeOption = None,
    delta: _labelled.EvaluationDeltaOption = None,
    ledger: _labelled.LedgerOption = None,
    data_set: _labelled.DataSetOption = None,
    groups: _labelled.GroupsOption = None,
    owner_only: _labelled.OwnerOnlyOption = False,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Certify predictions: right, whatever somebody changes within a radius.

    The radius is in units of encoded features, which lie in [-1, 1]: for a numeric column, half of
    its range is 1. Categories may move in between, too, so a certificate is stricter than needed.

    [bold]tacit certify run test.csv --radius 0.02 --radius 0.05 --norm linf --public[/]
    """
    terms = Terms(
        public=public,
        owner_only=owner_only,
        epsilon=epsilon,
        delta=delta,
        ledger=ledger,
        data_set=data_set,
        groups=groups,
        seed=seed,
    )
    for value in radius:
        check_positive("--radius", value)
    if first is not None:
        _check.positive_integer(**{"--first": first})
    fitted = load_fitted_table(run)
    if not isinstance(fitted.schema.target, Target):
        raise InvalidArgumentError("a certificate is about classes; this run predicts numbers.")
    frame, labels = read_labelled(table, fitted)
    frame, labels = frame[:first], labels[:first]
    people = terms.people(fitted, frame)
    budget, account = (None, None) if epsilon is None else terms.open()
    certificates = certified_curve(
        fitted.posterior,
        jnp.asarray(fitted.schema.encode(frame)),
        jnp.asarray(labels),
        norm.ball(fitted.schema),
        sorted({0.0, *radius}),
    )
    charged, num_records = None, len(frame)
    if budget is None:
        points = certificate_points(certificates)
    else:
        num_records = num_records if people is None else int(people.max()) + 1
        points, charged = private_certificate_points(
            certificates, budget=budget, people=people, ledger=account, seed=seed
        )
    document = {
        "data": terms.describe(table, num_records, charged),
        "norm": "l-infinity" if norm is NormName.LINF else "l2",
        "points": points,
        "method": METHOD,
    }
    if terms.is_written:
        write_json(run / "certificate.json", document)
    if as_json:
        typer.echo(json.dumps(document))
        return
    console = Console(highlight=False, soft_wrap=True)
    _show(console, document)
    terms.show(console, charged)
    if terms.is_written:
        console.print(f"wrote {run / 'certificate.json'}", markup=False)


def _show(console: Console, document: dict[str, Any]) -> None:
    data = document["data"]
    console.print(
        f"{data['num_records']:,} records of {data['name']}, {document['norm']}",
        style="bold",
        markup=False,
    )
    table = Table("radius", "certified", "95 % interval", box=None, padding=(0, 2, 0, 0))
    for row in document["points"]:
        table.add_row(
            f"{row['radius']:g}",
            f"{100 * row['certified']:.1f} %",
            f"{100 * row['low']:.1f} to {100 * row['high']:.1f} %",
        )
    console.print(table)
    console.print("features lie in [-1, 1]; at radius 0 it is the accuracy\n", style="dim")
