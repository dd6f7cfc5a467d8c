"""Parts are open: a user's own part is fitted, saved, loaded and, if it says how, certified."""

import dataclasses
import enum
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tacit
from tacit.certify import Intervals, certified, certify_predictive
from tacit.certify.intervals import bounds_features_of
from tacit.data import as_records
from tacit.errors import InvalidArgumentError, PrivacyWarning
from tacit.models import (
    MLP,
    Bernoulli,
    Categorical,
    FixedFrontEnd,
    FlatPrior,
    GaussianPrior,
    base,
    bayesian,
    layers,
    part,
)
from tacit.models.base import (
    FrontEnd,
    Likelihood,
    Moments,
    Network,
    Prior,
    from_spec,
    is_part,
    spec_of,
)
from tacit.models.layers import Activation
from tacit.models.likelihoods import ParameterFree, WorstAtCorner
from tacit.models.steps import Activate, DenseMap, Vector, run
from tacit.posterior import load_posterior, predict
from tacit.rng import seeded_key
from tacit.robust import Linf
from tacit.robust.balls import around
from tacit.samplers import Points, Sampler, sampler_spec
from tacit.typing import Record


@part(Likelihood)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cauchy(ParameterFree, WorstAtCorner):
    """A real target with heavy tails."""

    scale: float

    @property
    def num_outputs(self):
        return 1

    def log_prob(self, params, outputs, y):
        score = (jnp.reshape(y, ()) - outputs[0]) / self.scale
        return -jnp.log1p(jnp.square(score)) - jnp.log(jnp.pi * self.scale)

    def predict(self, params, outputs):
        return Moments(outputs[0], jnp.square(self.scale))


@part(Likelihood)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharper(ParameterFree):
    """Two classes, from one output that counts several times."""

    factor: float

    @property
    def num_outputs(self):
        return 1

    def logits(self, outputs):
        return jnp.concatenate([-self.factor * outputs, self.factor * outputs])

    def log_prob(self, params, outputs, y):
        return jax.nn.log_softmax(self.logits(outputs))[jnp.reshape(y, ()).astype(int)]

    def predict(self, params, outputs):
        return jax.nn.softmax(self.logits(outputs))


@part(Network)
@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoLayers:
    """Dense layers under names of their own."""

    num_inputs: int
    width: int = 3
    activation: Activation = Activation.TANH
    is_wide: bool = False

    @property
    def num_outputs(self):
        return 1

    def init(self, key):
        return {
            "first": layers.init_layer(key, (self.num_inputs, self.width), before=self.activation),
            "second": layers.init_layer(key, (self.width, 1), before=Activation.IDENTITY),
        }

    def apply(self, params, x, key):
        return run(self.steps, params, x, key)

    @property
    def steps(self):
        return (
            Vector(self.num_inputs),
            DenseMap("first"),
            Activate(self.activation),
            DenseMap("second"),
        )


@part(Prior)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Student:
    """Heavy tails, without an expectation in closed form."""

    scale: float

    def log_prob(self, params):
        squares = [jnp.sum(jnp.log1p(jnp.square(w / self.scale))) for w in jax.tree.leaves(params)]
        return -sum(squares)


@part(FrontEnd)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Doubled:
    """Every pixel, twice as bright."""

    image_shape: tuple[int, int]

    @property
    def output_shape(self):
        return self.image_shape

    @property
    def num_features(self):
        return self.image_shape[0] * self.image_shape[1]

    def __call__(self, x):
        return 2 * x


@part(Sampler)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Halves(Points):
    """Half of every state."""

    def draw(self, key, kept):
        return jax.tree.map(lambda x: 0.5 * x, kept)


NUM = 20
X = np.random.default_rng(0).normal(size=(NUM, 4)).astype(np.float32)
PRIOR = GaussianPrior(std=1.0)


def fitted(model, y):
    sampling = tacit.FullBatch(num_records=NUM)
    release = tacit.GaussianSum(sampling=sampling, clip_norm=1.0, noise_multiplier=0.0)
    method = tacit.SGD(release=release, optimizer=optax.sgd(1.0))
    plan = tacit.Plan(method=method, num_steps=3)
    return tacit.fit(plan, model, as_records(X, y), budget=tacit.Budget.non_private(), seed=0)


