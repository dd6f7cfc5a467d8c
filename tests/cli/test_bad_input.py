"""Whatever a table or a schema holds: an answer, or one line that says what is wrong."""

import csv
import io
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.tables import ILL, invoke, write_patients
from tacit import cli
from tacit.data import Schema
from tacit.data.schema import toml_of
from tacit.errors import TacitError

QUICK = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NAMES = st.sampled_from(["dose", "age", "city", "ill", "person", "", "a b", "[x]", "é", "#", '"'])
CELLS = st.one_of(
    st.sampled_from(
        ["", "?", "NA", "nan", "inf", "-inf", "1e400", "0", "1", "1.5", "-7", "Oslo", "Rome", "no",
         "yes", " yes", "9" * 400, "1e-400", "0x1F", "1,5", "TRUE", "\x00", "\r", "a\nb", '"', "'",
         "[bold]", "\ufeff", "٣", "1_000", "1e5", "None"]
    ),
    st.floats().map(str),
    st.integers().map(str),
    st.text(max_size=5),
)  # fmt: skip


COLUMNS = (
    st.one_of(st.floats(0, 10).map(str), st.sampled_from(["?", "", "3", "-1.7e308", "1.7e308"])),
    st.integers(18, 90).map(str),
    st.sampled_from(["Oslo", "Rome", "Paris", ""]),
    st.sampled_from(["no", "yes"]),
)


@st.composite
def tables(draw):
    """CSV files: mostly tables, some of them ragged, some of them no text at all."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=40))
    header = draw(st.lists(NAMES, min_size=1, max_size=5))
    if kind > 3:
        header = ["dose", "age", "city", "ill", *header[:1]]
    rows = draw(st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), max_size=5))
    if kind > 5:
        plausible = draw(st.lists(st.tuples(*COLUMNS), min_size=2, max_size=5))
        rows = [[*row, *["x"] * (len(header) - 4)] for row in plausible]
    if kind == 1 and rows:
        rows[-1] = rows[-1] + ["more"]
    out = io.StringIO()
    csv.writer(out, quoting=draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))).writerows(
        [header, *rows]
    )
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    return out.getvalue().encode(encoding, errors="replace")


PLAIN = st.one_of(
    st.none(), st.integers(), st.floats(), st.floats(1e307, 1.7e308), st.text(max_size=4),
    st.lists(st.integers(), max_size=3),
    st.lists(st.text(max_size=3), max_size=3), st.just([1, "a"]), st.just([[1]]), st.builds(dict),
)  # fmt: skip


@st.composite
def schemas(draw):
    """Schema files: right, with wrong parts, or no TOML."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.text(max_size=60))
    document = {
        "target": {"name": "ill", "classes": ["no", "yes"]},
        "columns": {
            "dose": {"low": 0, "high": 10},
            "age": {"low": 18, "high": 90, "scale": "linear", "knots": [30, 60]},
            "city": {"categories": ["Oslo", "Rome"]},
        },
    }
    for _ in range(draw(st.integers(0, 2))):
        place = draw(
            st.sampled_from(
                [("max_norm",), ("target",), ("target", "name"), ("target", "classes"),
                 ("target", "low"), ("columns",), ("columns", "dose"), ("columns", "dose", "low"),
                 ("columns", "dose", "high"), ("columns", "age", "scale"),
                 ("columns", "age", "knots"), ("columns", "city", "categories"), ("more",)]
            )
        )  # fmt: skip
        table = document
        for key in place[:-1]:
            table = table.get(key) if isinstance(table.get(key), dict) else {}
        value = draw(PLAIN)
        if value is None:
            table.pop(place[-1], None)
        else:
            table[place[-1]] = value
    # Plain values come before tables.
    ordered = dict(sorted(document.items(), key=lambda item: isinstance(item[1], dict)))
    try:
        return toml_of(ordered)
    except TypeError:  # a value that TOML has not
        return "[target]"


def require_an_answer(*arguments):
    """Runs a verb and demands an answer, or one readable line."""
    result = invoke(*arguments)
    error = result.exception
    if error is None or isinstance(error, SystemExit):
        assert result.exit_code in (0, 2), result.output
        return
    assert isinstance(error, TacitError), (arguments, result.output)
    assert str(error).strip()


