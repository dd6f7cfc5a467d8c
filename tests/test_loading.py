"""What is loaded, and when: `import tacit` and ``tacit --help`` are quick."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
from tacit import cli

HEAVY = ("jax", "pandas", "sklearn", "scipy", "numpyro", "matplotlib", "dp_accounting")


@pytest.mark.parametrize(
    "program",
    [
        "import tacit",
        "import tacit; dir(tacit)",
        "from tacit import cli; cli.app(['--help'], standalone_mode=False)",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_used(program):
    check = f"import sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{check}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout


def test_type_checkers_are_told_the_names_that_there_are():
    stub = Path(tacit.__file__).with_suffix(".pyi")
    imports = [
        node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    told = {alias.name: node.module for node in imports for alias in node.names}
    assert sorted(told) == tacit.__all__
    for name, home in told.items():
        assert getattr(tacit, name) is getattr(importlib.import_module(home), name)


def test_an_unknown_name_is_no_attribute():
    assert not hasattr(tacit, "no_such_name")
    assert tacit.privacy.budget.Budget is tacit.Budget
    assert {"fit", "privacy"} <= set(dir(tacit))


@pytest.mark.parametrize("verb", cli._VERBS)
def test_the_list_of_verbs_says_what_each_says_of_itself(verb):
    command = cli._loaded(verb)
    assert command.help.splitlines()[0] == cli._VERBS[verb]
    assert command.name == verb
