"""Objects show themselves in terminals and notebooks: short, escaped, without a record."""

import io
import subprocess
import sys
from dataclasses import replace

import dp_accounting
import numpy as np
import optax
import pytest
from rich.console import Console

import tacit
from laws.cases import MODELS, engine, table
from tacit import _display
from tacit.numpyro.posterior import ProgramPosterior
from tacit.privacy.accounting import CLTApproximation
from tacit.privacy.cost import Cost
from tacit.privacy.statement.construction import make_statement

BUDGET = tacit.Budget(epsilon=1e6, delta=1e-3)


@pytest.fixture(scope="module")
def fitted():
    records = table("dense")
    sampling = tacit.FullBatch(num_records=len(records.y))
    method = tacit.SGD(release=engine(sampling), optimizer=optax.sgd(0.1))
    plan = tacit.Plan(method=method, num_steps=2)
    return tacit.fit(plan, MODELS["dense"], records, budget=BUDGET), records


@pytest.fixture(params=["fit", "posterior", "statement", "plan", "budget"])
def thing(request, fitted):
    fit, _ = fitted
    return {
        "fit": fit,
        "posterior": fit.posterior,
        "statement": fit.statement,
        "plan": fit.plan,
        "budget": BUDGET,
    }[request.param]


def printed(thing, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(thing)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [20, 80, 200])
def test_a_terminal_shows_a_panel_at_every_width(thing, width):
    lines = printed(thing, width).splitlines()
    assert lines[0].startswith("╭")
    assert max(map(len, lines)) <= width
    assert len(lines) < 400


def test_a_notebook_shows_a_table(thing):
    page = thing._repr_html_()
    assert page.count("<tr>") == page.count("</tr>") > 1
    assert "<script" not in page


def test_no_record_is_shown(thing, fitted):
    _, records = fitted
    shown = thing._repr_html_() + printed(thing) + repr(thing)
    values = {f"{value:.4f}" for value in np.asarray(records.x).ravel().tolist()}
    assert not any(value in shown for value in values)
    assert "Array(" not in repr(thing)


def test_what_nobody_may_overlook_is_loud(fitted):
    fit, _ = fitted
    posterior = replace(fit.posterior, statement=fit.posterior.statement | {"is_secure": False})
    assert "INSECURE" in printed(posterior)
    assert "INSECURE" in posterior._repr_html_()
    assert "no privacy statement" in printed(replace(fit.posterior, statement={}))
    assert "NOT PRIVATE" in printed(tacit.Budget.non_private())
    clt = replace(BUDGET, accountant=CLTApproximation())
    assert "NOT A GUARANTEE" in printed(clt)


def test_text_is_escaped_and_never_markup():
    statement = make_statement(
        cost=Cost(dp_accounting.GaussianDpEvent(5.0), is_secure=True),
        budget=BUDGET,
        unit="one <b>row</b> [red]x[/red]",
        num_units=3,
    )
    assert "<b>row" not in statement._repr_html_()
    assert "[red]x[/red]" in printed(statement, 200)


def test_the_posterior_of_a_program_shows_itself():
    statement = {"epsilon": 1.0, "epsilon_text": "1.000", "delta": 1e-5, "is_secure": False}
    posterior = ProgramPosterior(
        model=len, guide=len, params={"<mean>": np.zeros(1)}, statement=statement
    )
    assert "INSECURE" in printed(posterior)
    assert "&lt;mean&gt;" in posterior._repr_html_()


def test_a_plan_without_an_end_can_be_shown(fitted):
    plan = replace(fitted[0].plan, num_steps=None)
    assert "until the budget is spent" in printed(plan)


def test_the_display_imports_nothing_heavy():
    code = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("display", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["display"] = module
spec.loader.exec_module(module)
print(sorted({"rich", "jax", "numpy"} & {name.split(".")[0] for name in sys.modules}))
"""
    found = subprocess.run(
        [sys.executable, "-c", code, _display.__file__], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
