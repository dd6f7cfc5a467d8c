"""A rehearsal is the run itself on simulated records, scored by the true parameters."""

import dataclasses
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_array_equal

import tacit
from tacit.data import NumericColumn, Schema, Target
from tacit.errors import InvalidArgumentError, UtilityWarning
from tacit.models import (
    MLP,
    Bernoulli,
    FixedGaussian,
    FlatPrior,
    GaussianPrior,
    LearntGaussian,
    from_function,
    from_program,
)
from tacit.rehearsal import choose, plausible_truths, rehearse
from tacit.rehearsal.figure import comparison
from tacit.rehearsal.outlook import warn_if_hopeless
from tacit.rehearsal.scoring import _informed as informed

INPUTS = np.random.default_rng(0).uniform(-1, 1, (300, 3)).astype(np.float32)
NUM_RECORDS = 400


def classifier(hidden=(), num_inputs=3):
    return tacit.bayesian(
        MLP(num_inputs=num_inputs, hidden=hidden, num_outputs=1),
        prior=GaussianPrior(std=1.0),
        likelihood=Bernoulli(),
    )


def flat_classifier():
    return tacit.bayesian(
        MLP(num_inputs=3, num_outputs=1), prior=FlatPrior(), likelihood=Bernoulli()
    )


def linear():
    return from_function(
        lambda key: jnp.zeros(3),
        lambda w, x, key: jnp.reshape(w @ x, (1,)),
        prior=GaussianPrior(std=1.0),
        likelihood=FixedGaussian(std=0.5),
    )


def laplace(budget, clip_norm=4.0, num_records=NUM_RECORDS, num_steps=6):
    release = tacit.GaussianSum(
        sampling=tacit.FullBatch(num_records=num_records),
        clip_norm=clip_norm,
        noise_multiplier=1.0,
    )
    plan = tacit.Plan(method=tacit.Laplace(release=release), num_steps=num_steps)
    return tacit.calibrate(plan, budget)


GENEROUS = tacit.Budget(epsilon=200.0, delta=1e-5)
USUAL = tacit.Budget(epsilon=1.0, delta=1e-5)
TINY = tacit.Budget(epsilon=1e-9, delta=1e-5)


@pytest.fixture(scope="module")
def generous():
    plan = laplace(GENEROUS, clip_norm=40.0)
    return rehearse(plan, linear(), INPUTS, budget=GENEROUS, num_repeats=40)


def test_without_much_noise_it_finds_the_posterior_in_closed_form(generous):
    # Conjugate: 90 % intervals hold the truth nine times out of ten, and are as wide as they must.
    assert generous.mean("coverage") == pytest.approx(0.9, abs=4 * generous.error("coverage"))
    assert 0.02 < generous.error("coverage") < 0.04
    assert generous.mean("width") == pytest.approx(1.0, abs=0.1)
    assert generous.mean("best_rmse") == pytest.approx(0.5, abs=0.01)
    assert generous.mean("rmse") == pytest.approx(generous.mean("best_rmse"), abs=0.01)
    assert generous.mean("nll") == pytest.approx(0.5 * np.log(2 * np.pi * np.e * 0.25), abs=0.02)
    assert generous.mean("clipped") == 0.0
    assert "accuracy" not in generous.shown
    assert "acceptance" not in generous.shown


def test_what_a_small_budget_loses_is_seen():
    seen = [
        rehearse(laplace(budget), classifier(), INPUTS, budget=budget, num_repeats=6)
        for budget in (GENEROUS, TINY)
    ]
    assert seen[0].mean("accuracy") > seen[1].mean("accuracy") + 0.05
    assert seen[0].mean("best_accuracy") == seen[1].mean("best_accuracy")  # the same tables
    assert seen[0].mean("signal_to_noise") > 5
    assert seen[1].mean("signal_to_noise") < 0.01
    assert seen[1].mean("width") > 3 * seen[0].mean("width")


def test_a_clip_that_bites_is_seen_as_a_share_of_records():
    model = classifier()
    plan = laplace(GENEROUS, clip_norm=0.5)
    found = rehearse(plan, model, INPUTS, budget=GENEROUS, num_repeats=2)
    assert found.mean("clipped") > 0.5


