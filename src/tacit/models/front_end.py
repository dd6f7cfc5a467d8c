"""Front ends: fixed features of a record, which depend on no data, before a network that is learnt.

Scattering features of neighbouring places and orientations are much alike, so a private model
spends most of its budget on the few directions that vary most. `Whitened` makes them more equal, by
what is common in random synthetic images of strokes and surfaces (`draw_shapes`). These depend on
no data, so it has no privacy cost.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax import lax
from numpy.typing import NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models.base import (
    FrontEnd,
    Model,
    Network,
    Prediction,
    from_spec,
    is_part,
    part,
    spec_of,
)
from tacit.models.scattering import Scattering
from tacit.models.steps import Encode, Image, Step, Stepwise, Vector, run
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = [
    "FixedFrontEnd",
    "Whitened",
    "Whitening",
    "draw_shapes",
    "extract_features",
    "with_front_end",
]

_Floats = NDArray[np.float64]


def draw_shapes(num_images: int, shape: tuple[int, int], *, seed: int = 0) -> _Floats:
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


def _drawing(rng: np.random.Generator, shape: tuple[int, int]) -> _Floats:
    image = np.zeros(shape)
    for _ in range(rng.integers(1, 7)):
        kind, brightness = rng.random(), rng.uniform(0.3, 1.0)
        cover = _stroke(rng, shape) if kind < 0.5 else _surface(rng, shape, is_box=kind < 0.75)
        image = image * (1 - cover) + brightness * cover
    return image


def _stroke(rng: np.random.Generator, shape: tuple[int, int]) -> _Floats:
    """Draws a quadratic Bézier curve with a pen; edges are smooth over one pixel."""
    rows, columns = np.indices(shape)
    ends = rng.uniform(0.1, 0.9, (3, 2)) * shape
    width = rng.uniform(0.7, 2.2)
    time = np.linspace(0, 1, 25)[:, None]
    points = (1 - time) ** 2 * ends[0] + 2 * time * (1 - time) * ends[1] + time**2 * ends[2]
    squares = (rows[..., None] - points[:, 0]) ** 2 + (columns[..., None] - points[:, 1]) ** 2
    return np.clip(width + 0.5 - np.sqrt(squares.min(axis=-1)), 0, 1)


def _surface(rng: np.random.Generator, shape: tuple[int, int], *, is_box: bool) -> _Floats:
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

    mean: _Floats
    matrix: _Floats

    def __call__(self, x: Array) -> Array:
        """Returns the map of a vector, in its precision."""
        return (x - jnp.asarray(self.mean, x.dtype)) @ jnp.asarray(self.matrix, x.dtype)


@part(FrontEnd)
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


@part(Network)
@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedFrontEnd:
    """A network that sees features of an image in place of its pixels.

    The parameters are those of the head: the front end has none. Where many steps are trained, take
    the features once (`extract_features`), train the head, and put the front end back
    (`with_front_end`).

    Attributes:
      front_end: takes the features.
      head: the network on them: an `MLP` with ``front_end.num_features`` inputs, a `CNN` with
        ``front_end.output_shape``, or another network that has steps.

    Example:
      >>> from tacit.models import MLP
      >>> front_end = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=None)
      >>> head = MLP(num_inputs=front_end.num_features, num_outputs=10)
      >>> network = FixedFrontEnd(front_end=front_end, head=head)
      >>> params = network.init(jax.random.key(0))
      >>> network.apply(params, jnp.ones((8, 8)), jax.random.key(1)).shape
      (10,)
    """

    front_end: FrontEnd
    head: Stepwise

    def __post_init__(self) -> None:
        if not isinstance(self.front_end, FrontEnd):
            raise InvalidArgumentError(
                f"front_end must be a front end such as Scattering(); got {self.front_end!r}."
            )
        # Of a registered class, and no subclass: what is run here are its steps, not its `apply`.
        is_known = isinstance(self.head, Stepwise) and is_part(self.head, Network)
        match self.head.steps[0] if is_known else None:
            case Vector(size=size):
                given, needed = f"num_inputs={size}", f"num_inputs={self.front_end.num_features}"
            case Image(shape=shape):
                given, needed = f"input_shape={shape}", f"input_shape={self.front_end.output_shape}"
            case _:
                raise InvalidArgumentError(
                    "head must be an MLP or a CNN, or another registered network whose steps begin"
                    f" with a vector or an image; got {self.head!r}."
                )
        if given != needed:
            raise InvalidArgumentError(
                f"the head must have {needed}, the features of {self.front_end}; got {given}."
            )

    @property
    def num_outputs(self) -> int | None:
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


def extract_features(front_end: FrontEnd, x: Input, *, batch_size: int = 64) -> Array:
    """Returns the features of many images, to train a head on: ``records._replace(x=...)``.

    Guarantee:
      Each row of features depends on its own row only, so a table of features has the same units
      of privacy as the table of images. It is as private as that one: it is for training, and not
      for publication.

    Args:
      front_end: takes the features.
      x: images ``(num_records, height, width)``, with a channel axis or without; where a record is
        a person with several rows, ``(num_records, num_rows, height, width)``.
      batch_size: how many images are looked at together; it bounds the memory beside the result,
        which is 4 bytes for each of ``front_end.num_features`` numbers an image.

    Example:
      >>> from tacit.models import Scattering
      >>> front_end = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=None)
      >>> extract_features(front_end, jnp.ones((5, 8, 8))).shape
      (5, 2, 2, 9)
    """
    _check.positive_integer(batch_size=batch_size)
    x, image_shape = jnp.asarray(x), front_end.image_shape
    leading = x.shape[:-1] if x.shape[-3:] == (*image_shape, 1) else x.shape
    if leading[-2:] != image_shape or len(leading) < 3:
        raise InvalidArgumentError(
            f"x must be a table of images, (num_records, {image_shape[0]}, {image_shape[1]}); got "
            f"shape {x.shape}. One image by itself: front_end(x)."
        )
    images = x.reshape(-1, *image_shape)
    fill = _compiled_features(front_end, min(batch_size, len(images)))
    features = jnp.zeros(
        (len(images), *front_end.output_shape), jnp.promote_types(images.dtype, jnp.float32)
    )
    for start in range(0, len(images), batch_size):
        features = fill(features, images, start)
    return features.reshape(*leading[:-2], *front_end.output_shape)


@functools.lru_cache(maxsize=16)
def _compiled_features(
    front_end: FrontEnd, batch_size: int
) -> Callable[[Array, Array, int], Array]:
    def fill(features: Array, images: Array, start: int) -> Array:
        # Beyond the end, JAX reaches back for a whole batch, here and below alike.
        batch = lax.dynamic_slice_in_dim(images, start, batch_size)
        found = jax.vmap(front_end)(batch)
        return lax.dynamic_update_slice_in_dim(features, found, start, 0)

    return jax.jit(fill, donate_argnums=0)  # in place: there is one table of features


def with_front_end(model: Model, front_end: FrontEnd) -> Model:
    """Returns the model of whole images, for a model of their features.

    The parameters are the same, and so is what they say: put it in the place of the model of a
    posterior that was trained on features, and the posterior, with its statement, is one of the
    network on images: ``dataclasses.replace(posterior, model=with_front_end(...))``.

    Args:
      model: of features ``(height, width, channels)``, as `extract_features` returns.
      front_end: what the features were taken with.

    Example:
      >>> from tacit.models import MLP, Categorical, FlatPrior, Scattering, bayesian
      >>> front_end = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=None)
      >>> head = MLP(num_inputs=front_end.num_features, num_outputs=3)
      >>> model = bayesian(head, prior=FlatPrior(), likelihood=Categorical(num_classes=3))
      >>> whole = with_front_end(model, front_end)
      >>> params = model.init(jax.random.key(0))
      >>> whole.predict(params, jnp.ones((8, 8)), jax.random.key(1)).shape
      (3,)
      >>> whole.spec["network"]["kind"]
      'FixedFrontEnd'
    """

    def log_likelihood(params: Params, record: Record, key: Key) -> Scalar:
        return model.log_likelihood(params, record._replace(x=front_end(record.x)), key)

    def predict(params: Params, x: Input, key: Key) -> Prediction:
        return model.predict(params, front_end(x), key)

    def target(params: Params, x: Input, key: Key) -> Array:
        assert model.simulator is not None
        return model.simulator.target(params, front_end(x), key)

    return model._replace(
        log_likelihood=log_likelihood,
        predict=predict,
        spec=_spec_with_front_end(model.spec, front_end),
        simulator=model.simulator and model.simulator._replace(target=target),
    )


def _spec_with_front_end(
    spec: Mapping[str, Any] | None, front_end: FrontEnd
) -> Mapping[str, Any] | None:
    if spec is None:
        return None
    head = from_spec(spec["network"], Network)
    network = spec_of(FixedFrontEnd(front_end=front_end, head=head), Network)
    return None if network is None else {**spec, "network": network}
