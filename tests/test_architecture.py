"""The architecture: imports point one way, and every public name is typed and documented."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from pathlib import Path

import pytest

import tacit
import walk
from walk import Walk

SOURCE = Path(tacit.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
FOUNDATION = {
    "typing",
    "errors",
    "_check",
    "_display",
    "_memory",
    "_registry",
    "_tree",
    "native",
    "chacha20",
    "compiling",
    "rng",
}

# What each part may import besides the foundation and itself.
ALLOWED = {
    "typing": set(),
    "errors": set(),
    "_check": set(),
    "_display": set(),
    "_memory": set(),
    "_registry": set(),
    "_tree": set(),
    "native": set(),
    "chacha20": set(),
    "compiling": set(),
    "rng": set(),
    "_artefact": set(),
    "processes": set(),
    "tables": set(),
    "privacy": {"tables"},
    "models": set(),
    "metrics": set(),
    "data": set(),
    "intervals": {"_artefact"},
    "samplers": {"models"},
    "rounding": {"metrics"},
    "state_file": {"rounding"},
    "over_draws": {"samplers", "state_file"},
    "posterior": {
        "models",
        "samplers",
        "_artefact",
        "metrics",
        "intervals",
        "rounding",
        "state_file",
        "over_draws",
    },
    "inference": {
        "privacy",
        "models",
        "posterior",
        "intervals",
        "samplers",
        "_artefact",
        "metrics",
        "rounding",
        "state_file",
        "processes",
        "tables",
    },
    "robust": {"models", "posterior", "samplers", "metrics"},
    "certify": {"robust", "models", "posterior", "over_draws", "metrics"},
    "recalibration": {"privacy", "metrics"},
    "numpyro": {"inference", "privacy", "models", "intervals", "samplers", "_artefact"},
    "synthetic": {"numpyro", "models", "data", "metrics"},
    "audit": {"inference", "privacy", "models", "posterior", "metrics"},
    "rehearsal": {"_artefact", "inference", "privacy", "models", "posterior", "metrics", "data"},
    "studies": {
        "_artefact",
        "rehearsal",
        "inference",
        "privacy",
        "models",
        "posterior",
        "intervals",
        "samplers",
        "metrics",
        "data",
        "tables",
        "certify",
        "robust",
        "processes",
        "state_file",
    },
    "estimators": {"studies", "inference", "privacy", "models", "metrics", "data"},
    "report": {"studies", "inference", "numpyro", "privacy", "metrics", "data"},
    "cli": {
        "_artefact",
        "rehearsal",
        "report",
        "audit",
        "certify",
        "robust",
        "studies",
        "inference",
        "privacy",
        "models",
        "posterior",
        "metrics",
        "data",
        "processes",
    },
    "__main__": {"cli"},
    "__init__": None,
}


def part_of(path):
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_parts(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tacit"):
            assert node.level == 0
            names = node.module.split(".")
            if len(names) > 1:
                yield names[1]
            else:
                yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("tacit."):
                    yield alias.name.split(".")[1]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    part = part_of(path)
    allowed = ALLOWED[part]
    if allowed is None:
        return
    found = set(imported_parts(path)) - {part} - FOUNDATION - {"__version__"}
    assert found <= allowed, f"{part} must not import {sorted(found - allowed)}"


def modules():
    for module in pkgutil.walk_packages(tacit.__path__, "tacit."):
        yield importlib.import_module(module.name)


MODULES = [tacit, *modules()]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_every_module_says_what_it_is_and_what_it_offers(module):
    assert module.__doc__
    assert (
        hasattr(module, "__all__")
        or module.__name__.split(".")[-1].startswith("_")
        or not any(inspect.getmodule(value) is module for value in vars(module).values())
    )


def public_objects():
    seen = set()
    for module in MODULES:
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            ours = (getattr(value, "__module__", None) or "").startswith("tacit")
            is_named = inspect.isclass(value) or inspect.isfunction(value)
            if ours and is_named and id(value) not in seen:
                seen.add(id(value))
                yield f"{module.__name__}.{name}", value


@pytest.mark.parametrize(
    ("name", "value"), list(public_objects()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_public_name_is_documented_and_typed(name, value):
    assert inspect.getdoc(value), f"{name} has no docstring"
    functions = (
        [value]
        if inspect.isfunction(value)
        else [
            member
            for member_name, member in vars(value).items()
            if inspect.isfunction(member) and not member_name.startswith("_")
        ]
    )
    for function in functions:
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty, f"{name}: no return type"
        for parameter in signature.parameters.values():
            if parameter.name not in ("self", "cls"):
                assert parameter.annotation is not inspect.Parameter.empty, (
                    f"{name}: {parameter.name} has no type"
                )
        assert inspect.getdoc(function), f"{name}.{function.__name__} has no docstring"


def definitions(path):
    """The functions and classes of a file whose names have no underscore."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def test_no_public_name_is_defined_twice():
    homes = defaultdict(set)
    for path in FILES:
        for name in definitions(path):
            homes[name].add(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_there_are_few_files_and_none_is_long():
    assert len(FILES) <= 208
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: length for name, length in lengths.items() if length > 410} == {}


def code_lines(function):
    first, rest = function.body[0], function.body
    is_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    rest = function.body[1:] if is_doc else function.body
    return rest[-1].end_lineno - rest[0].lineno + 1 if rest else 0


def test_no_function_is_long():
    long = {
        f"{path.relative_to(SOURCE)}: {node.name}": code_lines(node)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and code_lines(node) > 60
    }
    assert long == {}


def offered():
    """The names that each package offers, by package."""
    packages = [module for module in MODULES if hasattr(module, "__path__")]
    return {module.__name__: sorted(getattr(module, "__all__", ())) for module in packages}


def test_packages_offer_few_names():
    assert len(tacit.__all__) <= 58
    assert len({name for names in offered().values() for name in names}) <= 174


def test_the_stability_page_lists_exactly_what_packages_offer():
    page = (SOURCE.parents[1] / "docs" / "stability.md").read_text()
    told = {
        package: sorted(re.findall(r"`(\w+)`", names))
        for package, names in re.findall(r"^\| `(tacit[\w.]*)` \| (.*) \|$", page, re.MULTILINE)
    }
    assert told == {package: names for package, names in offered().items() if names}


@pytest.mark.parametrize(
    ("name", "most"), [("of_command", Walk(85, 696, 38)), ("of_program", Walk(50, 444, 30))]
)
def test_the_way_of_a_record_stays_short(name, most):
    found = walk.in_a_new_process(name)
    assert all(number <= limit for number, limit in zip(found, most, strict=True)), found


def test_the_package_is_marked_as_typed():
    assert (SOURCE / "py.typed").exists()


def test_nothing_is_ever_pickled():
    for path in SOURCE.rglob("*.py"):
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in (
                node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")]
            )
        }
        assert not imported & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