def saved_and_loaded(posterior, folder):
    with pytest.warns(PrivacyWarning, match="NOT PRIVATE"):
        posterior.save(folder)
    return load_posterior(folder)


@pytest.mark.parametrize(
    ("network", "prior", "likelihood"),
    [
        (MLP(num_inputs=4, num_outputs=1), PRIOR, Cauchy(scale=0.5)),
        (TwoLayers(num_inputs=4, is_wide=True), Student(scale=2.0), Bernoulli()),
    ],
    ids=["likelihood", "network and prior"],
)
def test_ones_own_part_is_fitted_saved_and_loaded(network, prior, likelihood, tmp_path):
    model = bayesian(network, prior=prior, likelihood=likelihood)
    posterior = fitted(model, (X[:, 0] > 0).astype(np.int32)).posterior
    loaded = saved_and_loaded(posterior, tmp_path)
    assert loaded.model.spec == model.spec
    for one, other in zip(predict(posterior, X), predict(loaded, X), strict=True):
        np.testing.assert_array_equal(one, other)


def test_ones_own_sampler_is_saved_and_loaded(tmp_path):
    model = bayesian(TwoLayers(num_inputs=4), prior=PRIOR, likelihood=Bernoulli())
    posterior = fitted(model, (X[:, 0] > 0).astype(np.int32)).posterior
    own = dataclasses.replace(posterior, sampler=Halves())
    assert saved_and_loaded(own, tmp_path).sampler == Halves()


def test_ones_own_likelihood_is_certified_by_its_worst_case():
    network = TwoLayers(num_inputs=4)
    model = bayesian(network, prior=PRIOR, likelihood=Cauchy(scale=0.5))
    robust = certified(model, network, Linf(radius=0.1), weight=0.0)
    params, key = model.init(seeded_key(0)), seeded_key(1)
    record = Record(jnp.asarray(X[0]), jnp.array(0.3), jnp.array(1.0))
    worst = float(robust.log_likelihood(params, record, key))
    shifts = jax.random.uniform(key, (300, 4), minval=-0.1, maxval=0.1)
    inside = jax.vmap(lambda x: model.log_likelihood(params, record._replace(x=x), key))(
        record.x + shifts
    )
    assert worst <= float(inside.min())
    assert worst >= float(inside.min()) - 1.0


def test_predictions_of_ones_own_network_and_likelihood_of_classes_are_certified():
    model = bayesian(TwoLayers(num_inputs=4), prior=PRIOR, likelihood=Sharper(factor=3.0))
    y = (X[:, 0] > 0).astype(np.int32)
    posterior = fitted(model, y).posterior
    certificate = certify_predictive(posterior, X, y, Linf(radius=0.05))
    assert int(certificate.is_certified.sum()) > 0
    for shift in 0.05 * np.random.default_rng(1).choice([-1, 1], (20, 4)):
        moved = np.argmax(predict(posterior, X + shift.astype(np.float32)).probabilities, axis=1)
        assert (moved == certificate.predicted)[certificate.is_certified].all()


def test_a_front_end_of_ones_own_has_bounds_once_it_says_them(tmp_path):
    network = FixedFrontEnd(front_end=Doubled(image_shape=(2, 2)), head=TwoLayers(num_inputs=4))
    model = bayesian(network, prior=PRIOR, likelihood=Bernoulli())
    posterior = dataclasses.replace(
        fitted(model._replace(spec=None), np.zeros(NUM, np.int32)).posterior, model=model
    )
    assert saved_and_loaded(posterior, tmp_path).model.spec == model.spec
    images, y = X.reshape(NUM, 2, 2), np.zeros(NUM, np.int32)
    arguments = (posterior, images, y, Linf(radius=0.01))
    with pytest.raises(InvalidArgumentError, match=r"known for Scattering.*bounds_features_of"):
        certify_predictive(*arguments, bounds=Intervals())
    bounds_features_of(Doubled)(lambda front_end, box: around(2 * box.centre, 2.001 * box.radius))
    assert certify_predictive(*arguments, bounds=Intervals()).is_certified.any()


