"""Scattering: what wavelets say of an image, as data-independent features.

A Morlet wavelet is a plane wave under a Gaussian, less as much of the Gaussian as makes its mean
zero: it answers to edges of one direction and width, and not to brightness.

Twice, an image is convolved with wavelets and the moduli are taken; averages of the image, of the
first moduli and of the second are the features. They change little when a stroke moves or bends, so
that a linear model on them does what takes a deep network on pixels, with far fewer parameters for
the noise to disturb.
"""

import dataclasses
import functools
import math
import operator
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models.base import FrontEnd, part
from tacit.typing import Array, Input

__all__ = [
    "EPSILON",
    "FilterBank",
    "Scattering",
    "average",
    "convolve",
    "filter_bank",
    "low_pass",
    "morlet",
    "scatter",
]

# Of the finest wavelet: the width of its Gaussian in pixels, and its frequency in radians a pixel.
_WIDTH, _FREQUENCY = 0.8, 0.75 * np.pi
# Grids repeat: a filter is the sum of its copies, of which farther ones underflow.
_COPIES = range(-2, 3)


class FilterBank(NamedTuple):
    """Filters for one size of image.

    Attributes:
      waves: ``waves[scale][level]`` has the Fourier transforms, which are real, of the wavelets of
        all orientations on the grid of ``1 / 2**level`` of the pixels.
      averages: ``averages[level]`` has two matrices, for rows and for columns: they average over
        the largest scale, keep every ``2**num_scales``-th pixel and drop the padding.
    """

    waves: tuple[tuple[NDArray[np.float64], ...], ...]
    averages: tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]


@functools.lru_cache(maxsize=16)
def filter_bank(padded: tuple[int, int], num_scales: int, num_orientations: int) -> FilterBank:
    """Returns the filters for images that padding has brought to the size ``padded``.

    Example:
      >>> bank = filter_bank((36, 36), 2, 8)
      >>> bank.waves[1][0].shape, bank.averages[0][0].shape
      ((8, 36, 36), (7, 36))
    """

    def waves(scale: int) -> tuple[NDArray[np.float64], ...]:
        finest = np.stack(
            [
                np.fft.fft2(morlet(padded, scale, which, num_orientations)).real
                for which in range(num_orientations)
            ]
        )
        # The image may have been thinned out, to any grid that is finer than the wavelet.
        levels = range(max(scale, 1))
        return tuple(_thinned(_thinned(finest, level, 1), level, 2) for level in levels)

    return FilterBank(
        waves=tuple(waves(scale) for scale in range(num_scales)),
        averages=tuple(
            (_average(padded[0], num_scales, level), _average(padded[1], num_scales, level))
            for level in range(num_scales)
        ),
    )


