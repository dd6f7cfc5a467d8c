"""Networks from elsewhere become models that behave like the originals."""

import sys

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tacit.errors import CrossRecordError, InvalidArgumentError
from tacit.models import (
    MLP,
    Categorical,
    FixedGaussian,
    FlatPrior,
    GaussianPrior,
    bayesian,
    from_equinox,
    from_flax,
    from_function,
)
from tacit.models.bayesian import from_nnx
from tacit.models.priors import PerLeafPrior
from tacit.typing import Record

KEY = jax.random.key(0)
X = jnp.linspace(-1.0, 1.0, 4)
THREE = Categorical(num_classes=3)
PRIOR = GaussianPrior(std=1.0)


class LinenNet(nn.Module):
    rate: float = 0.0

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(3)(nn.Dropout(self.rate, deterministic=False)(x))


class NnxNet(nnx.Module):
    def __init__(self, rngs, rate=0.0):
        self.layers = nnx.List([nnx.Linear(4, 64, rngs=rngs), nnx.Linear(64, 3, rngs=rngs)])
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x):
        return self.layers[1](self.dropout(nnx.relu(self.layers[0](x))))


class EquinoxNet(eqx.Module):
    layers: list
    dropout: eqx.nn.Dropout

    def __init__(self, key, rate=0.0):
        first, second = jax.random.split(key)
        self.layers = [eqx.nn.Linear(4, 64, key=first), eqx.nn.Linear(64, 3, key=second)]
        self.dropout = eqx.nn.Dropout(rate)

    def __call__(self, x, key):
        return self.layers[1](self.dropout(jax.nn.relu(self.layers[0](x)), key=key))


def plain(rate):
    network = MLP(num_inputs=4, hidden=(64,), num_outputs=3, dropout=rate)
    return from_function(network.init, network.apply, prior=PRIOR, likelihood=THREE)


MODELS = {
    "function": plain,
    "linen": lambda rate: from_flax(LinenNet(rate), X, prior=PRIOR, likelihood=THREE),
    "nnx": lambda rate: from_nnx(lambda rngs: NnxNet(rngs, rate), prior=PRIOR, likelihood=THREE),
    "equinox": lambda rate: from_equinox(
        lambda key: EquinoxNet(key, rate), prior=PRIOR, likelihood=THREE
    ),
}
every_adapter = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)


@every_adapter
def test_an_adapted_network_is_mapped_compiled_and_differentiated(build):
    model = build(0.5)
    params, keys = model.init(KEY), jax.random.split(KEY, 5)
    rows = Record(x=jnp.stack([X] * 5), y=jnp.arange(5) % 3, weight=jnp.ones(5))
    per_record = jax.jit(jax.vmap(jax.grad(model.log_likelihood), (None, 0, 0)))
    grads = per_record(params, rows, keys)
    for leaf, grad in zip(jax.tree.leaves(params), jax.tree.leaves(grads), strict=True):
        assert leaf.dtype == jnp.float32
        assert grad.shape == (5, *leaf.shape)
        assert jnp.any(grad != 0)
    per_record(jax.tree.map(lambda leaf: 0.9 * leaf, params), rows, keys)
    assert per_record._cache_size() == 1
    assert jax.eval_shape(model.init, KEY).keys() == params.keys()
    assert model.predict(params, X, KEY).shape == (3,)
    assert model.spec is None


@every_adapter
def test_the_starting_point_of_an_adapted_network_follows_the_key(build):
    model = build(0.0)
    params, again, other = (model.init(jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, params, again)
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), params, other)))


@every_adapter
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_the_key_of_a_record_decides_its_dropout(build, rate):
    model = build(rate)
    params = model.init(KEY)
    first, again, other = (model.predict(params, X, jax.random.key(seed)) for seed in (2, 2, 3))
    np.testing.assert_array_equal(first, again)
    assert bool((first != other).any()) == (rate > 0)


def test_a_linen_model_computes_what_the_module_computes():
    model = MODELS["linen"](0.0)
    params = model.init(KEY)
    expected = jax.nn.softmax(LinenNet().apply({"params": params["network"]}, X))
    np.testing.assert_allclose(model.predict(params, X, KEY), expected, rtol=1e-6)


def test_an_nnx_model_computes_what_the_module_computes():
    model = MODELS["nnx"](0.0)
    expected = jax.nn.softmax(NnxNet(nnx.Rngs(KEY))(X))
    np.testing.assert_allclose(model.predict(model.init(KEY), X, KEY), expected, rtol=1e-6)


