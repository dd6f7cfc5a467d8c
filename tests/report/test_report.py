"""The report says what is there and what is not, escapes what it shows, and needs no network."""

import html.parser
import json
import math
import re
from dataclasses import replace

import dp_accounting
import pytest
from typer.testing import CliRunner

import tacit
from tacit import cli
from tacit.audit.membership import LiRA, LossAttack
from tacit.errors import TacitError
from tacit.privacy.filters import RDPFilter
from tacit.privacy.ledger import LedgerFile
from tacit.report.figures import chart, chart_axes
from tacit.report.html import _references, citations_of, render_report, write_report
from tacit.studies.run_folder import read_run

VOID = {"meta", "link", "br", "circle", "path", "rect"}


class Outline(html.parser.HTMLParser):
    """Checks that tags are closed in order, and collects addresses."""

    def __init__(self, page):
        super().__init__()
        self.open, self.addresses, self.tags = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tacit_command(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def test_a_full_run_is_shown_in_full(full_run):
    page = write_report(full_run).read_text("utf-8")
    assert "To do so:" not in page
    for part in ("84.0\N{NO-BREAK SPACE}%", "CROWN", "no violation found", "few records"):
        assert part in page
    # Epsilon, trade-off, reliability, coefficients, 2 + 1, certificate.
    assert page.count("<figure>") == 8
    # The coefficients have a table beside them.
    assert page.count("The same as a table") == 7


def test_what_is_missing_is_said_in_one_line_each(bare_run):
    page = write_report(bare_run).read_text("utf-8")
    for verb in ("evaluate", "certify", "audit", "report run/ --ledger", "fit"):
        assert f"<code>tacit {verb}" in page
    assert page.count("<figure>") == 2  # trade-off and coefficients


@pytest.mark.parametrize("kind", ["full", "bare"])
def test_the_page_is_well_formed_and_loads_nothing(request, kind):
    page = write_report(request.getfixturevalue(f"{kind}_run")).read_text("utf-8")
    outline = Outline(page)
    assert outline.open == []
    assert all(address.startswith(("#", "data:")) for address in outline.addresses)
    assert "script" not in outline.tags
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|url\(", page)


def test_text_from_files_is_escaped(full_run):
    page = write_report(full_run).read_text("utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<b>female" not in page


def test_a_seeded_run_says_so_first(full_run, fitted):
    fit, _ = fitted
    replace(fit.statement, is_secure=False).save(full_run)
    page = render_report(read_run(full_run))
    assert page.index("INSECURE") < page.index("In plain words")
    assert "May be published" not in page


def test_a_run_without_privacy_says_so_first(bare_run, fitted):
    statement = tacit.privacy.statement.construction.make_statement(
        cost=tacit.Cost(fitted[0].plan.cost, is_secure=True),
        budget=tacit.Budget.non_private(),
        unit="one record",
        num_units=400,
    )
    assert math.isinf(statement.epsilon)
    statement.save(bare_run)
    page = render_report(read_run(bare_run))
    assert page.index("NOT PRIVATE") < page.index("In plain words")
    assert "best possible attack" not in page


@pytest.mark.parametrize(
    ("unit", "words"),
    [("one person, with at most 3 rows", "100 people"), ("one row", "100 records")],
)
def test_people_are_promised_something_only_where_people_are_protected(
    bare_run, fitted, unit, words
):
    replace(fitted[0].statement, unit=unit).save(bare_run)
    page = render_report(read_run(bare_run))
    assert f"Of {words} in the data" in page


def test_an_evaluation_on_private_records_says_what_it_cost(full_run):
    document = json.loads((full_run / "evaluation.json").read_text())
    document["data"] |= {"public": False, "statement": {"epsilon_text": "0.250", "delta": 1e-6}}
    (full_run / "evaluation.json").write_text(json.dumps(document))
    page = render_report(read_run(full_run))
    assert "They are charged: epsilon 0.250 at delta 1e-06." in page


@pytest.mark.parametrize("verb", ["evaluation", "certificate", "audit"])
def test_a_page_with_unpaid_results_from_private_records_is_not_for_publication(full_run, verb):
    file = full_run / f"{verb}.json"
    assert "NOT FOR PUBLICATION" not in render_report(read_run(full_run))
    document = json.loads(file.read_text())
    document["data"] = document["data"] | {"public": False, "statement": "Nobody paid for it."}
    file.write_text(json.dumps(document))
    page = render_report(read_run(full_run))
    assert page.index("NOT FOR PUBLICATION") < page.index('class="tiles"')
    assert f"unpaid results from private records: {verb}" in page


def test_a_statement_whose_epsilon_is_no_number_is_named(bare_run):
    run = read_run(bare_run)
    with pytest.raises(TacitError, match="epsilon"):
        render_report(replace(run, statement=run.statement | {"epsilon": "small"}))


def test_an_altered_statement_is_not_called_verified(full_run):
    file = full_run / "statement.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"epsilon": 0.1, "epsilon_text": "0.100"}))
    page = render_report(read_run(full_run))
    assert "THE CLAIM DOES NOT HOLD" in page
    assert "May be published" not in page


@pytest.mark.parametrize("name", ["evaluation", "certificate", "audit", "progress"])
@pytest.mark.parametrize("content", ["{}", "[]", "[{}]", "{"])
def test_a_document_that_is_not_what_it_should_be_is_named(full_run, name, content):
    (full_run / f"{name}.json").write_text(content)
    if name == "progress" and content == "[]":
        assert "was not noted" not in render_report(read_run(full_run))
        return
    with pytest.raises(TacitError, match=rf"{name}\.json"):
        render_report(read_run(full_run))


def test_the_ledger_is_shown_where_one_is_given(full_run, tmp_path):
    path = tmp_path / "people.ledger"
    ledger = LedgerFile.create(path)
    people = ledger.register("people", RDPFilter.of_budget(epsilon=4.0, delta=1e-6))
    people.charge(
        tacit.Cost(dp_accounting.GaussianDpEvent(5.0), is_secure=True), purpose="a first look"
    )
    result = tacit_command("report", full_run, "--ledger", path, "--json")
    assert result.exit_code == 0, result.output
    page = (full_run / "report.html").read_text("utf-8")
    assert "a first look" in page
    assert "all 1 runs together" in page
    assert not any(
        run.fingerprint in page for run in ledger.state.data_sets["people"].runs.values()
        if run.fingerprint
    )  # fmt: skip


def test_the_command_writes_the_page_where_it_is_told(bare_run, tmp_path):
    result = tacit_command("report", bare_run, "-o", tmp_path / "page.html")
    assert result.exit_code == 0
    assert (tmp_path / "page.html").exists()


def test_the_statement_command_prints_and_verifies(bare_run, fitted):
    assert "PRIVACY STATEMENT" in tacit_command("statement", bare_run).stdout
    printed = json.loads(tacit_command("statement", bare_run, "--json").stdout)
    assert printed["epsilon"] == fitted[0].statement.epsilon
    verified = tacit_command("statement", "--verify", bare_run)
    assert (verified.exit_code, "the claim holds" in verified.stdout) == (0, True)
    file = bare_run / "statement.json"
    alone = tacit_command("statement", "--verify", file, "--json")
    assert json.loads(alone.stdout)["holds"] is True
    file.write_text(json.dumps(printed | {"epsilon": 0.5}))
    refused = tacit_command("statement", "--verify", bare_run)
    assert (refused.exit_code, "DOES NOT HOLD" in refused.stdout) == (1, True)
    assert tacit_command("statement", bare_run / "nowhere").exit_code != 0


def test_a_statement_is_found_in_the_posterior_alone(bare_run):
    (bare_run / "statement.json").unlink()
    assert tacit_command("statement", "--verify", bare_run).exit_code == 0


def test_exactly_what_was_used_is_cited(fitted):
    statement = fitted[0].statement.to_json()
    keys = {re.search(r"\{(\w+),", item.bibtex)[1] for item in citations_of(statement)}
    assert {"welling2011bayesian", "abadi2016deep", "doroshenko2022connect"} <= keys
    assert not {"chen2014stochastic", "cohen2019certified", "steinke2023privacy"} & keys


@pytest.mark.parametrize(
    ("attack", "key"),
    [
        (LossAttack(), "yeom2018privacy"),
        (LiRA(num_shadows=4), "carlini2022membership"),
    ],
)
def test_the_attack_of_an_audit_is_cited(fitted, attack, key):
    audit = {"attack": f"{attack.sentence}, 9 canaries in one run"}
    found = citations_of(fitted[0].statement.to_json(), audit=audit)
    assert "steinke2023privacy" in found[-2].bibtex
    assert key in found[-1].bibtex


def test_every_reference_has_what_a_reader_needs():
    for key, item in _references().items():
        assert {"author", "title", "year"} <= item.fields.keys(), key
        assert item.fields["year"] in item.text
        assert item.bibtex.count("{") == item.bibtex.count("}")


@pytest.mark.parametrize(
    "name",
    ["SGD", "SGLD", "SGHMC", "HMC", "VI", "IVON", "Laplace", "SWAG", "Ensemble", "ProgramSVI"],
)
def test_every_method_has_a_source(fitted, name):
    first = citations_of(fitted[0].statement.to_json() | {"method": name})[0]
    assert first.why == "the method"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 1.0, 5), (0.0, 400.0, 5), (0.4, 1.0, 6), (0.0, 1e-6, 5), (0.8, 1.0, 5)],
)
def test_ticks_are_few_and_inside(low, high, expected):
    ticks = chart_axes("", "", x_limits=(low, high), y_limits=(0, 1)).get_xticks()
    assert abs(len(ticks) - expected) <= 2
    assert low - 1e-12 <= min(ticks)
    assert max(ticks) <= high + 1e-9


@pytest.mark.parametrize("limits", [(0.0, 0.0), (1.0, 0.0), (0.0, math.inf), (math.nan, 1.0)])
def test_an_axis_that_goes_nowhere_is_refused(limits):
    with pytest.raises(TacitError, match="axis must end above"):
        chart_axes("", "", x_limits=limits, y_limits=(0, 1))


def test_a_title_cannot_break_out_of_a_chart():
    axes = chart_axes('"><script>', '"><script>', x_limits=(0, 1), y_limits=(0, 1))
    drawn = chart(axes, title='"><script>', caption="", columns=(), rows=())
    assert "<script>" not in drawn.svg


def test_the_charts_take_their_colours_and_fonts_from_the_page_and_share_no_names(full_run):
    page = render_report(read_run(full_run))
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert not any(re.search(r"#[0-9a-f]{6}|font-family|clip-path", svg) for svg in drawings)
    names = re.findall(r' id="([^"]+)"', page)
    assert len(set(names)) == len(names)
    assert render_report(read_run(full_run)) == page
