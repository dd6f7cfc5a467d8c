"""A small table as CSV with its schema, and the command run in process."""

from typer.testing import CliRunner

from estimators.tables import ILL, WEEKS, patients
from tacit import cli
from tacit.errors import TacitError

__all__ = ["ILL", "WEEKS", "invoke", "patients", "refused", "tacit", "write_patients"]

TINY = ("--steps", "4", "--hidden", "none", "--delta", "1e-3")


def invoke(*arguments):
    """Runs a verb; an error comes back in the result."""
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env={"COLUMNS": "100"})


def tacit(*arguments, code=0):
    """Runs a verb that must end with an exit code."""
    result = invoke(*arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def refused(*arguments):
    """Runs a verb that must refuse, and returns its one line."""
    result = invoke(*arguments)
    assert isinstance(result.exception, TacitError), result.output
    message = str(result.exception)
    assert "\n" not in message
    return message


def write_patients(folder, *, schema=ILL, num_rows=200, seed=0):
    """Writes ``data.csv`` and ``schema.toml``."""
    frame = patients(num_rows, seed)
    frame["person"] = [f"p{i // 2}" for i in range(num_rows)]
    frame["weight"] = 0.5
    frame.to_csv(folder / "data.csv", index=False)
    (folder / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
    return frame
