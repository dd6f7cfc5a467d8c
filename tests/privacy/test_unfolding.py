"""A convolution as patches and a product equals XLA's, and so do its derivatives."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tacit.privacy.clipping.unfolding import is_unfoldable, unfolded

LAYOUTS = {
    1: [("NHC", "HIO", "NHC"), ("NCH", "OIH", "NCH")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "IOHW", "NHCW")],
    3: [("NHWDC", "HWDIO", "NHWDC")],
}
WINDOWS = [  # kernel, stride, padding, dilation of each axis in turn
    (1, 1, (0, 0), 1),
    (3, 1, (1, 1), 1),
    (8, 2, (3, 3), 1),
    (4, 2, (0, 0), 1),
    (5, 3, (2, 0), 1),
    (2, 3, (0, 1), 1),
    (3, 2, (-1, 2), 1),
    (3, 1, (0, 0), 2),
    (2, 2, (1, 0), 3),
]


def convolution(layout, windows, *, features=3, channels=2, images=2):
    kernel, stride, padding, dilation = zip(*windows, strict=True)
    sizes = dict(zip("HWD", (11, 13, 9), strict=True))
    own = dict(zip("HWD", kernel, strict=False))
    lhs = tuple({"N": images, "C": channels}.get(name, sizes.get(name)) for name in layout[0])
    rhs = tuple({"I": channels, "O": features}.get(name, own.get(name)) for name in layout[1])
    settings = {
        "window_strides": stride,
        "padding": padding,
        "rhs_dilation": dilation,
        "dimension_numbers": lax.conv_dimension_numbers(lhs, rhs, layout),
    }
    generator = np.random.default_rng(0)
    x, w = (jnp.asarray(generator.normal(size=shape), jnp.float32) for shape in (lhs, rhs))
    return x, w, settings


CASES = [
    (layout, (first, *itertools.repeat(WINDOWS[i - 1], rank - 1)))
    for rank, layouts in LAYOUTS.items()
    for layout in layouts
    for i, first in enumerate(WINDOWS)
]


@pytest.mark.parametrize(("layout", "windows"), CASES, ids=str)
def test_values_and_derivatives_are_those_of_the_convolution(layout, windows):
    x, w, settings = convolution(layout, windows)
    params = settings | {"precision": lax.Precision.HIGHEST, "preferred_element_type": None}

    def plain(x, w):
        return lax.conv_general_dilated(x, w, **settings, precision=lax.Precision.HIGHEST)

    @jax.jit
    def both(x, w):
        found = jax.vjp(lambda x, w: unfolded(x, w, params), x, w)
        expected = jax.vjp(plain, x, w)
        weight = jnp.cos(jnp.arange(expected[0].size, dtype=jnp.float32))
        weight = weight.reshape(expected[0].shape)
        return [(out, *pull(weight)) for out, pull in (found, expected)]

    for found, expected in zip(*both(x, w), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=1e-5 * float(jnp.abs(expected).max()))


def equation_of(**settings):
    x, w, usual = convolution(("NHWC", "HWIO", "NHWC"), [WINDOWS[1]] * 2, features=4, channels=4)
    w = w[:, :, : 4 // settings.get("feature_group_count", 1)]
    closed = jax.make_jaxpr(lambda x, w: lax.conv_general_dilated(x, w, **usual | settings))(x, w)
    return closed.jaxpr.eqns[-1]


def test_groups_and_dilated_inputs_are_left_alone():
    assert is_unfoldable(equation_of())
    assert not is_unfoldable(equation_of(feature_group_count=2))
    assert not is_unfoldable(equation_of(lhs_dilation=(2, 1)))
    product = jax.make_jaxpr(jnp.dot)(jnp.ones(3), jnp.ones(3)).jaxpr.eqns[-1]
    assert not is_unfoldable(product)
