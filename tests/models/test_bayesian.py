"""Models made from parts behave like their parts, and survive a trip through JSON."""

import copy
import dataclasses
import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tacit.errors import InvalidArgumentError
from tacit.models import (
    CNN,
    MLP,
    Bernoulli,
    Categorical,
    Conv,
    EmbeddingBag,
    FixedFrontEnd,
    FixedGaussian,
    FlatPrior,
    GaussianPrior,
    HeteroscedasticGaussian,
    LaplacePrior,
    LearntGaussian,
    MaxPool,
    NegativeBinomial,
    PoissonCounts,
    Scattering,
    bayesian,
    front_end,
    likelihoods,
    networks,
    priors,
)
from tacit.models.base import Likelihood, Moments, Network, Prior, from_spec, part_names, spec_of
from tacit.models.bayesian import model_from_spec
from tacit.models.layers import Activation
from tacit.models.networks import AveragePool
from tacit.models.priors import PerLeafPrior
from tacit.typing import Record

NETWORKS = [
    (MLP(num_inputs=6, hidden=(5,), num_outputs=1, activation=Activation.ELU), jnp.ones(6)),
    (
        CNN(
            input_shape=(6, 6, 1),
            stages=(
                Conv(features=2, kernel=2, stride=(2, 1), padding=1),
                MaxPool(window=2, stride=1),
                AveragePool(window=2, stride=1),
            ),
            hidden=(3,),
            num_outputs=1,
            dropout=0.25,
        ),
        jnp.ones((6, 6, 1)),
    ),
    (EmbeddingBag(num_tokens=9, num_features=4, num_outputs=1), jnp.array([1, 8, -1])),
    (
        FixedFrontEnd(
            front_end=Scattering(
                image_shape=(4, 4), num_scales=1, num_orientations=2, num_groups=None
            ),
            head=MLP(num_inputs=12, num_outputs=1),
        ),
        jnp.ones((4, 4)),
    ),
]
PRIORS = [
    GaussianPrior(std=np.float64(0.1)),
    LaplacePrior(scale=0.1),
    FlatPrior(),
    PerLeafPrior(default=GaussianPrior(std=0.1), overrides=(("bias", LaplacePrior(scale=2.0)),)),
]
LIKELIHOODS = [
    Categorical(num_classes=3),
    Bernoulli(),
    FixedGaussian(std=0.5),
    LearntGaussian(initial_std=0.5, prior_std=2.0),
    HeteroscedasticGaussian(),
    PoissonCounts(),
    NegativeBinomial(dispersion=0.5),
]
PARTS = list(itertools.product(NETWORKS, PRIORS, LIKELIHOODS))
KEY = jax.random.key(0)


def names(parts):
    (network, _), prior, likelihood = parts
    return "-".join(type(part).__name__ for part in (network, prior, likelihood))


def build(parts):
    (network, _), prior, likelihood = parts
    resized = {"num_outputs": likelihood.num_outputs}
    if isinstance(network, FixedFrontEnd):
        resized = {"head": dataclasses.replace(network.head, **resized)}
    network = dataclasses.replace(network, **resized)
    return bayesian(network, prior=prior, likelihood=likelihood)


def record(x, y):
    return Record(x=x, y=jnp.asarray(y), weight=jnp.ones(()))


