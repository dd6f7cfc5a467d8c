"""Front ends: fixed features of a record, which depend on no data, before a network that is learnt.

Images of the world have strokes, edges and surfaces in common. So have these, and they are drawn by
chance alone: what is learnt from them is learnt from no one.

Scattering features of neighbouring places and orientations are much alike, so a private model
spends most of its budget on a few directions that vary most. What is usual is seen on drawings made
by chance (`draw_shapes`), so nothing is paid for it.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models.base import FrontEnd
from tacit.models.networks import CNN, MLP
from tacit.models.scattering import Scattering
from tacit.models.steps import Encode, Step, run
from tacit.typing import Array, Input, Key, Params

__all__ = [
    "FixedFrontEnd",
    "Whitened",
    "Whitening",
    "draw_shapes",
]

Floats = NDArray[np.float64]


def draw_shapes(num_images: int, shape: tuple[int, int], *, seed: int = 0) -> Floats:
    """Returns drawings of one to six strokes, boxes and ellipses each, with pixels in [0, 1].

    Args:
      num_images: how many.
      shape: height and width.
      seed: the same drawings for the same seed, on every machine.

    Example:
      >>> images = draw_shapes(3, (28, 28))
      >>> images.shape, float(images.min()), bool(images.max() <= 1)
      ((3, 28, 28), 0.0, True)
    """
    rng = np.random.default_rng(seed)
    return np.stack([_drawing(rng, shape) for _ in range(num_images)])


def _drawing(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    image = np.zeros(shape)
    for _ in range(rng.integers(1, 7)):
        kind, brightness = rng.random(), rng.uniform(0.3, 1.0)
        cover = _stroke(rng, shape) if kind < 0.5 else _surface(rng, shape, is_box=kind < 0.75)
        image = image * (1 - cover) + brightness * cover
    return image


def _stroke(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Draws a quadratic Bézier curve with a pen; edges are smooth over one pixel."""
    rows, columns = np.indices(shape)
    ends = rng.uniform(0.1, 0.9, (3, 2)) * shape
    width = rng.uniform(0.7, 2.2)
    time = np.linspace(0, 1, 25)[:, None]
    points = (1 - time) ** 2 * ends[0] + 2 * time * (1 - time) * ends[1] + time**2 * ends[2]
    squares = (rows[..., None] - points[:, 0]) ** 2 + (columns[..., None] - points[:, 1]) ** 2
    return np.clip(width + 0.5 - np.sqrt(squares.min(axis=-1)), 0, 1)


def _surface(rng: np.random.Generator, shape: tuple[int, int], *, is_box: bool) -> Floats:
    """Draws a box or an ellipse, turned by any angle."""
    rows, columns = np.indices(shape)
    centre = rng.uniform(0.2, 0.8, 2) * shape
    half = rng.uniform(0.07, 0.4, 2) * min(shape)
    angle = rng.uniform(0, np.pi)
    down, right = rows - centre[0], columns - centre[1]
    along = np.abs(down * np.cos(angle) + right * np.sin(angle)) / half[0]
    across = np.abs(right * np.cos(angle) - down * np.sin(angle)) / half[1]
    distance = np.maximum(along, across) if is_box else np.hypot(along, across)
    return np.clip((1 - distance) * half.min() + 0.5, 0, 1)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedFrontEnd:
    """A network that sees features of an image in place of its pixels.

    The parameters are those of the head: the front end has none. Where many steps are trained, take
    the features once (`extract_features`), train the head, and put the front end back
    (`with_front_end`).

    Attributes:
      front_end: takes the features.
      head: the network on them: an `MLP` with ``front_end.num_features`` inputs, or a `CNN` with
        ``front_end.output_shape``.

    Example:
      >>> import jax
      >>> from tacit.models import Scattering
      >>> front_end = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=None)
      >>> head = MLP(num_inputs=front_end.num_features, num_outputs=10)
      >>> network = FixedFrontEnd(front_end=front_end, head=head)
      >>> params = network.init(jax.random.key(0))
      >>> network.apply(params, jax.numpy.ones((8, 8)), jax.random.key(1)).shape
      (10,)
    """

    front_end: FrontEnd
    head: MLP | CNN

    def __post_init__(self) -> None:
        if not isinstance(self.front_end, FrontEnd):
            raise InvalidArgumentError(
                f"front_end must be a front end such as Scattering(); got {self.front_end!r}."
            )
        # Exact types: what the head does must be what its description says.
        if type(self.head) not in (MLP, CNN):
            raise InvalidArgumentError(f"head must be an MLP or a CNN; got {self.head!r}.")
        given, needed = (
            (f"num_inputs={self.head.num_inputs}", f"num_inputs={self.front_end.num_features}")
            if isinstance(self.head, MLP)
            else (
                f"input_shape={self.head.input_shape}",
                f"input_shape={self.front_end.output_shape}",
            )
        )
        if given != needed:
            raise InvalidArgumentError(
                f"the head must have {needed}, the features of {self.front_end}; got {given}."
            )

    @property
    def num_outputs(self) -> int:
        """How many numbers come out."""
        return self.head.num_outputs

    def init(self, key: Key) -> Params:
        """Draws the parameters of the head."""
        return self.head.init(key)

    def apply(self, params: Params, x: Input, key: Key) -> Array:
        """Maps one image to ``(num_outputs,)``; the key draws what the head drops."""
        return run(self.steps, params, x, key)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What `apply` does, in order."""
        return (Encode(self.front_end), *self.head.steps)
