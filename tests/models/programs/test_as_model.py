"""Programs as models: prior plus likelihoods is minus NumPyro's potential."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import potential_energy

import tacit
from models.programs.zoo import (
    LOCAL,
    SHARED,
    N,
    logistic,
    network_with_params,
    normal_mean,
    real,
    x,
)
from tacit.errors import InvalidArgumentError
from tacit.models.base import Moments
from tacit.models.programs.arguments import signature_of, split_arguments
from tacit.models.programs.model import constrained

FAST = {"xla_backend_optimization_level": 0}


def as_model(case):
    """The case with its private arguments as inputs, and a target that it ignores."""
    split = split_arguments(
        case.args, case.kwargs, public=case.public, signature=signature_of(case.model)
    )
    records = tacit.Record(split.records, jnp.zeros(N), jnp.ones(N))
    model = tacit.from_program(case.model, records, arguments=lambda rows: split.build(rows.x))
    return model, records


# One program of each kind; `make test-all` runs them all.
OFTEN = {
    "normal mean",
    "logistic, keywords",
    "subsampled by index",
    "varying intercepts",
    "mixture",
}
EVERY = [
    pytest.param(case, id=name, marks=() if name in OFTEN else pytest.mark.slow)
    for name, case in SHARED.items()
]


@pytest.mark.parametrize("case", EVERY)
def test_prior_and_likelihoods_add_up_to_numpyros_potential(case):
    model, records = as_model(case)
    params = jax.jit(model.init, compiler_options=FAST)(jax.random.key(1))
    kwargs = {**case.kwargs, **case.whole}
    # A plate that names more records than there are counts each of them more than once.
    scale = kwargs.get("num_records", N) / N

    @functools.partial(jax.jit, compiler_options=FAST)
    def both(params):
        key = jax.random.key(2)
        terms = jax.vmap(model.log_likelihood, in_axes=(None, 0, None))(params, records, key)
        seeded = numpyro.handlers.seed(case.model, 0)
        ours = model.log_prior(params) + scale * jnp.sum(terms)
        return ours, -potential_energy(seeded, case.args, kwargs, params)

    ours, expected = both(params)
    assert np.isfinite(expected)
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


def test_there_are_many_programs():
    assert len(SHARED) >= 15


@pytest.fixture(scope="module")
def classifier():
    return tacit.from_program(logistic, tacit.as_records(x, jnp.arange(N) % 2))


def test_a_classifier_predicts_class_probabilities(classifier):
    params = {"weights": jnp.array([1.0, -2.0]), "intercept": jnp.array(0.5)}
    expected = jax.nn.sigmoid(1.0 - 2.0 + 0.5)
    found = classifier.predict(params, jnp.ones(2), jax.random.key(0))
    np.testing.assert_allclose(found, [1 - expected, expected], rtol=1e-6)


def categorical(x, y):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x @ weights), obs=y)


def regression(x, y):
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x[:, 0], noise), obs=y)


def test_several_classes_and_real_targets_are_predicted_too():
    model = tacit.from_program(categorical, tacit.as_records(x, jnp.arange(N) % 3))
    found = model.predict({"weights": jnp.zeros((2, 3))}, x[0], jax.random.key(0))
    np.testing.assert_allclose(found, np.full(3, 1 / 3), rtol=1e-6)
    model = tacit.from_program(regression, tacit.as_records(x, real))
    found = model.predict({"noise": jnp.log(2.0)}, x[0], jax.random.key(0))
    assert isinstance(found, Moments)
    np.testing.assert_allclose([found.mean, found.variance], [x[0, 0], 4.0], rtol=1e-6)


def test_latents_are_given_back_in_their_own_spaces_for_predictive():
    model = tacit.from_program(regression, tacit.as_records(x, real))
    draws = constrained(model, {"noise": jnp.log(jnp.array([0.5, 2.0, 3.0]))})
    np.testing.assert_allclose(draws["noise"], [0.5, 2.0, 3.0], rtol=1e-6)
    predictive = numpyro.infer.Predictive(regression, posterior_samples=draws)
    assert predictive(jax.random.key(0), x, None)["y"].shape == (3, N)


def test_a_program_is_fitted_privately_by_a_sampler(classifier):
    records = tacit.as_records(x, jnp.arange(N) % 2)
    release = tacit.GaussianSum(
        sampling=tacit.FullBatch(num_records=N), clip_norm=1.0, noise_multiplier=3.0
    )
    plan = tacit.Plan(method=tacit.SGLD(release=release, step_size=1e-2), num_steps=3)
    fitted = tacit.fit(plan, classifier, records, budget=tacit.Budget(epsilon=10, delta=1e-2))
    probabilities = tacit.predict(fitted.posterior, x).probabilities
    assert probabilities.shape == (N, 2)
    assert np.all(np.isfinite(probabilities))


def by_keyword(*, features, y, offset=4711.5):
    regression(features, y)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            by_keyword,
            r"takes \(\*, features, y, offset\) but is called as model\(_, _\).*arguments=",
        ),
        (normal_mean, r"takes \(y\) but is called as model\(_, _\).*too many.*arguments="),
    ],
)
def test_a_program_that_is_called_in_another_way_is_told_of_arguments(program, message):
    with pytest.raises(InvalidArgumentError, match=message):
        tacit.from_program(program, tacit.as_records(x, real))


def test_the_remedy_for_another_call_works():
    model = tacit.from_program(
        by_keyword,
        tacit.as_records(x, real),
        arguments=lambda rows: ((), {"features": rows.x, "y": rows.y}),
    )
    found = model.predict({"noise": jnp.zeros(())}, x[0], jax.random.key(0))
    np.testing.assert_allclose(found.mean, x[0, 0], rtol=1e-6)


def own_target(x, y):
    weight = numpyro.sample("weight", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(weight * x[:, 0] + jnp.sign(y), 1), obs=y)


def test_a_target_that_explains_itself_is_not_predicted():
    model = tacit.from_program(own_target, tacit.as_records(x, real))
    with pytest.raises(InvalidArgumentError, match="depends on the target itself"):
        model.predict({"weight": jnp.zeros(())}, x[0], jax.random.key(0))


@pytest.mark.parametrize(
    ("program", "target", "message"),
    [
        (network_with_params, real, r"'net\$params' has no prior.*random_flax_module"),
        (LOCAL["mixed effects"].model, x, "'effect' belongs to a record.*DPSVI"),
    ],
)
def test_what_has_no_posterior_to_sample_is_refused(program, target, message):
    records = tacit.Record(x, target, jnp.ones(N))
    with pytest.raises(InvalidArgumentError, match=message):
        tacit.from_program(program, records)


class _WithoutMoments(dist.Normal):
    @property
    def mean(self):
        raise NotImplementedError

    variance = mean


def without_moments(x, y):
    weight = numpyro.sample("weight", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", _WithoutMoments(weight * x[:, 0], 1), obs=y)


def test_a_target_without_moments_is_learnt_but_not_predicted():
    model = tacit.from_program(without_moments, tacit.as_records(x, real))
    params = model.init(jax.random.key(0))
    assert np.isfinite(model.log_prior(params))
    with pytest.raises(InvalidArgumentError, match="no mean or variance"):
        model.predict(params, x[0], jax.random.key(0))
