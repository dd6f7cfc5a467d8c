"""What a model draws has the distribution that the model describes."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from tacit.data import as_records
from tacit.errors import InvalidArgumentError
from tacit.models import (
    MLP,
    Bernoulli,
    Categorical,
    FixedGaussian,
    FlatPrior,
    GaussianPrior,
    HeteroscedasticGaussian,
    LaplacePrior,
    LearntGaussian,
    NegativeBinomial,
    PoissonCounts,
    Scattering,
    bayesian,
    from_program,
    with_front_end,
)
from tacit.models.base import Moments
from tacit.models.priors import PerLeafPrior

NUM_DRAWS = 20_000
KEYS = jax.random.split(jax.random.key(0), NUM_DRAWS)
OUTPUTS = {1: [0.7], 2: [0.4, -0.3], 3: [0.2, -1.0, 0.5]}


@pytest.mark.parametrize(
    "likelihood",
    [
        Bernoulli(),
        Categorical(num_classes=3),
        FixedGaussian(std=0.3),
        LearntGaussian(initial_std=0.5),
        HeteroscedasticGaussian(),
        PoissonCounts(),
        NegativeBinomial(dispersion=0.6),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_targets_are_drawn_from_what_is_predicted(likelihood):
    outputs, params = jnp.array(OUTPUTS[likelihood.num_outputs]), likelihood.init()
    found = np.asarray(jax.vmap(lambda key: likelihood.draw(params, outputs, key))(KEYS))
    predicted = likelihood.predict(params, outputs)
    if isinstance(predicted, Moments):
        error = np.sqrt(predicted.variance / NUM_DRAWS)
        assert abs(found.mean() - predicted.mean) < 4 * error
        # The variance of a variance is its kurtosis; those of counts are up to about 12.
        assert found.var() == pytest.approx(
            float(predicted.variance), rel=4 * np.sqrt(12 / NUM_DRAWS)
        )
    else:
        shares = np.bincount(found, minlength=len(predicted)) / NUM_DRAWS
        assert np.all(np.abs(shares - predicted) < 4 * np.sqrt(0.25 / NUM_DRAWS))
    log_prob = jax.vmap(lambda y: likelihood.log_prob(params, outputs, y))(jnp.asarray(found))
    assert np.all(np.isfinite(log_prob))


def test_parameters_are_drawn_from_their_own_priors():
    prior = PerLeafPrior(
        default=GaussianPrior(std=2.0), overrides=(("bias", LaplacePrior(scale=0.5)),)
    )
    model = bayesian(
        MLP(num_inputs=3, num_outputs=1), prior=prior, likelihood=LearntGaussian(initial_std=0.1)
    )
    draws = jax.vmap(model.simulator.params)(KEYS)
    layer = draws["network"]["dense_0"]
    kernel, bias = (np.asarray(layer[name]).reshape(NUM_DRAWS, -1) for name in ("kernel", "bias"))
    assert kernel.std() == pytest.approx(2.0, rel=0.02)
    assert np.corrcoef(kernel.T)[0, 1] == pytest.approx(0.0, abs=0.04)
    assert bias.std() == pytest.approx(0.5 * np.sqrt(2), rel=0.05)
    assert np.mean(np.abs(bias)) == pytest.approx(0.5, rel=0.03)
    assert np.mean(draws["log_std"]) == pytest.approx(np.log(0.1), abs=0.03)
    assert np.std(draws["log_std"]) == pytest.approx(1.0, rel=0.03)
    template = model.init(jax.random.key(1))
    assert jax.tree.map(jnp.shape, model.simulator.params(KEYS[0])) == jax.tree.map(
        jnp.shape, template
    )


def test_nothing_is_drawn_from_a_flat_prior():
    model = bayesian(MLP(num_inputs=3, num_outputs=1), prior=FlatPrior(), likelihood=Bernoulli())
    with pytest.raises(InvalidArgumentError, match="must be a distribution"):
        model.simulator.params(KEYS[0])


def test_a_front_end_stands_before_drawn_targets_too():
    front_end = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=None)
    head = bayesian(
        MLP(num_inputs=front_end.num_features, num_outputs=1),
        prior=GaussianPrior(std=1.0),
        likelihood=FixedGaussian(std=1e-3),
    )
    model = with_front_end(head, front_end)
    params, image = model.simulator.params(KEYS[0]), jax.random.uniform(KEYS[1], (8, 8))
    expected = float(model.predict(params, image, KEYS[2]).mean)
    assert float(model.simulator.target(params, image, KEYS[3])) == pytest.approx(
        expected, abs=0.01
    )


def program(x, y):
    scale = numpyro.sample("scale", dist.LogNormal(0.5, 0.3))
    weights = numpyro.sample("weights", dist.Normal(1.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def test_a_program_draws_its_unconstrained_latents_and_its_target():
    records = as_records(jnp.ones((5, 2)), jnp.ones(5))
    model = from_program(program, records)
    draws = jax.vmap(model.simulator.params)(KEYS[:5000])
    assert np.mean(draws["scale"]) == pytest.approx(0.5, abs=0.02)  # the log of the scale
    assert np.std(draws["scale"]) == pytest.approx(0.3, rel=0.05)
    assert np.mean(draws["weights"]) == pytest.approx(1.0, abs=0.1)
    assert np.std(draws["weights"]) == pytest.approx(2.0, rel=0.05)
    params = {"scale": jnp.log(0.5), "weights": jnp.array([1.0, -2.0])}
    x = jnp.array([0.5, 1.0])
    targets = jax.vmap(lambda key: model.simulator.target(params, x, key))(KEYS[:5000])
    assert targets.shape == (5000,)
    assert np.mean(targets) == pytest.approx(-1.5, abs=0.03)
    assert np.std(targets) == pytest.approx(0.5, rel=0.05)
