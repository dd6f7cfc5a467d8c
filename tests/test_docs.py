"""The documents are true: their code runs, their output is real, and their links lead somewhere."""

import ast
import contextlib
import doctest
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import pytest
from typer.testing import CliRunner

import tacit
from laws import laws
from laws.cases import MODELS, engine, full, table
from tacit import cli
from tacit.models import GaussianPrior, bayesian
from tacit.privacy.accounting import CLTApproximation
from tacit.rng import seeded_key
from tacit.samplers import Points
from tacit.studies import Recipe, prepare

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

documents = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)


class Block(NamedTuple):
    language: str
    text: str
    line: int
    follows: bool  # directly after the block before it


def blocks(document):
    text, end = document.read_text(encoding="utf-8"), -2
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(found[1], found[2], line, follows=found.start() == end + 1)
        end = found.end()


def same(expected, actual):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, actual, options)


def documents_with(language):
    found = [d for d in DOCUMENTS if any(b.language == language for b in blocks(d))]
    return pytest.mark.parametrize("document", found, ids=lambda path: str(path.relative_to(ROOT)))


@documents_with("python")
def test_every_python_block_runs_and_prints_what_stands_below_it(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "documented"}
    printed = None
    for block in blocks(document):
        if block.language == "text" and block.follows and printed is not None:
            assert same(block.text, printed), f"line {block.line}: really printed\n{printed}"
        printed = None
        if block.language == "python":
            # Blank lines in front make a traceback point into the document.
            code = compile("\n" * (block.line - 1) + block.text, str(document), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, namespace)
            printed = out.getvalue()


@documents_with("console")
def test_every_quick_command_prints_what_stands_below_it(document):
    for block in blocks(document):
        if block.language != "console":
            continue
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            words = shlex.split(command.partition("#")[0])
            if words[:2] not in (
                ["tacit", "epsilon"],
                ["tacit", "calibrate"],
                ["tacit", "explain"],
                ["tacit", "plan"],
            ):
                continue
            result = CliRunner().invoke(cli.app, words[1:], catch_exceptions=False)
            assert result.exit_code == 0
            assert same(expected, result.stdout), f"line {block.line}: {command}\n{result.stdout}"


@documents
def test_links_and_pictures_exist(document):
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    for target in targets:
        if target.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        there = (document.parent / path) if path else document
        assert there.exists(), f"{target} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{target} is not a heading of {there.name}"


