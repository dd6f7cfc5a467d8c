"""A front end changes what a network sees, and nothing of what is private, learnt or certified."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from laws import laws
from models.boxes import KEY, params_of, points_of
from tacit.certify import Intervals, certify_predictive
from tacit.certify.intervals import (
    _average,
    _normalised,
    _wave,
    bound_features,
    interval_bounds,
    interval_bounds_over_weights,
)
from tacit.certify.linear import EuclideanBall, linear_bounds
from tacit.errors import InvalidArgumentError
from tacit.models import (
    CNN,
    MLP,
    Categorical,
    Conv,
    EmbeddingBag,
    FixedFrontEnd,
    GaussianPrior,
    Scattering,
    bayesian,
    extract_features,
    with_front_end,
)
from tacit.models.bayesian import model_from_spec
from tacit.posterior import Posterior, load_posterior, predict
from tacit.robust import FGSM, Linf, attack_posterior
from tacit.robust.balls import Box
from tacit.samplers import Points
from tacit.typing import Record

SHAPE = (8, 8)
FRONT_END = Scattering(image_shape=SHAPE, num_orientations=2, num_groups=3)
PLAIN = dataclasses.replace(FRONT_END, num_groups=None)
HEAD = MLP(num_inputs=FRONT_END.num_features, hidden=(5,), num_outputs=3)
NETWORK = FixedFrontEnd(front_end=FRONT_END, head=HEAD)
PARTS = {"prior": GaussianPrior(std=1.0), "likelihood": Categorical(num_classes=3)}
MODEL = bayesian(NETWORK, **PARTS)
NUM_RECORDS = 12


def images(num_images, seed=0):
    return np.float32(np.random.default_rng(seed).uniform(size=(num_images, *SHAPE)))


def table(seed=0):
    y = np.random.default_rng(seed).integers(0, 3, NUM_RECORDS)
    return tacit.as_records(images(NUM_RECORDS, seed), y)


@pytest.fixture(scope="module")
def features():
    return extract_features(FRONT_END, images(NUM_RECORDS), batch_size=5)


def posterior_of(model, num_draws=4):
    draws = [params_of(HEAD, seed, scale=0.3) for seed in range(num_draws)]
    kept = jax.tree.map(lambda *leaves: jnp.stack(leaves)[None], *draws)
    return Posterior(
        model=model, sampler=Points(), kept={"network": kept}, statement={"epsilon_text": "1.0"}
    )


def test_the_network_is_its_head_on_features(features):
    params = params_of(HEAD, 0)
    whole = jax.jit(jax.vmap(NETWORK.apply, in_axes=(None, 0, None)))(
        params, images(NUM_RECORDS), KEY
    )
    head = jax.vmap(HEAD.apply, in_axes=(None, 0, None))(params, features, KEY)
    # Batches of another size may add in another order.
    np.testing.assert_allclose(whole, head, rtol=1e-4, atol=1e-4)


def test_features_do_not_depend_on_how_records_are_batched(features):
    alone = jax.jit(FRONT_END)(images(NUM_RECORDS)[7])
    np.testing.assert_allclose(features[7], alone, rtol=1e-4, atol=1e-5)


def test_rows_of_a_person_keep_their_places(features):
    rows = images(NUM_RECORDS).reshape(4, 3, *SHAPE, 1)
    grouped = extract_features(FRONT_END, rows, batch_size=5)
    assert grouped.shape == (4, 3, *FRONT_END.output_shape)
    np.testing.assert_array_equal(grouped.reshape(features.shape), features)


@pytest.mark.parametrize("front_end", [FRONT_END, PLAIN], ids=["normalised", "plain"])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_description_rebuilds_the_network(front_end, kind):
    shape = front_end.output_shape
    head = {
        "mlp": HEAD,
        "cnn": CNN(input_shape=shape, stages=(Conv(features=2, kernel=2),), num_outputs=3),
    }[kind]
    model = bayesian(FixedFrontEnd(front_end=front_end, head=head), **PARTS)
    rebuilt = model_from_spec(model.spec)
    assert rebuilt.spec == model.spec
    assert model.spec["network"]["front_end"]["num_groups"] == front_end.num_groups


def test_a_description_may_leave_out_groups_and_nothing_else():
    spec = {**MODEL.spec, "network": {**MODEL.spec["network"], "head": None}}
    with pytest.raises(InvalidArgumentError, match="plain values only"):
        model_from_spec(spec)


@pytest.mark.parametrize(
    ("front_end", "head", "message"),
    [
        (FRONT_END, MLP(num_inputs=64, num_outputs=3), "num_inputs=36.*got num_inputs=64"),
        (
            FRONT_END,
            CNN(input_shape=(2, 2, 1), stages=(), num_outputs=3),
            r"input_shape=\(2, 2, 9\).*got input_shape=\(2, 2, 1\)",
        ),
        (FRONT_END, NETWORK, "head must be an MLP or a CNN"),
        (HEAD, HEAD, "front_end must be a front end"),
    ],
)
def test_parts_that_do_not_fit_are_refused(front_end, head, message):
    with pytest.raises(InvalidArgumentError, match=message):
        FixedFrontEnd(front_end=front_end, head=head)


@pytest.mark.parametrize("shape", [SHAPE, (8, 8, 1), (3, 9, 8)])
def test_a_table_of_other_shape_is_refused(shape):
    with pytest.raises(InvalidArgumentError, match=r"x must be a table of images"):
        extract_features(FRONT_END, np.zeros(shape))


def test_a_posterior_of_the_head_is_one_of_the_network_on_images(features, tmp_path):
    on_features = posterior_of(bayesian(HEAD, **PARTS))
    whole = dataclasses.replace(on_features, model=with_front_end(on_features.model, FRONT_END))
    assert whole.model.spec == MODEL.spec
    assert whole.statement == on_features.statement
    whole.save(tmp_path)
    loaded = load_posterior(tmp_path)
    expected = predict(on_features, features)
    for posterior in (whole, loaded):
        found = predict(posterior, images(NUM_RECORDS))
        np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-5)
    record = Record(images(1)[0], jnp.array(2), jnp.array(1.0))
    params = MODEL.init(KEY)
    one, other = (m.log_likelihood(params, record, KEY) for m in (whole.model, MODEL))
    assert float(one) == pytest.approx(float(other), rel=1e-5)


def test_a_front_end_fits_a_model_of_plain_functions_and_no_other_kind_of_network():
    plain = bayesian(HEAD, **PARTS)._replace(spec=None)
    assert with_front_end(plain, FRONT_END).spec is None
    bag = bayesian(EmbeddingBag(num_tokens=5, num_features=2, num_outputs=3), **PARTS)
    with pytest.raises(InvalidArgumentError, match="head must be an MLP or a CNN"):
        with_front_end(bag, FRONT_END)


def test_no_gradient_of_a_record_is_formed_because_of_a_front_end():
    record = Record(jnp.ones(SHAPE), jnp.array(1), jnp.array(1.0))

    def loss(params, record, key):
        return -MODEL.log_likelihood(params, record, key)

    whole = str(tacit.explain_clipping(loss, MODEL.init(KEY), record))
    head = bayesian(HEAD, **PARTS)
    on_features = record._replace(x=jnp.ones(FRONT_END.output_shape))
    alone = tacit.explain_clipping(
        lambda p, r, k: -head.log_likelihood(p, r, k), head.init(KEY), on_features
    )
    assert whole == str(alone)
    assert "norms multiply at dot_general" in whole


FULL = tacit.FullBatch(num_records=NUM_RECORDS)
RELEASE = tacit.GaussianSum(sampling=FULL, clip_norm=0.8, noise_multiplier=0.0)


def test_the_clipped_sum_is_that_of_the_head_on_features(features):
    head, params = bayesian(HEAD, **PARTS), MODEL.init(KEY)

    def clipped_sum(model, records):
        loss = lambda p, r, k: -model.log_likelihood(p, r, k)  # noqa: E731
        return jax.jit(lambda r: RELEASE.gradient(jax.random.key(0), loss, params, r))(records)

    sums = clipped_sum(MODEL, table()), clipped_sum(head, table()._replace(x=features))
    for one, other in zip(*map(jax.tree.leaves, sums), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bad", [jnp.nan, 1e25, -30.0])
def test_one_bad_image_moves_the_sum_by_at_most_the_clip_norm(bad):
    laws.check_sensitivity(RELEASE, MODEL, table(), bad=bad)


def test_without_the_engine_no_trace_of_an_image_is_left(monkeypatch):
    release = dataclasses.replace(RELEASE, noise_multiplier=1.0)
    method = tacit.SGD(release=release, optimizer=optax.sgd(0.1))
    laws.check_non_interference(method, MODEL, table(), table(1), monkeypatch)


bounds_of = {
    front_end: jax.jit(lambda box, of=front_end: bound_features(of, box))
    for front_end in (FRONT_END, PLAIN)
}
features_of = {front_end: jax.jit(jax.vmap(front_end)) for front_end in (FRONT_END, PLAIN)}


def box_around(x, radius):
    return Box(x - np.float32(radius), x + np.float32(radius))


@pytest.mark.parametrize("front_end", [FRONT_END, PLAIN], ids=["normalised", "plain"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
    radius=st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 1.0]),
)
def test_no_image_of_a_box_has_features_outside_the_bounds(front_end, seed, scale, radius):
    box = box_around(np.float32(scale * (images(1, seed)[0] - 0.3)), radius)
    lower, upper = bounds_of[front_end](box)
    found = features_of[front_end](points_of(box, 32, seed))
    assert (lower <= found).all()
    assert (found <= upper).all()


def test_bounds_of_a_single_image_allow_for_the_rounding_of_wavelets():
    filters = FRONT_END.bank.waves[1][0]
    x = np.zeros(filters.shape[1:], np.float32)
    x[0, 3] = 1.0  # far from it there is little more than what is rounded
    exact = np.abs(np.fft.ifft2(np.fft.fft2(np.float64(x)) * filters))[:, ::2, ::2]
    lower, upper = jax.jit(lambda x: _wave(Box(x, x), filters, 2))(x)
    assert (lower <= exact).all()
    assert (exact <= upper).all()


def test_bounds_of_averages_are_reached_whatever_the_signs_of_weights():
    generator = np.random.default_rng(0)
    rows, columns = generator.normal(size=(3, 8)), generator.normal(size=(2, 6))
    centre = np.float32(generator.normal(size=(8, 6)))
    bounds = _average(box_around(centre, 0.5), rows, columns)
    weights = np.einsum("ih,jw->ijhw", rows, columns)
    middle, reach = np.sum(weights * centre, (2, 3)), 0.5 * np.sum(np.abs(weights), (2, 3))
    # The allowance for rounding is 4 (8 + 6 + 8) 2^-24 = 5e-6 of magnitudes that add up to 100.
    np.testing.assert_allclose(bounds.lower, middle - reach, atol=1e-3)
    np.testing.assert_allclose(bounds.upper, middle + reach, atol=1e-3)


def test_bounds_of_features_widen_with_the_box_and_little_with_rounding():
    x = images(1)[0]
    widths = [
        float(jnp.mean(jnp.subtract(*reversed(bounds_of[PLAIN](box_around(x, radius))))))
        for radius in (0.0, 0.01, 0.1)
    ]
    assert widths[0] < 0.05 * widths[1]
    assert 5 * widths[1] < widths[2] < 20 * widths[1]


def test_bounds_of_one_wavelet_are_at_most_five_times_what_an_image_reaches():
    x, radius = images(1)[0], 1e-2
    channel = lambda image: PLAIN(image)[0, 0, 2]  # noqa: E731
    value, slope = jax.jit(jax.value_and_grad(channel))(x)
    upper = bounds_of[PLAIN](box_around(x, radius)).upper[0, 0, 2]
    reached = jax.jit(channel)(x + radius * jnp.sign(slope))
    # Each pixel's modulus is bounded by itself, where one image must serve all of them.
    assert reached - value > 0.2 * (upper - value)


normalised = jax.jit(lambda lower, upper: _normalised(Box(lower, upper), 2))


def normalise(points):
    groups = np.float64(points).reshape(len(points), 2, 3, 2, 2)
    centred = groups - groups.mean((1, 2, 4), keepdims=True)
    variance = (centred**2).mean((1, 2, 4), keepdims=True)
    return (centred / np.sqrt(variance + 1e-5)).reshape(points.shape)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.0, 1e-3, 0.3]),
    radius=st.sampled_from([0.0, 1e-5, 1e-3, 0.1, 2.0]),
    offset=st.sampled_from([0.0, 5.0]),
)
def test_no_point_of_a_box_is_normalised_to_outside_the_bounds(seed, spread, radius, offset):
    generator = np.random.default_rng(seed)
    centre = np.float32(offset + spread * generator.normal(size=(2, 3, 4)))
    radii = np.float32(radius * generator.uniform(size=centre.shape))
    box = Box(centre - radii, centre + radii)
    found = normalise(points_of(box, 64, seed))
    bounds = normalised(*box)
    # The reference is exact, the bounds are of what is rounded: both are inside.
    assert (bounds.lower <= found).all()
    assert (found <= bounds.upper).all()


@pytest.mark.parametrize("size", [16, 18, 36])
def test_fourier_transforms_round_less_than_bounds_presume(size):
    x = np.float32(np.random.default_rng(size).normal(size=(100, size, size)))
    exact = np.fft.fft2(np.float64(x))
    errors = np.linalg.norm(np.asarray(jnp.fft.fft2(x)) - exact, axis=(1, 2))
    relative = errors / np.linalg.norm(exact, axis=(1, 2))
    assert relative.max() < 0.25 * 8 * 2**-24 * np.log2(size**2)


def test_bounds_of_the_network_contain_its_outputs():
    box = box_around(images(1)[0], 0.02)
    params = params_of(HEAD, 2, scale=0.3)
    outputs = jax.jit(jax.vmap(NETWORK.apply, in_axes=(None, 0, None)))(
        params, points_of(box, 64, 0), KEY
    )
    ball = EuclideanBall(jnp.asarray(images(1)[0]), 0.02)
    rows = jnp.array([[1.0, -1.0, 0.0]])

    @jax.jit
    def bounds(params, box):
        return (
            interval_bounds(NETWORK, params, box, KEY),
            interval_bounds_over_weights(NETWORK, params, params, box, KEY),
            linear_bounds(NETWORK, params, box, KEY, ball=ball),
            linear_bounds(NETWORK, params, box, KEY, specification=rows),
        )

    intervals, over_weights, linear, difference = bounds(params, box)
    for lower, upper in (intervals, over_weights, linear):
        assert (lower <= outputs).all()
        assert (outputs <= upper).all()
    assert (linear.upper - linear.lower <= intervals.upper - intervals.lower).all()
    apart = outputs @ rows[0]
    assert difference.lower[0] <= apart.min()
    assert apart.max() <= difference.upper[0]


def test_no_attack_changes_a_certified_prediction():
    posterior, x = posterior_of(MODEL), images(NUM_RECORDS)
    y = jnp.argmax(predict(posterior, x).probabilities, axis=-1)
    ball = Linf(radius=2e-4)
    certificate = certify_predictive(posterior, x, y, ball, bounds=Intervals())
    assert jnp.sum(certificate.is_certified) > 0
    attacked = attack_posterior(posterior, FGSM(ball=ball), x, y)
    found = jnp.argmax(predict(posterior, attacked).probabilities, axis=-1)
    assert (found == y)[certificate.is_certified].all()