def morlet(
    shape: tuple[int, int], scale: int, which: int, num_orientations: int
) -> NDArray[np.complex128]:
    """Returns one wavelet, around the first pixel of a grid that repeats.

    Args:
      shape: the size of the grid.
      scale: the wavelet is ``2**scale`` times as wide as the finest.
      which: the number of the orientation.
      num_orientations: in a half turn; the more there are, the longer is the wavelet.

    Reference:
      Bruna and Mallat, Invariant scattering convolution networks, IEEE TPAMI 2013, section 2.1;
      the constants and the order of orientations are those of Andreux et al., Kymatio, JMLR 2020.
    """
    angle = (num_orientations // 2 - 1 - which) * np.pi / num_orientations
    slant = 4 / num_orientations
    width = _WIDTH * 2**scale
    wave = np.zeros(shape, np.complex128)
    envelope = np.zeros(shape)
    for down in _COPIES:
        for right in _COPIES:
            row, column = np.mgrid[: shape[0], : shape[1]]
            row, column = row + down * shape[0], column + right * shape[1]
            along = np.cos(angle) * row + np.sin(angle) * column
            across = np.cos(angle) * column - np.sin(angle) * row
            bell = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
            envelope += bell
            wave += bell * np.exp(1j * _FREQUENCY / 2**scale * along)
    centred = wave - wave.sum() / envelope.sum() * envelope
    return np.asarray(centred * slant / (2 * np.pi * width**2))


def low_pass(length: int, num_scales: int) -> NDArray[np.float64]:
    """Returns the Gaussian of the largest scale along one axis, around the first pixel."""
    width = _WIDTH * 2 ** (num_scales - 1)
    bells = [
        np.exp(-((np.arange(length) + copy * length) ** 2) / (2 * width**2)) for copy in _COPIES
    ]
    return np.asarray(sum(bells) / np.sqrt(2 * np.pi * width**2))


def _average(length: int, num_scales: int, level: int) -> NDArray[np.float64]:
    """Returns the matrix that averages along an axis, thinned out ``level`` times before."""
    kernel = np.fft.ifft(_thinned(np.fft.fft(low_pass(length, num_scales)).real, level, 0)).real
    offsets = np.subtract.outer(np.arange(len(kernel)), np.arange(len(kernel)))
    kept = kernel[offsets % len(kernel)][:: 2 ** (num_scales - level)]
    # The padding is as wide as the distance of two outputs: one of them at either end.
    return np.asarray(kept[1:-1])


def _thinned(spectrum: NDArray[np.float64], level: int, axis: int) -> NDArray[np.float64]:
    """Returns the spectrum on a grid of ``1 / 2**level`` of the pixels: its low frequencies."""
    length = spectrum.shape[axis]
    half = length >> (level + 1)
    kept = np.r_[0:half, length - half : length] if level else np.arange(length)
    return np.take(spectrum, kept, axis=axis)


# Beside the variance of a group, so that an image of one colour is not divided by zero.
EPSILON = 1e-5

_Value = TypeVar("_Value")


class _Wave(Protocol[_Value]):
    def __call__(self, x: _Value, filters: NDArray[np.float64], stride: int) -> _Value: ...


class _Average(Protocol[_Value]):
    def __call__(
        self, x: _Value, rows: NDArray[np.float64], columns: NDArray[np.float64]
    ) -> _Value: ...


@part(FrontEnd)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Scattering:
    """The scattering transform of second order of a grey image, normalised in itself.

    Channels are the average of the image, then of the moduli after one wavelet, then after two of
    growing scale. Groups of neighbouring channels are centred and scaled by the mean and the
    standard deviation over the group and all positions of the SAME image.

    Guarantee:
      The filters depend on no data, and the features of a record on that record alone. A record
      and its features are the same unit of privacy, and training on features costs what training on
      records does. Features are as private as the records they are made from.

    Attributes:
      image_shape: height and width; multiples of ``2**num_scales``.
      num_scales: of wavelets, each twice as wide as the one before.
      num_orientations: of wavelets, in a half turn.
      num_groups: how many groups of channels are normalised; None leaves features as they are.

    Example:
      >>> front_end = Scattering()
      >>> front_end.output_shape, front_end.num_features
      ((7, 7, 81), 3969)
      >>> front_end(jnp.zeros((28, 28))).shape
      (7, 7, 81)

    Reference:
      Bruna and Mallat, Invariant scattering convolution networks, IEEE TPAMI 2013; in front of
      private learning: Tramèr and Boneh, Differentially private learning needs better features (or
      much more data), ICLR 2021, section 2.
    """

    image_shape: tuple[int, int] = (28, 28)
    num_scales: int = 2
    num_orientations: int = 8
    num_groups: int | None = 27

    def __post_init__(self) -> None:
        _check.positive_integer(num_scales=self.num_scales, num_orientations=self.num_orientations)
        if not isinstance(self.image_shape, tuple) or len(self.image_shape) != 2:
            raise InvalidArgumentError(
                f"image_shape must be (height, width); got {self.image_shape!r}."
            )
        for i, length in enumerate(self.image_shape):
            _check.positive_integer(**{f"image_shape[{i}]": length})
            if length % self._stride or length == self._stride:
                raise InvalidArgumentError(
                    f"image_shape[{i}] must be a multiple of 2**num_scales={self._stride}, and not "
                    f"that itself; got {length}. Pad the images, or use fewer scales."
                )
        if self.num_groups is not None:
            _check.positive_integer(num_groups=self.num_groups)
            if self.num_channels % self.num_groups:
                raise InvalidArgumentError(
                    f"num_groups must divide the {self.num_channels} channels; got "
                    f"{self.num_groups}. Use a divisor, or None for no normalisation."
                )

    @property
    def _stride(self) -> int:
        return 2**self.num_scales

    @property
    def num_channels(self) -> int:
        """How many features each position has."""
        first = self.num_scales * self.num_orientations
        pairs = self.num_scales * (self.num_scales - 1) // 2
        return 1 + first + pairs * self.num_orientations**2

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the features."""
        height, width = (length // self._stride for length in self.image_shape)
        return height, width, self.num_channels

    @property
    def num_features(self) -> int:
        """How many numbers the features are."""
        return math.prod(self.output_shape)

    @property
    def bank(self) -> FilterBank:
        """The filters, made once."""
        height, width = (length + 2 * self._stride for length in self.image_shape)
        return filter_bank((height, width), self.num_scales, self.num_orientations)

    def __call__(self, x: Input) -> Array:
        """Returns the features of ONE image; map over records with ``jax.vmap``."""
        features = scatter(self.padded(x), self.bank, wave=_modulus, average=average)
        return features if self.num_groups is None else _normalise(features, self.num_groups)

    def padded(self, x: Input) -> Array:
        """Returns the image in floating point, reflected at its borders; refuses another shape."""
        x = jnp.asarray(x)
        if x.shape not in (self.image_shape, (*self.image_shape, 1)):
            raise InvalidArgumentError(
                f"an image must have image_shape={self.image_shape}; got {x.shape}. A front end "
                "takes one image without a batch axis: map over records with jax.vmap."
            )
        x = x.reshape(self.image_shape).astype(jnp.promote_types(x.dtype, jnp.float32))
        return jnp.pad(x, self._stride, mode="reflect")


def scatter(
    x: _Value, bank: FilterBank, *, wave: _Wave[_Value], average: _Average[_Value]
) -> _Value:
    """Returns the features of a padded image, or of whatever the two operations work on.

    Args:
      x: the padded image.
      bank: the filters.
      wave: ``wave(x, filters, stride)``, the moduli of convolutions, on an axis before the last
        two, at every ``stride``-th pixel.
      average: ``average(x, rows, columns)``.
    """
    num_scales = len(bank.waves)
    zeroth = average(x, *bank.averages[0])
    firsts, seconds = [], []
    for j in range(num_scales):
        moduli = wave(x, bank.waves[j][0], 2**j)
        firsts.append(average(moduli, *bank.averages[j]))
        again = [
            average(wave(moduli, bank.waves[k][j], 2 ** (k - j)), *bank.averages[k])
            for k in range(j + 1, num_scales)
        ]
        if again:
            seconds.append(jax.tree.map(lambda *scales: jnp.concatenate(scales, axis=1), *again))
    return jax.tree.map(_joined, zeroth, *firsts, *seconds)


def convolve(x: Array, filters: NDArray[np.inexact[Any]], stride: int) -> Array:
    """Returns circular convolutions at every ``stride``-th pixel, on an axis before the last two.

    Args:
      x: real images ``(..., height, width)``.
      filters: Fourier transforms ``(num_filters, height, width)``.
      stride: a divisor of height and width.
    """
    spectrum = jnp.fft.fft2(x)[..., None, :, :]
    gains = jnp.asarray(
        filters / stride**2, spectrum.dtype if np.iscomplexobj(filters) else x.dtype
    )
    height, width = (length // stride for length in filters.shape[-2:])
    # To leave out pixels is to add up the frequencies that can no longer be told apart.
    products = [
        spectrum[..., i : i + height, j : j + width] * gains[..., i : i + height, j : j + width]
        for i in range(0, stride * height, height)
        for j in range(0, stride * width, width)
    ]
    return jnp.fft.ifft2(functools.reduce(operator.add, products))


def average(x: Array, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Array:
    """Returns the averages of images that a pair of a bank's matrices takes."""
    # As one contraction: JAX then multiplies all images at once, not each by itself.
    return jnp.einsum(
        "ih,...hw,jw->...ij", jnp.asarray(rows, x.dtype), x, jnp.asarray(columns, x.dtype)
    )


def _modulus(x: Array, filters: NDArray[np.float64], stride: int) -> Array:
    return jnp.abs(convolve(x, filters, stride))


def _joined(*parts: Array) -> Array:
    height, width = parts[0].shape[-2:]
    channels = jnp.concatenate([part.reshape(-1, height, width) for part in parts])
    return jnp.moveaxis(channels, 0, -1)


def _normalise(x: Array, num_groups: int) -> Array:
    groups = x.reshape(*x.shape[:2], num_groups, -1)
    centred = groups - jnp.mean(groups, axis=(0, 1, 3), keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=(0, 1, 3), keepdims=True)
    return (centred / jnp.sqrt(variance + EPSILON)).reshape(x.shape)
