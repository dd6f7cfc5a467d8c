"""A method that declares itself is reachable everywhere; one that does not is refused by name."""

import math
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import tacit
from estimators.tables import ILL
from tacit import cli
from tacit.data import as_records
from tacit.errors import InvalidArgumentError
from tacit.inference.method import (
    Kernel,
    OneRelease,
    declarations,
    declare,
    describe_table_methods,
    objective_of,
    potential_gradient,
    table_methods,
)
from tacit.report.html import _references, citations_of
from tacit.samplers import Points
from tacit.studies import Recipe, fit_table, prepare

BUDGET = tacit.Budget(epsilon=2.0, delta=1e-5)
NUM_RECORDS = 200
SOURCE = """@article{toy2026,
  author = {Toy, Tessa},
  title = {Steps of one size},
  year = {2026},
}"""


@declare(
    name="toy",
    summary="a point, by steps of one size",
    citations=(SOURCE, "abadi2016deep"),
    relative_rate=0.05,
)
@dataclass(frozen=True, kw_only=True)
class Toy(OneRelease):
    step_size: float

    @classmethod
    def for_table(cls, settings):
        num_records = settings.release.sampling.public_records
        return cls(release=settings.release, step_size=settings.learning_rate / num_records)

    def build(self, model):
        objective = objective_of(model)

        def step(key, params, records):
            gradient = potential_gradient(key, self.release, objective, params, records)
            return jax.tree.map(lambda w, g: w - self.step_size * g, params, gradient), ()

        return Kernel(objective.init, step, lambda params: params, Points())


def prepared_with(name):
    return prepare(ILL, Recipe(method=name, num_steps=20), num_records=NUM_RECORDS, budget=BUDGET)


@pytest.fixture(scope="module")
def toy_fit():
    rng = np.random.default_rng(0)
    num_features = len(ILL.feature_names)
    x = rng.normal(size=(NUM_RECORDS, num_features)).astype(np.float32)
    records = as_records(x, (x[:, 0] > 0).astype(np.int32))
    return fit_table(records, prepared_with("toy"), seed=0)


def test_a_method_in_a_file_of_ones_own_is_fitted_by_its_name(toy_fit):
    fit = toy_fit.fit
    assert fit.statement.method == "Toy"
    assert fit.statement.epsilon <= 2.0
    assert fit.posterior.num_kept == 1


def test_its_sources_are_cited(toy_fit):
    first, second, *_ = citations_of(toy_fit.fit.statement.to_json())
    assert first.bibtex == SOURCE
    assert first.text.startswith("Toy (2026). Steps of one size")
    assert "abadi2016deep" in second.bibtex


def test_the_command_line_plans_it():
    words = "plan --records 500 --features 3 --classes 2 --epsilon 1 --delta 1e-5 --method toy"
    result = CliRunner().invoke(cli.app, words.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "toy" in result.stdout


def test_the_estimator_takes_it():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, size=(60, 2))
    classifier = tacit.PrivateBayesClassifier(
        method="toy", epsilon=5.0, bounds=(-1, 1), classes=[0, 1], num_steps=5, random_state=0
    )
    classifier.fit(x, (x[:, 0] > 0).astype(int))
    assert classifier.predict(x).shape == (60,)


@pytest.mark.parametrize("name", table_methods())
def test_a_recipe_becomes_the_method_that_it_names(name):
    declaration, plan = table_methods()[name], prepared_with(name).plan
    assert type(plan.method) is declaration.method
    kept = plan.kept_steps
    assert (len(kept) > 1) == declaration.is_chain
    assert kept[-1] == 20
    without = prepare(
        ILL, Recipe(method=name), num_records=NUM_RECORDS, budget=tacit.Budget.non_private()
    )
    assert math.isinf(without.budget.epsilon)


@pytest.mark.parametrize("name", [name for name in declarations() if name != "toy"])
def test_every_declaration_has_a_summary_and_sources_that_exist(name):
    declaration = declarations()[name]
    assert len(declaration.summary) <= 70
    assert set(declaration.citations) <= _references().keys()


@pytest.mark.parametrize("verb", ["fit", "plan", "audit"])
def test_help_lists_every_method_for_tables(verb):
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(cli.app, [verb, "--help"])
    text = " ".join(result.stdout.replace("│", " ").split())
    # Methods of other tests may be declared after the commands were made.
    ours = [name for name in table_methods() if hasattr(tacit.inference, name.upper())]
    assert {"sgld", "vi"} <= set(ours)
    for name in ours:
        assert f"{name} ({declarations()[name].summary})" in text


def test_the_line_of_help_names_the_methods_for_tables_only():
    assert "toy (a point, by steps of one size)" in describe_table_methods()
    assert " hmc (" not in f" {describe_table_methods()}"


@pytest.mark.parametrize("name", ["hmc", "ensemble", "SGLD", "", "adam"])
def test_a_recipe_refuses_what_it_cannot_set_up(name):
    with pytest.raises(InvalidArgumentError, match=r"method must be one of .*ivon, .*tacit\.Plan"):
        Recipe(method=name)


def test_a_method_without_for_table_says_so():
    with pytest.raises(InvalidArgumentError, match=r"'hmc', which has not.*HMC\(\.\.\.\)"):
        declarations()["hmc"].for_table(None)


def test_two_methods_under_one_name_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"'sgld' is already tacit\.inference\.sgld"):
        declare(name="sgld", summary="another")(Toy)
    assert declarations()["sgld"].method is tacit.SGLD


def test_a_subclass_is_not_declared_by_its_parent():
    class Faster(Toy):
        pass

    assert Faster not in {found.method for found in declarations().values()}
