"""Whitened features: components of drawings, the same everywhere, bounded and described."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.certify.intervals import interval_bounds
from tacit.errors import InvalidArgumentError
from tacit.models import CNN, MLP, FixedFrontEnd, Scattering, Whitened, extract_features
from tacit.models.base import Network, from_spec, spec_of
from tacit.models.front_end import draw_shapes
from tacit.robust.balls import Box

BASE = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=3)
FRONT_END = Whitened(base=BASE, num_components=6, num_drawings=80, power=0.5, ridge=1e-2)
GOLDEN = (254.572321747199, 0.23840341309106342, 0.5253085737531595, 0.5253085737531595)
NETWORK = FixedFrontEnd(front_end=FRONT_END, head=MLP(num_inputs=6, hidden=(5,), num_outputs=3))


@pytest.fixture(scope="module")
def drawings():
    return draw_shapes(80, (8, 8))


def test_drawings_are_the_same_for_a_seed_and_differ_for_another(drawings):
    np.testing.assert_array_equal(drawings[:3], draw_shapes(3, (8, 8)))
    assert not np.array_equal(drawings[:3], draw_shapes(3, (8, 8), seed=1))
    assert drawings.min() >= 0
    assert drawings.max() <= 1
    assert drawings.std(axis=(1, 2)).min() > 0


def test_drawings_are_what_they_were():
    # They are part of every saved posterior on whitened features: they must never change.
    image = draw_shapes(1, (28, 28))[0]
    np.testing.assert_allclose(
        [image.sum(), image.std(), image[14, 14], image[20, 9]], GOLDEN, rtol=1e-12
    )


def test_components_are_those_of_a_singular_value_decomposition(drawings):
    features = np.asarray(extract_features(BASE, jnp.asarray(drawings, jnp.float32)))
    features = features.reshape(80, -1).astype(np.float64)
    centred = features - features.mean(axis=0)
    _, singular, rows = np.linalg.svd(centred, full_matrices=False)
    variances = singular[:6] ** 2 / 79
    gains = (variances + 1e-2 * variances[0]) ** -0.25
    gains /= np.sqrt(np.sum(variances * gains**2))
    found = np.asarray(extract_features(FRONT_END, jnp.asarray(drawings, jnp.float32)))
    np.testing.assert_allclose(np.abs(found), np.abs(centred @ rows[:6].T * gains), atol=2e-4)


def test_features_of_drawings_have_norm_one_and_no_correlation(drawings):
    found = np.asarray(extract_features(FRONT_END, jnp.asarray(drawings, jnp.float32)))
    covariance = np.cov(found, rowvar=False)
    np.testing.assert_allclose(np.trace(covariance), 1.0, rtol=1e-4)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-5)
    np.testing.assert_allclose(found.mean(axis=0), 0.0, atol=1e-5)


def test_the_largest_entry_of_each_component_is_positive():
    matrix = FRONT_END.map.matrix
    assert np.all(matrix[np.argmax(np.abs(matrix), axis=0), np.arange(6)] > 0)


def test_the_map_can_be_made_while_a_program_is_traced(drawings):
    fresh = Whitened(base=BASE, num_components=3, num_drawings=30)
    image = jnp.asarray(drawings[0], jnp.float32)
    traced = jax.jit(fresh)(image)
    assert traced.dtype == jnp.float32
    np.testing.assert_allclose(traced, fresh(image), atol=1e-5)


@pytest.mark.parametrize("radius", [0.0, 1e-3, 0.05])
def test_no_image_of_a_box_leaves_the_bounds(drawings, radius):
    image = jnp.asarray(drawings[1], jnp.float32)
    params = NETWORK.init(jax.random.key(0))
    key = jax.random.key(1)
    bounds = interval_bounds(NETWORK, params, Box(image - radius, image + radius), key)
    shifts = jax.random.uniform(jax.random.key(2), (200, 8, 8), minval=-radius, maxval=radius)
    corners = radius * jnp.sign(shifts)
    points = image + jnp.concatenate([shifts, corners])
    outputs = jax.jit(jax.vmap(lambda x: NETWORK.apply(params, x, key)))(points)
    assert bool(jnp.all(outputs >= bounds.lower))
    assert bool(jnp.all(outputs <= bounds.upper))


def test_a_description_rebuilds_the_network(drawings):
    rebuilt = from_spec(spec_of(NETWORK), Network)
    assert rebuilt == NETWORK
    params = NETWORK.init(jax.random.key(0))
    image, key = jnp.asarray(drawings[0], jnp.float32), jax.random.key(1)
    np.testing.assert_array_equal(
        rebuilt.apply(params, image, key), NETWORK.apply(params, image, key)
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_components": 50, "num_drawings": 50}, "num_components must be at most 36"),
        ({"num_components": 20, "num_drawings": 20}, "num_components must be at most 19"),
        ({"power": 1.5}, "power"),
        ({"ridge": 0.0}, "ridge"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Whitened(**{"base": BASE, "num_components": 6, "num_drawings": 80} | settings)


def test_components_have_no_places_for_a_convolution():
    head = CNN(input_shape=(2, 2, 9), stages=(), num_outputs=3)
    with pytest.raises(InvalidArgumentError, match="head must have"):
        FixedFrontEnd(front_end=FRONT_END, head=head)
