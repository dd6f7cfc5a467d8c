"""Wavelets: the filters of a scattering transform, which depend on no data.

A Morlet wavelet is a plane wave under a Gaussian, less as much of the Gaussian as makes its mean
zero: it answers to edges of one direction and width, and not to brightness.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["FilterBank", "filter_bank", "low_pass", "morlet"]

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