def program(function, *args):
    """Returns what a function computes, operation by operation, without running it."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(jax.make_jaxpr(function)(*args)))


def test_every_kind_that_can_be_described_is_tested_here():
    for role, parts in (
        (Network, [network for network, _ in NETWORKS]),
        (Prior, PRIORS),
        (Likelihood, LIKELIHOODS),
    ):
        # Other tests register parts of their own.
        homes = (front_end, likelihoods, networks, priors)
        ours = {name for name in part_names(role) if any(hasattr(home, name) for home in homes)}
        assert {type(part).__name__ for part in parts} == ours


@pytest.mark.parametrize("parts", PARTS, ids=names)
def test_the_description_of_a_model_survives_json(parts):
    model = build(parts)
    assert model_from_spec(json.loads(json.dumps(model.spec))).spec == model.spec


@pytest.mark.parametrize(
    ("part", "role"),
    [(network, Network) for network, _ in NETWORKS]
    + [(prior, Prior) for prior in PRIORS]
    + [(likelihood, Likelihood) for likelihood in LIKELIHOODS],
)
def test_every_field_of_a_part_survives_json(part, role):
    again = from_spec(json.loads(json.dumps(spec_of(part, role))), role)
    assert again == part
    assert repr(again) == repr(part).replace("np.float64(0.1)", "0.1")


# Enough to meet every part once.
SOME = [(NETWORKS[i % 3], PRIORS[i % 4], likelihood) for i, likelihood in enumerate(LIKELIHOODS)]


@pytest.mark.parametrize("parts", SOME, ids=names)
def test_a_model_rebuilt_from_json_computes_the_same(parts):
    model, ((_, x), _, _) = build(parts), parts
    again = model_from_spec(json.loads(json.dumps(model.spec)))

    shapes = jax.eval_shape(model.init, KEY)
    for ours, theirs, args in [
        (model.init, again.init, (KEY,)),
        (model.log_prior, again.log_prior, (shapes,)),
        (model.log_likelihood, again.log_likelihood, (shapes, record(x, 1), KEY)),
        (model.predict, again.predict, (shapes, x, KEY)),
    ]:
        assert program(ours, *args) == program(theirs, *args)


@pytest.mark.parametrize("parts", SOME, ids=names)
def test_a_model_is_mapped_compiled_and_differentiated_without_losing_its_types(parts):
    model, ((_, x), _, _) = build(parts), parts
    shapes = jax.eval_shape(model.init, KEY)
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.1, leaf.dtype), shapes)
    keys = jax.random.split(KEY, 3)
    rows = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), record(x, 1))

    @jax.jit
    def loss_and_grad(params):
        def loss(params):
            terms = jax.vmap(model.log_likelihood, (None, 0, 0))(params, rows, keys)
            return -jnp.sum(terms) - model.log_prior(params)

        return jax.value_and_grad(loss)(params)

    value, grads = loss_and_grad(params)
    stepped = jax.tree.map(lambda w, g: w - 0.01 * g, params, grads)
    loss_and_grad(stepped)
    assert loss_and_grad._cache_size() == 1
    assert value.dtype == jnp.float32
    assert jax.tree.structure(grads) == jax.tree.structure(params)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda c: type(c).__name__)
def test_a_prediction_is_probabilities_for_classes_and_moments_for_numbers(likelihood):
    network = MLP(num_inputs=6, num_outputs=likelihood.num_outputs)
    model = bayesian(network, prior=FlatPrior(), likelihood=likelihood)
    prediction = model.predict(model.init(KEY), jnp.ones(6), KEY)
    if isinstance(likelihood, Categorical | Bernoulli):
        assert prediction.shape == (getattr(likelihood, "num_classes", 2),)
        assert float(prediction.sum()) == pytest.approx(1.0)
    else:
        assert isinstance(prediction, Moments)
        assert prediction.mean.shape == prediction.variance.shape == ()
        assert prediction.variance > 0


def test_the_likelihood_ignores_the_weight_of_a_record():
    model = bayesian(NETWORKS[0][0], prior=FlatPrior(), likelihood=Bernoulli())
    params, row = model.init(KEY), record(jnp.ones(6), 1)
    heavy = row._replace(weight=jnp.array(7.0))
    assert model.log_likelihood(params, heavy, KEY) == model.log_likelihood(params, row, KEY)


def test_dropout_draws_afresh_in_training_and_in_prediction():
    network = MLP(num_inputs=6, hidden=(64,), num_outputs=1, dropout=0.5)
    model = bayesian(network, prior=FlatPrior(), likelihood=Bernoulli())
    params, row, other = model.init(KEY), record(jnp.ones(6), 1), jax.random.key(1)
    assert model.log_likelihood(params, row, KEY) != model.log_likelihood(params, row, other)
    assert model.predict(params, row.x, KEY)[0] != model.predict(params, row.x, other)[0]


def test_learnt_noise_is_a_parameter_outside_the_prior_of_the_network():
    model = bayesian(
        MLP(num_inputs=6, num_outputs=1),
        prior=GaussianPrior(std=0.1),
        likelihood=LearntGaussian(initial_std=3.0),
    )
    params = model.init(KEY)
    assert float(params["log_std"]) == pytest.approx(np.log(3.0))
    expected = GaussianPrior(std=0.1).log_prob(params["network"]) + scipy.stats.norm.logpdf(0.0)
    assert float(model.log_prior(params)) == pytest.approx(float(expected), rel=1e-5)
    gradient = jax.grad(model.log_likelihood)(params, record(jnp.zeros(6), 6.0), KEY)
    # d/d log_std of the normal density at two standard deviations is 2^2 - 1.
    assert float(gradient["log_std"]) == pytest.approx(3.0, rel=1e-5)


def test_a_network_with_the_wrong_number_of_outputs_is_refused():
    with pytest.raises(InvalidArgumentError, match="num_outputs of the network must be 2"):
        bayesian(
            MLP(num_inputs=6, num_outputs=1),
            prior=FlatPrior(),
            likelihood=HeteroscedasticGaussian(),
        )


def test_a_model_with_a_part_from_elsewhere_has_no_description():
    class Scaled(MLP):
        pass

    network = Scaled(num_inputs=6, num_outputs=1)
    assert bayesian(network, prior=FlatPrior(), likelihood=Bernoulli()).spec is None


GOOD = bayesian(NETWORKS[1][0], prior=PRIORS[0], likelihood=Bernoulli()).spec


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("network", "kind"),
            "ResNet",
            "kind must be one of .*MLP.*'ResNet'.*import the module that defines it",
        ),
        (("network", "kind"), "GaussianPrior", "kind must be one of .*MLP"),
        (("network", "kind"), ["MLP"], "kind must be one of .*MLP"),
        (("network", "width"), 3, r"CNN has unknown fields \['width'\]"),
        (("network", "activation"), "step", "activation must be one of relu.*'step'"),
        (("network", "activation"), ["relu"], "activation must be one of relu"),
        (("network", "hidden"), None, "plain values only"),
        (("network", "stages"), [{"kind": "Norm"}], "kind must be one of .*Conv.*'Norm'"),
        (("network", "stages"), [{"kind": "Conv"}], r"lacks \['features', 'kernel'\]"),
        (("prior", "kind"), "builtins.eval", "kind must be one of .*GaussianPrior"),
        (("prior", "std"), -1.0, "std must be"),
        (("prior", "std"), "0.1", "std must be a number"),
        (("prior",), "GaussianPrior", "kind must be one of .*GaussianPrior"),
        (("likelihood",), {"kind": "Categorical", "num_classes": 5}, "num_outputs"),
        (("data",), [], "spec must describe network, prior, likelihood"),
    ],
)
def test_a_broken_description_is_refused_with_the_reason(path, value, message):
    spec = copy.deepcopy(GOOD)
    target = spec
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    with pytest.raises(InvalidArgumentError, match=message):
        model_from_spec(spec)