def test_an_equinox_model_computes_what_the_module_computes():
    model = MODELS["equinox"](0.0)
    expected = jax.nn.softmax(EquinoxNet(KEY)(X, KEY))
    np.testing.assert_allclose(model.predict(model.init(KEY), X, KEY), expected, rtol=1e-6)


def test_an_equinox_module_that_takes_no_key_is_called_without_one():
    class Double(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return self.weight @ x

    model = from_equinox(
        lambda key: Double(jax.random.normal(key, (4,))),
        prior=PRIOR,
        likelihood=FixedGaussian(std=1.0),
    )
    params = model.init(KEY)
    assert float(model.predict(params, X, KEY).mean) == pytest.approx(
        float(params["network"]["weight"] @ X)
    )


def test_a_function_model_equals_the_bayesian_network_of_the_same_functions():
    network = MLP(num_inputs=4, hidden=(64,), num_outputs=3)
    model, adapted = bayesian(network, prior=PRIOR, likelihood=THREE), plain(0.0)
    params = model.init(KEY)
    assert adapted.log_prior(params) == model.log_prior(params)
    np.testing.assert_array_equal(adapted.predict(params, X, KEY), model.predict(params, X, KEY))


def test_a_prior_can_name_the_parameters_of_an_adapted_network():
    prior = PerLeafPrior(default=PRIOR, overrides=(("layers/0", FlatPrior()), ("bias", PRIOR)))
    model = from_equinox(EquinoxNet, prior=prior, likelihood=THREE)
    params = model.init(KEY)
    named = {name: leaf for name, leaf in params["network"].items() if name.startswith("layers/1")}
    assert len(named) == 2
    assert float(model.log_prior(params)) == pytest.approx(float(PRIOR.log_prob(named)), rel=1e-6)


class LinenBatchNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=True)(x))


class LinenCounter(nn.Module):
    @nn.compact
    def __call__(self, x):
        seen = self.variable("counters", "seen", lambda: jnp.zeros(()))
        return nn.Dense(3)(x) + seen.value


@pytest.mark.parametrize(
    ("module", "collection"), [(LinenBatchNorm(), "batch_stats"), (LinenCounter(), "counters")]
)
def test_a_linen_module_with_state_is_refused_by_the_name_of_the_collection(module, collection):
    with pytest.raises(CrossRecordError, match=rf"{collection}.*GroupNorm or LayerNorm"):
        from_flax(module, X, prior=PRIOR, likelihood=THREE)


def test_an_nnx_module_with_batch_normalisation_is_refused():
    with pytest.raises(CrossRecordError, match=r"BatchStat.*GroupNorm or LayerNorm"):
        from_nnx(lambda rngs: nnx.BatchNorm(4, rngs=rngs), prior=PRIOR, likelihood=THREE)


def test_an_equinox_module_with_batch_normalisation_is_refused():
    def build(key):
        del key
        return eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")

    with pytest.raises(CrossRecordError, match=r"StateIndex.*GroupNorm or LayerNorm"):
        from_equinox(build, prior=PRIOR, likelihood=THREE)
    with pytest.raises(CrossRecordError, match="State"):
        from_equinox(eqx.nn.make_with_state(build), prior=PRIOR, likelihood=THREE)


def test_layer_normalisation_is_welcome():
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(nn.LayerNorm()(x))

    model = from_flax(Normed(), X, prior=PRIOR, likelihood=THREE)
    assert model.predict(model.init(KEY), X, KEY).shape == (3,)


def test_only_the_shape_of_the_example_input_is_used():
    class Calibrated(nn.Module):
        @nn.compact
        def __call__(self, x):
            shift = self.param("shift", lambda key: x)
            return nn.Dense(3)(x - shift)

    model = from_flax(Calibrated(), X + 5.0, prior=PRIOR, likelihood=THREE)
    assert not model.init(KEY)["network"]["shift"].any()


def test_a_network_that_expects_a_batch_axis_is_refused():
    model = from_function(
        lambda key: jnp.zeros((4, 3)), lambda w, x, key: x[None] @ w, prior=PRIOR, likelihood=THREE
    )
    with pytest.raises(InvalidArgumentError, match=r"shape \(3,\).*got \(1, 3\)"):
        model.predict(model.init(KEY), X, KEY)


@pytest.mark.parametrize(
    ("adapter", "package", "extra"),
    [
        (lambda: from_flax(None, X, prior=PRIOR, likelihood=THREE), "flax.linen", "flax"),
        (lambda: from_nnx(None, prior=PRIOR, likelihood=THREE), "flax.nnx", "flax"),
        (lambda: from_equinox(None, prior=PRIOR, likelihood=THREE), "equinox", "equinox"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    adapter, package, extra, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"tacit\[{extra}\]"):
        adapter()
