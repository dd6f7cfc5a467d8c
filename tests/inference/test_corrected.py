"""Private fits return corrected posteriors, and say where they cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tacit
from tacit.inference.compilation import compiled_kernel
from tacit.inference.corrected import corrected, slope_change_of
from tacit.models import MLP, Bernoulli, FixedGaussian, GaussianPrior, PoissonCounts

NUM_RECORDS, DIM = 400, 3
BUDGET = tacit.Budget(epsilon=3.0, delta=1e-5)


def model(hidden=(), likelihood=None):
    return tacit.bayesian(
        MLP(num_inputs=DIM, hidden=hidden, num_outputs=1),
        prior=GaussianPrior(std=1.0),
        likelihood=likelihood or Bernoulli(),
    )


def records():
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (NUM_RECORDS, DIM)).astype(np.float32)
    y = (random.uniform(size=NUM_RECORDS) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))).astype(int)
    return tacit.as_records(x, y)


def engine(clip_norm=2.0):
    sampling = tacit.FullBatch(num_records=NUM_RECORDS)
    return tacit.GaussianSum(sampling=sampling, clip_norm=clip_norm, noise_multiplier=1.0)


def fitted(method, *, of=None, num_steps=200, budget=BUDGET):
    plan = tacit.Plan(method=method, num_steps=num_steps, burn_in=num_steps // 2, thinning=10)
    if np.isfinite(budget.epsilon):
        plan = tacit.calibrate(plan, budget)
    return tacit.fit(plan, of or model(), records(), budget=budget, seed=0).posterior


METHODS = {
    "SGLD": lambda: tacit.SGLD.fixed_noise(release=engine(), step_size=2e-2),
    "SGD": lambda: tacit.SGD(release=engine(), optimizer=optax.sgd(2.0)),
    "SWAG": lambda: tacit.SWAG(
        base=tacit.SGD(release=engine(), optimizer=optax.sgd(2.0)), start=50, rank=5
    ),
    "Laplace": lambda: tacit.Laplace(release=engine()),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_private_fit_is_corrected_and_keeps_what_the_method_made(name):
    posterior = fitted(METHODS[name](), num_steps=10 if name == "Laplace" else 200)
    assert posterior.intervals.caveats == ()
    assert (posterior.num_chains, posterior.num_kept) == (1, 1000)
    assert posterior.raw.intervals == tacit.intervals.IntervalFacts()
    parts = posterior.intervals.parts
    for total, alone in zip(
        jax.tree.leaves(parts.total), jax.tree.leaves(parts.without_privacy), strict=True
    ):
        assert np.all(total > alone)
    stds = jax.tree.map(lambda leaf: leaf.std(axis=0), posterior.draws())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.2), stds, parts.total)


def test_methods_agree_because_one_estimator_serves_them_all():
    centres, widths = [], []
    for name, make in METHODS.items():
        posterior = fitted(make(), num_steps=10 if name == "Laplace" else 200)
        draws = posterior.draws()["network"]["dense_0"]["kernel"][..., 0]
        centres.append(draws.mean(axis=0))
        widths.append(draws.std(axis=0))
    # Each has noise of its own, of about one standard deviation.
    assert np.max(np.ptp(centres, axis=0) / np.mean(widths, axis=0)) < 4
    # What is not known of the curvature widens intervals, those of SGLD most.
    assert np.max(widths) / np.min(widths) < 2.5


def test_hmc_is_not_corrected_and_says_so():
    method = tacit.HMC(gradient=engine(), ratio=engine(), step_size=1e-4, num_leapfrog=2)
    posterior = fitted(method, num_steps=20)
    assert posterior.raw is None
    with pytest.warns(tacit.errors.IntervalWarning, match="do not include the privacy noise"):
        posterior.credible(0.9)


@pytest.mark.parametrize(("hidden", "said"), [((4,), "hidden layers"), ((60,), "parameters")])
def test_networks_are_not_corrected_and_say_so(hidden, said):
    method = tacit.SGD(release=engine(), optimizer=optax.sgd(0.5))
    posterior = fitted(method, of=model(hidden=hidden), num_steps=20)
    assert posterior.raw is None
    assert said in posterior.intervals.caveats[0]


def test_a_network_without_a_description_is_found_by_its_loss():
    described = model(hidden=(8,))
    posterior = fitted(METHODS["SGLD"](), of=described._replace(spec=None), num_steps=20)
    assert "hidden layers" in posterior.intervals.caveats[0]
    posterior = fitted(METHODS["SGLD"](), of=model()._replace(spec=None))
    assert posterior.intervals.caveats == ()


def test_without_privacy_nothing_is_corrected_and_nothing_is_said():
    method = tacit.SGLD.non_private(
        sampling=tacit.FullBatch(num_records=NUM_RECORDS), step_size=1e-2
    )
    posterior = fitted(method, budget=tacit.Budget.non_private())
    assert posterior.raw is None
    assert posterior.intervals == tacit.intervals.IntervalFacts()


def test_a_clip_that_bites_is_said():
    budget = tacit.Budget(epsilon=50.0, delta=1e-5)
    method = tacit.SGD(release=engine(clip_norm=0.3), optimizer=optax.sgd(2.0))
    posterior = fitted(method, budget=budget)
    assert any("larger clip_norm" in caveat for caveat in posterior.intervals.caveats)


def test_a_run_that_was_too_short_keeps_its_own_draws_and_says_so():
    method = tacit.SGD(release=engine(), optimizer=optax.sgd(0.01))
    posterior = fitted(method, num_steps=20, budget=tacit.Budget(epsilon=0.5, delta=1e-5))
    assert posterior.raw is None
    assert "too short" in posterior.intervals.caveats[0]


@pytest.mark.parametrize(
    ("likelihood", "is_quadratic"),
    [(FixedGaussian(std=1.0), True), (Bernoulli(), False), (PoissonCounts(), False)],
)
def test_only_quadratic_losses_are_taken_for_such(likelihood, is_quadratic):
    x, one = jax.ShapeDtypeStruct((DIM,), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)
    row = tacit.Record(x, one, one)
    assert (slope_change_of(model(likelihood=likelihood), row) == 0) == is_quadratic


def test_only_shapes_of_records_are_read():
    plan = tacit.calibrate(tacit.Plan(method=METHODS["SGD"](), num_steps=50), BUDGET)
    fit = tacit.fit(plan, model(), records(), budget=BUDGET, seed=0)
    kernel = compiled_kernel(plan.method, model()).kernel
    others = jax.tree.map(jnp.zeros_like, records())
    made = fit.posterior if fit.posterior.raw is None else fit.posterior.raw
    again = corrected(made, kernel, fit.checkpoint.states, others)
    jax.tree.map(np.testing.assert_array_equal, again.kept, fit.posterior.kept)