def test_one_seed_gives_one_rehearsal_and_progress_is_told():
    told = []
    runs = [
        rehearse(
            laplace(USUAL),
            classifier(),
            INPUTS,
            budget=USUAL,
            num_repeats=3,
            progress=lambda *done: told.append(done),
        )
        for _ in range(2)
    ]
    for name in set(runs[0].shown) - {"seconds"}:
        np.testing.assert_array_equal(runs[0].measures[name], runs[1].measures[name])
    assert told == [(1, 3), (2, 3), (3, 3)] * 2


def test_a_network_is_judged_by_what_it_predicts_and_hmc_by_its_acceptance():
    release = tacit.GaussianSum(
        sampling=tacit.FullBatch(num_records=NUM_RECORDS), clip_norm=2.0, noise_multiplier=1.0
    )
    method = tacit.HMC(gradient=release, ratio=release, step_size=1e-4, num_leapfrog=2)
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=4, thinning=1), USUAL)
    found = rehearse(plan, classifier(hidden=(4,)), INPUTS, budget=USUAL, num_repeats=2)
    assert 0 <= found.mean("acceptance") <= 1
    assert "width" not in found.shown
    assert found.mean("cautioned") == 1.0
    assert 0 <= found.mean("coverage") <= 1


def test_chains_that_never_move_are_told_before_and_after_they_are_paid_for():
    release = tacit.GaussianSum(
        sampling=tacit.FullBatch(num_records=NUM_RECORDS), clip_norm=2.0, noise_multiplier=1.0
    )
    method = tacit.HMC(gradient=release, ratio=release, step_size=0.5, num_leapfrog=2)
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=4, thinning=1), USUAL)
    with pytest.warns(UtilityWarning, match=r"accepted 0.0% of their proposals on simulated"):
        found = rehearse(plan, classifier(), INPUTS, budget=USUAL, num_repeats=2)
    assert found.mean("acceptance") == 0.0
    records = tacit.as_records(INPUTS.repeat(2, axis=0)[:NUM_RECORDS], np.zeros(NUM_RECORDS, int))
    with pytest.warns(UtilityWarning, match=r"accepted 0.0% of their proposals, so") as caught:
        fit = tacit.fit(plan, classifier(), records, budget=USUAL, seed=0)
    assert __file__ in [each.filename for each in caught if each.category is UtilityWarning]
    assert any("accepted 0.0%" in caveat for caveat in fit.posterior.intervals.caveats)
    assert tacit.metrics.diagnose(fit.posterior).ess_bulk == 1.0
    # Where warnings are errors, as in these tests, what was paid for is not lost.
    paid = tacit.fit(plan, classifier(), records, budget=USUAL, seed=0)
    assert paid.posterior.intervals.caveats == fit.posterior.intervals.caveats


def program(x, y):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.3))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(level * x[:, 0], scale), obs=y)


def test_a_numpyro_program_draws_its_own_data_sets():
    shapes = tacit.as_records(np.zeros((NUM_RECORDS, 3), np.float32), np.zeros(NUM_RECORDS))
    model = from_program(program, shapes)
    plan = laplace(GENEROUS, clip_norm=40.0, num_steps=24)
    found = rehearse(plan, model, INPUTS, budget=GENEROUS, num_repeats=4)
    assert 0.6 < found.mean("coverage") <= 1
    assert found.mean("rmse") == pytest.approx(found.mean("best_rmse"), rel=0.02)
    assert found.mean("width") == pytest.approx(1.0, abs=0.15)


def test_truths_can_be_given_in_place_of_the_prior():
    model = flat_classifier()
    with pytest.raises(InvalidArgumentError, match="must be a distribution"):
        rehearse(laplace(USUAL), model, INPUTS, budget=USUAL, num_repeats=1)
    certain = {"network": {"dense_0": {"kernel": jnp.full((3, 1), 30.0), "bias": jnp.zeros(1)}}}
    found = rehearse(
        laplace(USUAL), model, INPUTS, budget=USUAL, num_repeats=2, truths=lambda key: certain
    )
    assert found.mean("best_accuracy") > 0.95


