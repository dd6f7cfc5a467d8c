"""The architecture: imports point one way, and every public name is typed and documented."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import tacit

SOURCE = Path(tacit.__file__).parent
FOUNDATION = {"typing", "errors", "_check", "_display", "_registry", "_tree", "native", "rng"}

# What each part may import besides the foundation and itself.
ALLOWED = {
    "typing": set(),
    "errors": set(),
    "_check": set(),
    "_display": set(),
    "_registry": set(),
    "_tree": set(),
    "native": set(),
    "rng": set(),
    "_artefact": set(),
    "processes": set(),
    "tables": set(),
    "privacy": {"tables"},
    "models": set(),
    "metrics": set(),
    "data": set(),
    "samplers": {"models"},
    "posterior": {"models", "samplers", "_artefact", "metrics"},
    "inference": {"privacy", "models", "posterior", "samplers", "_artefact", "processes", "tables"},
    "robust": {"models", "posterior", "samplers", "metrics"},
    "certify": {"robust", "models", "posterior", "samplers", "metrics"},
    "recalibration": {"privacy", "metrics"},
    "numpyro": {"inference", "privacy", "models", "samplers", "_artefact"},
    "synthetic": {"numpyro", "models", "data", "metrics"},
    "audit": {"inference", "privacy", "models", "posterior", "metrics"},
    "studies": {
        "inference",
        "privacy",
        "models",
        "posterior",
        "samplers",
        "metrics",
        "data",
        "tables",
        "certify",
        "robust",
        "processes",
    },
    "estimators": {"studies", "inference", "privacy", "models", "metrics", "data"},
    "report": {"studies", "inference", "numpyro", "privacy", "metrics", "data"},
    "cli": {
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


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
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