@documents
def test_files_named_in_the_text_exist(document):
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    for name in re.findall(r"`((?:src|tests|docs)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{name} does not exist"


@documents
def test_no_document_holds_a_path_of_somebodys_machine(document):
    found = re.search(r"(?<![\w.])/(?:home|Users|root|work|tmp|opt)/", document.read_text("utf-8"))
    assert found is None, f"line with {found and found[0]}"


@documents
def test_public_names_used_in_examples_are_public(document):
    if document.name == "CONTRIBUTING.md":
        pytest.skip("who extends tacit imports what tacit is made of")
    for block in blocks(document):
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit"):
                module = __import__(node.module, fromlist=["__all__"])
                assert {alias.name for alias in node.names} <= set(module.__all__)
                assert not any(part.startswith("_") for part in node.module.split("."))


def accounting_table():
    """Yields the cells of the table in "How it works" that says what is proven."""
    text = (ROOT / "docs/how-it-works.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (\w+) \| (\S+) \| (.*) \|$", text, re.MULTILINE)
    for sampling, adjacency, cells in found:
        if adjacency in {a.value for a in tacit.Adjacency}:
            for accountant, cell in zip(ACCOUNTANTS, cells.split(" | "), strict=True):
                yield sampling, adjacency, accountant, cell


ACCOUNTANTS = (tacit.PLD, tacit.RDP, tacit.GDP, CLTApproximation)
SAMPLINGS = {
    "full": tacit.FullBatch(num_records=1000),
    "Poisson": tacit.PoissonBatch(num_records=1000, batch_size=100, max_batch_size=1000),
    "conditioned": tacit.PoissonBatch(num_records=1000, batch_size=100),
    "fixed": tacit.FixedBatch(num_records=1000, batch_size=100),
}


def test_the_documented_table_of_what_is_proven_is_the_one_that_is_obeyed():
    cells = list(accounting_table())
    assert len(cells) == len(SAMPLINGS) * len(tacit.Adjacency) * len(ACCOUNTANTS)
    for sampling, adjacency, accountant, cell in cells:
        cost = SAMPLINGS[sampling].cost(4.0)
        if cell == "refused":
            with pytest.raises(tacit.errors.UnprovenAccountingError):
                accountant(adjacency=tacit.Adjacency(adjacency)).epsilon(cost, delta=1e-5)
            continue
        chosen = accountant(adjacency=tacit.Adjacency(adjacency))
        assert 0 < chosen.epsilon(cost, delta=1e-5) < 10
        assert chosen.is_bound == (cell != "approximation")


SKELETONS = {
    f"src/tacit/{home}": block.text
    for home, block in zip(
        ("inference/descent.py", "models/laplace_noise.py", "models/bottleneck.py"),
        (b for b in blocks(ROOT / "CONTRIBUTING.md") if b.language == "python"),
        strict=True,
    )
}


@pytest.fixture(scope="module")
def skeletons():
    """Everything that the skeletons define."""
    namespace = {"__name__": "documented"}
    for path, source in SKELETONS.items():
        exec(compile(source, path, "exec"), namespace)
    return SimpleNamespace(**namespace)


@pytest.fixture(scope="module")
def skeleton_model(skeletons):
    network = skeletons.Bottleneck(num_inputs=5, rank=2, num_outputs=1)
    likelihood = skeletons.LaplaceNoise(scale=0.5)
    return network, bayesian(network, prior=GaussianPrior(std=1.0), likelihood=likelihood)


@pytest.mark.parametrize("is_own_model", [False, True], ids=["method", "method and model"])
def test_the_skeletons_obey_the_three_laws(skeletons, skeleton_model, is_own_model, monkeypatch):
    kind = "regression" if is_own_model else "dense"
    model = skeleton_model[1] if is_own_model else MODELS[kind]
    method, records = skeletons.Descent(release=engine(), step_size=1e-3), table(kind)
    laws.check_cost_equals_releases(method, model, records, monkeypatch)
    laws.check_non_interference(method, model, records, table(kind, seed=1), monkeypatch)
    quiet = engine(full, noise_multiplier=0.0)
    laws.check_sensitivity(quiet, model, records, bad=[300.0, float("nan")])


def test_the_skeleton_of_a_method_can_be_calibrated_and_is_known_by_its_name(skeletons):
    method = skeletons.Descent(release=engine(), step_size=1e-3)
    assert method.scale_noise(2.0).release.noise_multiplier == 2 * method.release.noise_multiplier
    assert method.num_records == 12
    prepared = prepare(
        tacit.data.ADULT_SCHEMA,
        Recipe(method="descent"),
        num_records=1000,
        budget=tacit.Budget(epsilon=1.0, delta=1e-5),
    )
    assert isinstance(prepared.plan.method, skeletons.Descent)


def test_a_model_of_the_skeletons_is_saved_and_certified(skeletons, skeleton_model, tmp_path):
    network, model = skeleton_model
    params = jax.tree.map(lambda leaf: leaf[None, None], model.init(seeded_key(0)))
    posterior = tacit.Posterior(model=model, sampler=Points(), kept=params)
    posterior.save(tmp_path)
    assert tacit.load_posterior(tmp_path).model.spec == model.spec
    robust = tacit.certified(model, network, tacit.Linf(radius=0.1), weight=0.0)
    records = table("regression")
    record = jax.tree.map(lambda leaf: leaf[0], records)
    own = model.init(seeded_key(0))
    clean, worst = (m.log_likelihood(own, record, seeded_key(1)) for m in (model, robust))
    assert worst < clean


@pytest.mark.parametrize("path", SKELETONS)
def test_the_skeletons_are_formatted_and_without_lint(path):
    for command in (["check"], ["format", "--check"]):
        subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"],
            input=SKELETONS[path],
            text=True,
            check=True,
            cwd=ROOT,
        )


@pytest.mark.slow
def test_the_skeletons_have_types(tmp_path):
    files = [tmp_path / Path(path).name for path in SKELETONS]
    for file, source in zip(files, SKELETONS.values(), strict=True):
        file.write_text(source)
    subprocess.run([sys.executable, "-m", "mypy", *files], check=True, cwd=ROOT)


def test_the_table_of_the_readme_is_what_the_demo_wrote():
    rows = json.loads((ROOT / "docs/pictures/results.json").read_text())["rows"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for row in rows:
        numbers = [f"{row[name]:.3f}" for name in ("accuracy", "nll", "ece", "epistemic")]
        line = f"| {row['name']} | {row['epsilon'].split()[0]} | {' | '.join(numbers)} |"
        assert line in readme, f"the README lacks {line}"