class ReachedError(TacitError):
    pass


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Settings with which a fit is prepared without compiling anything."""
    path = tmp_path_factory.mktemp("study") / "study.toml"
    path.write_text(
        "[budget]\nepsilon = 1.0\ndelta = 0.01\n[recipe]\nclip_norm = 1.0\nnum_steps = 2\n"
        "hidden = []\n"
    )
    return path


@settings(QUICK, max_examples=150)
@given(table=tables(), schema=schemas())
def test_no_table_and_no_schema_makes_a_fit_stumble(tmp_path, study, monkeypatch, table, schema):
    def reached(*_, **__):
        raise ReachedError("all was well, and a fit would begin")

    monkeypatch.setattr("tacit.studies.execution.fit_table", reached)
    (tmp_path / "data.csv").write_bytes(table)
    (tmp_path / "schema.toml").write_text(schema, encoding="utf-8", errors="replace")
    out = tmp_path / "run"
    require_an_answer(
        "fit", tmp_path / "data.csv", "--schema", tmp_path / "schema.toml", "--study", study,
        "-o", out,
    )  # fmt: skip
    assert not out.exists() or not list(out.iterdir())
    shutil.rmtree(out, ignore_errors=True)


@settings(QUICK, max_examples=150)
@given(table=tables(), target=st.one_of(st.none(), NAMES))
def test_no_table_makes_a_draft_stumble_and_each_draft_is_a_schema(tmp_path, table, target):
    (tmp_path / "data.csv").write_bytes(table)
    out = tmp_path / "draft.toml"
    chosen = [] if target is None else [f"--target={target}"]
    require_an_answer("schema", tmp_path / "data.csv", "-o", out, "--overwrite", *chosen)
    if out.exists():
        text = out.read_text(encoding="utf-8")
        assert text.startswith("# A DRAFT")
        if "only one class occurs" not in text:
            Schema.from_toml(text)
        out.unlink()


@settings(QUICK, max_examples=60)
@given(table=tables())
def test_no_table_makes_predictions_or_evaluations_stumble(tiny_run, tmp_path, table):
    (tmp_path / "data.csv").write_bytes(table)
    require_an_answer("predict", tiny_run / "run", tmp_path / "data.csv")
    require_an_answer("evaluate", tiny_run / "run", tmp_path / "data.csv", "--by", "city")


@settings(QUICK, max_examples=100)
@given(text=st.one_of(st.text(max_size=80), schemas()))
def test_no_study_makes_a_fit_stumble(tmp_path, text):
    (tmp_path / "study.toml").write_text(text, encoding="utf-8", errors="replace")
    require_an_answer("fit", "data.csv", "--study", tmp_path / "study.toml", "-o", tmp_path / "x")


def test_a_table_of_one_class_is_refused(tmp_path, study):
    frame = write_patients(tmp_path)
    frame[frame.ill == "no"].to_csv(tmp_path / "data.csv", index=False)
    result = invoke(
        "fit", tmp_path / "data.csv", "--schema", tmp_path / "schema.toml", "--study", study,
        "-o", tmp_path / "run",
    )  # fmt: skip
    assert "all rows are of one class" in str(result.exception)


def main_says(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["tacit", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return exit_.value.code, capsys.readouterr()


def test_an_error_is_one_red_line_and_exit_code_2(monkeypatch, capsys, tmp_path):
    (tmp_path / "data.csv").write_bytes(b"\xff\xfe")
    code, captured = main_says(monkeypatch, capsys, "schema", tmp_path / "data.csv")
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


def test_an_error_of_the_file_system_is_one_line_too(monkeypatch, capsys, classes):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "run/report.html")

    monkeypatch.setattr("tacit.cli.statement.write_report", full)
    code, captured = main_says(monkeypatch, capsys, "report", classes / "run")
    assert code == 2
    assert captured.err == "error: run/report.html cannot be used (No space left on device).\n"


def test_too_little_memory_is_one_line_too(monkeypatch, capsys):
    def too_much(*_, **__):
        raise MemoryError

    monkeypatch.setattr("tacit.cli.schema.prepare", too_much)
    words = ["plan", "--records", 10, "--features", 3]
    code, captured = main_says(monkeypatch, capsys, *words)
    assert code == 2
    assert captured.err.startswith("error: there is not enough memory.")


@pytest.mark.parametrize(
    "text",
    [
        f"[target]\nname='ill'\nlow=0\nhigh=1{'0' * 400}\n[columns.a]\nlow=0\nhigh=1\n",
        f"[target]\nname='ill'\nclasses=[0, 1{'0' * 400}]\n[columns.a]\nlow=0\nhigh=1\n",
        f"a = {'1' * 5000}\n",
        f"a = {'[' * 3000}\n",
    ],
    ids=["a range", "a class", "a long number", "a deep nesting"],
)
def test_numbers_beyond_all_bounds_are_refused(tmp_path, text):
    (tmp_path / "schema.toml").write_text(text)
    result = invoke("plan", "--schema", tmp_path / "schema.toml", "--records", 10)
    assert isinstance(result.exception, TacitError)
    assert "schema.toml" in str(result.exception)


def test_a_warning_about_privacy_is_a_note_without_code(classes, monkeypatch):
    monkeypatch.chdir(classes)
    write_patients(classes, schema=ILL)
    result = invoke("fit", "--study", "run/study.toml", "-o", "again")
    assert "note: this posterior is INSECURE" in result.stderr
    assert "site-packages" not in result.stderr
    assert "PrivacyWarning" not in result.stderr
    assert Path("again/posterior.json").exists()
