"""The scattering transform is the published one, of one record at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import InvalidArgumentError
from tacit.models import Scattering

SMALL = Scattering(image_shape=(8, 12), num_orientations=4, num_groups=5)
PLAIN = Scattering(image_shape=(8, 12), num_orientations=4, num_groups=None)
transform = jax.jit(jax.vmap(SMALL))
plain_transform = jax.jit(PLAIN)


def images(num_images, shape=(8, 12), seed=0):
    return np.float32(np.random.default_rng(seed).uniform(size=(num_images, *shape)))


def grating(shape):
    row, column = np.mgrid[: shape[0], : shape[1]]
    return np.sin(0.7 * row + 0.2 * column) * np.exp(-0.01 * (column - 9) ** 2)


def reference_wave(shape, scale, angle, slant):
    """The periodic Morlet wavelet, from its definition, in the order of the pixels."""
    out = np.zeros((2, *shape), complex)
    width, frequency = 0.8 * 2**scale, 0.75 * np.pi / 2**scale
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    metric = turn.T @ np.diag([1.0, slant**2]) @ turn
    for row in range(-2 * shape[0], 3 * shape[0]):
        for column in range(-2 * shape[1], 3 * shape[1]):
            u = np.array([row, column])
            bell = np.exp(-(u @ metric @ u) / (2 * width**2)) * slant / (2 * np.pi * width**2)
            phase = np.exp(1j * frequency * (turn[0] @ u))
            out[:, row % shape[0], column % shape[1]] += [bell * phase, bell]
    wave, bell = out
    return wave - bell * wave.sum() / bell.sum()


def reference(x, num_orientations):
    """Two scales, by double sums over the pixels of the padded image, in double precision."""
    padded = np.pad(np.float64(x), 4, mode="reflect")
    shape = padded.shape
    angles = [
        (num_orientations // 2 - 1 - t) * np.pi / num_orientations for t in range(num_orientations)
    ]
    fine, coarse = (
        [reference_wave(shape, scale, angle, 4 / num_orientations) for angle in angles]
        for scale in (0, 1)
    )

    def convolved(image, kernel):
        return np.array(
            [
                [
                    np.sum(image * np.roll(kernel[::-1, ::-1], (i + 1, j + 1), (0, 1)))
                    for j in range(shape[1])
                ]
                for i in range(shape[0])
            ]
        )

    bell = reference_bell(shape)

    def averaged(image):
        return convolved(image, bell)[4:-4:4, 4:-4:4]

    def averaged_coarse(image):
        """On every second pixel: the bell without the frequencies that these cannot hold."""
        spectrum = np.fft.fft2(bell)
        for axis in (0, 1):
            quarter = shape[axis] // 4
            kept = [*range(quarter), *range(shape[axis] - quarter, shape[axis])]
            spectrum = np.take(spectrum, kept, axis)
        smooth = np.fft.ifft2(np.fft.fft2(image) * spectrum).real
        return smooth[2:-2:2, 2:-2:2]

    first = [np.abs(convolved(padded, wave)) for wave in fine]
    wide = [np.abs(convolved(padded, wave))[::2, ::2] for wave in coarse]
    second = [np.abs(convolved(u, wave))[::2, ::2] for u in first for wave in coarse]
    channels = [averaged(padded), *map(averaged, first)]
    channels += [*map(averaged_coarse, wide), *map(averaged_coarse, second)]
    return np.stack(channels, axis=-1)


def reference_bell(shape):
    """The periodic Gaussian of the larger of two scales."""
    out = np.zeros(shape)
    for row in range(-2 * shape[0], 3 * shape[0]):
        for column in range(-2 * shape[1], 3 * shape[1]):
            bell = np.exp(-(row**2 + column**2) / (2 * 1.6**2)) / (2 * np.pi * 1.6**2)
            out[row % shape[0], column % shape[1]] += bell
    return out


def test_features_are_those_of_the_definition_summed_pixel_by_pixel():
    (x,) = images(1)
    # Single precision, in sums of a few hundred products of numbers below 1.
    np.testing.assert_allclose(plain_transform(x), reference(x, 4), atol=2e-6)


@pytest.mark.parametrize(
    ("front_end", "channels", "total"),
    [
        (
            Scattering(num_groups=None),
            [0.053988454, 0.007604767, 0.016085510, 0.008166590, 0.000705277],
            65.67783980,
        ),
        (
            Scattering(image_shape=(16, 24), num_scales=3, num_orientations=4, num_groups=None),
            [0.024521632, 0.072831525, 0.020076548, 0.157957280, 0.003411178],
            10.29744982,
        ),
    ],
    ids=["2 scales", "3 scales"],
)
def test_features_are_those_of_kymatio(front_end, channels, total):
    # Made by kymatio 0.3.0, whose pi is 3.1415: each convolution differs by 3e-5 of its value.
    features = jax.jit(front_end)(grating(front_end.image_shape))
    assert features.shape == front_end.output_shape
    np.testing.assert_allclose(
        features[1, -1, jnp.array([0, 1, 4, 9, -1])], channels, rtol=2e-4, atol=1e-6
    )
    assert float(jnp.sum(jnp.abs(features))) == pytest.approx(total, rel=1e-4)


def test_groups_of_channels_have_mean_zero_and_variance_one():
    (features,) = transform(images(1))
    groups = np.asarray(features).reshape(-1, 5, 5)
    np.testing.assert_allclose(groups.mean((0, 2)), 0.0, atol=1e-5)
    variance = np.asarray(plain_transform(images(1)[0])).reshape(-1, 5, 5).var((0, 2))
    np.testing.assert_allclose(groups.var((0, 2)), variance / (variance + 1e-5), rtol=1e-3)


def test_an_image_of_one_colour_has_finite_features_and_gradients():
    blank = jnp.zeros((8, 12))
    assert not transform(blank[None]).any()
    gradient = jax.jit(jax.grad(lambda x: SMALL(x)[1, 1, 7]))(blank)
    assert jnp.isfinite(gradient).all()


def test_features_of_a_record_do_not_depend_on_the_others():
    x = images(4)
    others = x.copy()
    others[1:] = np.nan
    np.testing.assert_array_equal(transform(x)[0], transform(others)[0])


def test_whole_numbers_and_a_channel_axis_are_taken():
    x = np.random.default_rng(0).integers(0, 256, (8, 12, 1), np.uint8)
    np.testing.assert_array_equal(SMALL(x), SMALL(np.float32(x[..., 0])))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_shape": (28, 28, 1)}, r"image_shape must be \(height, width\)"),
        ({"image_shape": (28, 30)}, r"image_shape\[1\] must be a multiple of 2\*\*num_scales=4"),
        ({"image_shape": (4, 28)}, r"image_shape\[0\] must be a multiple.*not that itself"),
        ({"num_scales": 0}, "num_scales must be a whole number"),
        ({"num_groups": 4}, "num_groups must divide the 81 channels; got 4"),
        ({"num_groups": 0}, "num_groups must be a whole number"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Scattering(**settings)


def test_an_image_of_another_size_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"image_shape=\(8, 12\); got \(2, 8, 12\)"):
        SMALL(images(2))
