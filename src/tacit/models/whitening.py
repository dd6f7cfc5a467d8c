"""Whitening: features with their usual mean and their usual redundancy taken out, by no one's data.

Scattering features of neighbouring places and orientations are much alike, so a private model
spends most of its budget on a few directions that vary most. What is usual is seen on drawings made
by chance (`draw_shapes`), so nothing is paid for it.
"""

import dataclasses
import functools
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models.scattering import Scattering
from tacit.models.shapes import draw_shapes
from tacit.typing import Array, Input

__all__ = ["FrontEnd", "Whitened", "Whitening"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Whitening:
    """An affine map ``(x - mean) @ matrix``."""

    mean: Floats
    matrix: Floats

    def __call__(self, x: Array) -> Array:
        """Returns the map of a vector, in its precision."""
        return (x - jnp.asarray(self.mean, x.dtype)) @ jnp.asarray(self.matrix, x.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whitened:
    """The principal components of scattering features of drawn shapes, made more equal.

    A component with variance v among drawings is divided by ``(v + ridge * v_max) ** (power / 2)``;
    all are scaled so that the features of a drawing have mean squared norm one. The map is made
    when it is first needed, which takes half a minute for images of 28 x 28, and kept in memory.

    Guarantee:
      Filters and components depend on no data, and the features of a record on that record alone.
      Training on features costs what training on records does; features are as private as the
      records they are made from.

    Attributes:
      base: takes the features.
      num_components: how many are kept; fewer than ``base.num_features`` and ``num_drawings``.
      power: 0 leaves components as they vary, 1 makes all equal.
      ridge: keeps components that hardly vary from being blown up.
      num_drawings: that components are found on.

    Example:
      >>> base = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=None)
      >>> front_end = Whitened(base=base, num_components=5, num_drawings=50)
      >>> front_end(jnp.ones((8, 8))).shape
      (5,)
    """

    base: Scattering = dataclasses.field(default_factory=Scattering)
    num_components: int = 1000
    power: float = 0.5
    ridge: float = 1e-3
    num_drawings: int = 6000

    def __post_init__(self) -> None:
        if not isinstance(self.base, Scattering):
            raise InvalidArgumentError(f"base must be a Scattering; got {self.base!r}.")
        _check.positive_integer(num_components=self.num_components, num_drawings=self.num_drawings)
        _check.fraction(power=self.power, zero=True)
        _check.positive(ridge=self.ridge)
        most = min(self.base.num_features, self.num_drawings - 1)
        if self.num_components > most:
            raise InvalidArgumentError(
                f"num_components must be at most {most}, with {self.base.num_features} features "
                f"of {self.num_drawings} drawings; got {self.num_components}."
            )

    @property
    def image_shape(self) -> tuple[int, int]:
        """Height and width of an image."""
        return self.base.image_shape

    @property
    def output_shape(self) -> tuple[int]:
        """One axis of components."""
        return (self.num_components,)

    @property
    def num_features(self) -> int:
        """How many numbers the features are."""
        return self.num_components

    @property
    def map(self) -> Whitening:
        """The affine map behind the base, made once."""
        return _whitening(self)

    def __call__(self, x: Input) -> Array:
        """Returns the features of ONE image; map over records with ``jax.vmap``."""
        return self.map(jnp.ravel(self.base(x)))


FrontEnd: TypeAlias = Scattering | Whitened
"""What takes features of an image."""


@functools.lru_cache(maxsize=4)
def _whitening(front_end: Whitened) -> Whitening:
    # In double precision: the components of nearly equal variance are then the same everywhere.
    images = draw_shapes(front_end.num_drawings, front_end.image_shape)
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        take = jax.jit(jax.vmap(front_end.base))
        parts = [np.asarray(take(part)) for part in np.array_split(images, 1 + len(images) // 256)]
    features = np.concatenate(parts).reshape(len(images), -1)
    mean = features.mean(axis=0)
    covariance = np.cov(features - mean, rowvar=False)
    last = len(mean) - 1
    variances, vectors = scipy.linalg.eigh(
        covariance, subset_by_index=(last + 1 - front_end.num_components, last)
    )
    variances, vectors = variances[::-1], vectors[:, ::-1]
    # A component has no sign of its own: its largest entry shall be positive.
    largest = np.argmax(np.abs(vectors), axis=0)
    vectors = vectors * np.sign(vectors[largest, np.arange(len(variances))])
    gains = (variances + front_end.ridge * variances[0]) ** (-front_end.power / 2)
    gains = gains / np.sqrt(np.sum(variances * gains**2))
    return Whitening(mean, vectors * gains)