def improper(x, y):
    level = numpyro.sample("level", dist.ImproperUniform(dist.constraints.real, (), ()))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(level * x[:, 0], 1.0), obs=y)


def test_an_improper_program_is_refused_and_may_be_fitted():
    shapes = tacit.as_records(np.zeros((NUM_RECORDS, 3), np.float32), np.zeros(NUM_RECORDS))
    model = from_program(improper, shapes)
    with pytest.raises(InvalidArgumentError, match="must be a distribution"):
        rehearse(laplace(USUAL), model, INPUTS, budget=USUAL)
    warn_if_hopeless(laplace(TINY), model, INPUTS, epsilon=1e-9)


def test_a_plan_without_a_length_is_rehearsed_until_its_budget_is_spent():
    plan = dataclasses.replace(laplace(USUAL), num_steps=None)
    found = rehearse(plan, classifier(), INPUTS, budget=USUAL, num_repeats=1)
    assert found.plan.num_steps == 6
    assert "6 steps" in found._repr_html_()


def test_a_model_that_cannot_draw_is_refused_and_so_are_infinite_targets():
    model = classifier()._replace(simulator=None)
    with pytest.raises(InvalidArgumentError, match="one without a simulator"):
        rehearse(laplace(USUAL), model, INPUTS, budget=USUAL)
    for value, told in ((jnp.full(3, jnp.inf), "like the model's"), (None, "finite targets")):
        truth = {"network": jnp.full(3, jnp.inf)} if value is None else value
        with pytest.raises(InvalidArgumentError, match=told):
            rehearse(laplace(USUAL), linear(), INPUTS, budget=USUAL, truths=lambda key, w=truth: w)
    with pytest.raises(InvalidArgumentError, match="num_repeats"):
        rehearse(laplace(USUAL), linear(), INPUTS, budget=USUAL, num_repeats=0)


def test_the_best_candidate_is_chosen_and_its_statement_says_how():
    model = classifier()
    candidates = {
        "too tight": laplace(USUAL, clip_norm=0.01),
        "wide": laplace(USUAL),
    }
    told = []
    found = choose(
        candidates,
        model,
        INPUTS,
        budget=USUAL,
        num_repeats=4,
        progress=lambda *done: told.append(done),
    )
    assert found.name == "wide"
    assert told[-1] == (8, 8)
    assert set(found.rehearsals) == set(candidates)
    assert choose(candidates, model, INPUTS, budget=USUAL, num_repeats=2, criterion="accuracy").plan
    records = tacit.as_records(INPUTS.repeat(2, axis=0)[:NUM_RECORDS], np.zeros(NUM_RECORDS, int))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = tacit.fit(found.plan, model, records, budget=USUAL, seed=0)
    assert fit.statement.tuning == "simulated"
    assert "tuned on simulated records" in fit.statement.text()
    # It costs what it costs without: nothing of the choice is a release.
    assert found.plan.cost == candidates["wide"].cost


@pytest.mark.parametrize("criterion", ["luck", "rmse", "width"])
def test_a_criterion_that_does_not_apply_is_refused(criterion):
    with pytest.raises(InvalidArgumentError, match="criterion must"):
        choose(
            {"one": laplace(USUAL)},
            classifier(),
            INPUTS,
            budget=USUAL,
            num_repeats=1,
            criterion=criterion,
        )
    with pytest.raises(InvalidArgumentError, match="at least one plan"):
        choose({}, classifier(), INPUTS, budget=USUAL)


def test_it_is_written_and_drawn(generous, tmp_path):
    generous.save(tmp_path / "rehearsal.json")
    document = json.loads((tmp_path / "rehearsal.json").read_text())
    assert document["num_repeats"] == 40
    assert document["measures"]["coverage"]["mean"] == generous.mean("coverage")
    once = dataclasses.replace(
        generous, measures={name: values[:1] for name, values in generous.measures.items()}
    )
    assert once.to_json()["measures"]["coverage"]["error"] is None
    picture = comparison({"long": generous, "once": once})
    titles = [axes.get_title(loc="left") for axes in picture.axes]
    assert "coverage of intervals" in titles
    assert "accuracy" not in titles
    assert "simulated" in generous._repr_html_()