def test_a_part_that_is_not_imported_is_named_with_the_remedy(tmp_path, monkeypatch):
    model = bayesian(TwoLayers(num_inputs=4), prior=PRIOR, likelihood=Bernoulli())
    posterior = fitted(model, np.zeros(NUM, np.int32)).posterior
    saved_and_loaded(posterior, tmp_path)
    monkeypatch.delitem(base._PARTS._entries, "TwoLayers")
    with pytest.raises(InvalidArgumentError, match=r"'TwoLayers'.*import the module that defines"):
        load_posterior(tmp_path)


def test_a_part_is_loaded_only_in_its_own_role():
    with pytest.raises(InvalidArgumentError, match="kind must be one of"):
        from_spec({"kind": "Bernoulli"}, Prior)


def test_a_subclass_that_is_not_registered_itself_is_neither_described_nor_certified():
    class Own(Cauchy):
        def log_prob(self, params, outputs, y):
            return 2 * super().log_prob(params, outputs, y)

    class Deeper(TwoLayers):
        pass

    network = TwoLayers(num_inputs=4)
    likelihood = Own(scale=1.0)
    model = bayesian(network, prior=PRIOR, likelihood=likelihood)
    assert model.spec is None
    with pytest.raises(InvalidArgumentError, match="likelihood must know its worst case"):
        certified(model, network, Linf(radius=0.1), likelihood=likelihood)
    with pytest.raises(InvalidArgumentError, match="head must be"):
        FixedFrontEnd(front_end=Doubled(image_shape=(2, 2)), head=Deeper(num_inputs=4))
    with pytest.raises(InvalidArgumentError, match=r"sampler must be one of.*Points"):
        sampler_spec(type("Other", (Points,), {})())


def test_a_registered_part_with_an_unregistered_one_inside_has_no_description():
    class Brighter(Doubled):
        pass

    network = FixedFrontEnd(front_end=Brighter(image_shape=(2, 2)), head=TwoLayers(num_inputs=4))
    assert is_part(network, Network)
    assert spec_of(network, Network) is None


def test_two_classes_under_one_name_are_refused():
    @dataclasses.dataclass(frozen=True)
    class MLP:
        pass

    with pytest.raises(
        InvalidArgumentError, match=r"'MLP' is already tacit\.models\.networks\.MLP"
    ):
        part(Network)(MLP)
    assert is_part(tacit.models.MLP(num_inputs=1, num_outputs=1), Network)


def define_twice():
    @part(Prior)
    @dataclasses.dataclass(frozen=True)
    class Again:
        pass

    return Again


def test_a_class_that_is_defined_again_takes_its_own_place():
    first, second = define_twice(), define_twice()
    assert is_part(second())
    assert not is_part(first())


@pytest.mark.parametrize("decorate", [lambda kind: kind, dataclasses.dataclass], ids=["plain", "-"])
def test_a_part_is_a_frozen_dataclass(decorate):
    class Loose:
        pass

    with pytest.raises(InvalidArgumentError, match="Loose must be a frozen dataclass"):
        part()(decorate(Loose))


class Colour(enum.Enum):
    RED = "red"


@part(Prior)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Anything:
    value: object = None
    colour: Colour = Colour.RED

    def log_prob(self, params):
        return jnp.zeros(())


@pytest.mark.parametrize("value", [True, 3, 0.5, "text", (1, (2, "x")), FlatPrior()])
def test_plain_values_survive_json(value):
    again = from_spec(json.loads(json.dumps(spec_of(Anything(value=value)))), Prior)
    assert again == Anything(value=value)
    assert type(again.value) is type(value)


@pytest.mark.parametrize("value", [np.zeros(2), {"a": 1}, print, [1]], ids=repr)
def test_a_part_that_holds_what_no_file_can_is_refused_when_the_model_is_made(value):
    network = MLP(num_inputs=4, num_outputs=3)
    with pytest.raises(InvalidArgumentError, match="plain values only"):
        bayesian(network, prior=Anything(value=value), likelihood=Categorical(num_classes=3))


def test_a_part_that_its_description_does_not_give_back_is_refused():
    with pytest.raises(InvalidArgumentError, match="not equal to what its description gives"):
        spec_of(Anything(value=(Colour.RED,)))