SCHEMA = Schema(
    columns=tuple(NumericColumn(name=f"x{i}", low=-1, high=1) for i in range(3)),
    target=Target(name="y", classes=(0, 1)),
)


def test_plausible_truths_keep_log_odds_and_targets_in_a_usual_range():
    x = np.random.default_rng(0).uniform(-1, 1, (500, 40)).astype(np.float32)
    # The root of the mean square of a log-uniform number from 1.5 to 6, or from 0.2 to 0.6.
    for likelihood, spread in ((Bernoulli(), 3.49), (LearntGaussian(initial_std=0.3), 0.382)):
        model = tacit.bayesian(
            MLP(num_inputs=40, num_outputs=1), prior=GaussianPrior(std=3.0), likelihood=likelihood
        )
        draw = plausible_truths(model, x)
        layers = [
            draw(key)["network"]["dense_0"] for key in jax.random.split(jax.random.key(1), 60)
        ]
        outputs = [x @ layer["kernel"] + layer["bias"] for layer in layers]
        # Squares of 200 truths scatter by about their mean: the root by 0.035, so 4 sigma.
        assert np.sqrt(np.mean(np.square(outputs))) == pytest.approx(spread, rel=0.14)


def test_truths_are_never_wider_than_the_prior_and_networks_keep_theirs():
    model = tacit.bayesian(
        MLP(num_inputs=3, num_outputs=1), prior=GaussianPrior(std=0.1), likelihood=Bernoulli()
    )
    key = jax.random.key(0)
    narrow = plausible_truths(model, INPUTS)(key)["network"]["dense_0"]["kernel"]
    own = model.simulator.params(jax.random.split(key)[0])
    assert_array_equal(narrow, own["network"]["dense_0"]["kernel"])
    assert plausible_truths(classifier(hidden=(4,)), INPUTS) is None
    assert plausible_truths(linear(), INPUTS) is None
    assert plausible_truths(flat_classifier(), INPUTS) is None


def test_weights_of_what_never_occurs_are_not_informed():
    # Their intervals are the prior's, which hold nine truths of ten whatever a method does.
    empty = np.hstack([INPUTS, np.zeros((len(INPUTS), 2), np.float32)])
    model = classifier(num_inputs=5)
    records = tacit.as_records(empty, np.zeros(len(INPUTS), np.int32))
    found = unravelled(model, informed(model, model.init(jax.random.key(0)), records))
    assert found["kernel"].ravel().tolist() == [1, 1, 1, 0, 0]
    assert found["bias"].tolist() == [1]


def unravelled(model, vector):
    unflat = ravel_pytree(model.init(jax.random.key(0)))[1]
    return unflat(vector.astype(jnp.float32))["network"]["dense_0"]


def test_a_schema_stands_for_inputs_spread_over_it():
    model = classifier(num_inputs=len(SCHEMA.feature_names))
    found = rehearse(laplace(USUAL), model, SCHEMA, budget=USUAL, num_repeats=2)
    assert found.mean("accuracy") > 0.5


@pytest.mark.parametrize(
    ("budget", "num_records", "is_hopeless"),
    [(TINY, 400, True), (USUAL, 10, True), (USUAL, 400, False), (GENEROUS, 400, False)],
)
def test_a_hopeless_budget_is_told_in_one_line(budget, num_records, is_hopeless):
    plan = laplace(budget, num_records=num_records)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_hopeless(plan, classifier(), INPUTS, epsilon=budget.epsilon)
    told = [each for each in caught if each.category is UtilityWarning]
    assert len(told) == is_hopeless
    for each in told:
        assert "\n" not in str(each.message)
        assert f"{num_records:,} records have to say is lost" in str(each.message)
        assert each.filename == __file__


def test_nothing_is_told_of_runs_without_noise():
    plan = tacit.Plan(
        method=tacit.Laplace.non_private(sampling=tacit.FullBatch(num_records=10)), num_steps=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_hopeless(plan, classifier(), INPUTS, epsilon=np.inf)
        for model in (classifier()._replace(simulator=None), flat_classifier()):
            warn_if_hopeless(laplace(TINY), model, INPUTS, epsilon=1e-9)
