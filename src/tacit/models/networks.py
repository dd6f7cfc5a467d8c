"""Networks: multilayer perceptrons, bags of embeddings and convolutional networks."""

import dataclasses
import math
from collections.abc import Iterator
from numbers import Integral
from typing import TypeAlias

import jax
import jax.numpy as jnp

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models import layers
from tacit.models.base import Network, part
from tacit.models.layers import Activation, Extent, check_activation
from tacit.models.steps import (
    Activate,
    Average,
    Convolve,
    DenseMap,
    Drop,
    Image,
    Maximum,
    Step,
    Vector,
    run,
)
from tacit.typing import Array, Input, Key, Params

__all__ = ["CNN", "MLP", "AveragePool", "Conv", "EmbeddingBag", "MaxPool", "Shape", "Stage"]


@part(Network)
@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP:
    """Dense layers with an activation between them.

    An input of any shape is flattened. The parameters are
    ``{"dense_0": {"kernel", "bias"}, ...}``, and the arithmetic is done in their precision.

    Attributes:
      num_inputs: how many numbers one input has.
      hidden: the width of each hidden layer; may be empty.
      num_outputs: how many numbers come out.
      activation: what follows each hidden layer.
      dropout: the probability of dropping a hidden unit, in training and in prediction alike.

    Example:
      >>> network = MLP(num_inputs=4, hidden=(8,), num_outputs=3)
      >>> params = network.init(jax.random.key(0))
      >>> network.apply(params, jax.numpy.ones(4), jax.random.key(1)).shape
      (3,)
    """

    num_inputs: int
    hidden: tuple[int, ...] = ()
    num_outputs: int
    activation: Activation = Activation.RELU
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_dense(self.hidden, self.num_outputs, self.activation, self.dropout)
        _check.positive_integer(num_inputs=self.num_inputs)

    def init(self, key: Key) -> Params:
        """Draws kernels scaled for the activation, with zero biases."""
        sizes = (self.num_inputs, *self.hidden, self.num_outputs)
        followed_by = [self.activation] * len(self.hidden) + [Activation.IDENTITY]
        return {
            f"dense_{i}": layers.init_layer(layer_key, sizes[i : i + 2], before=following)
            for i, (layer_key, following) in enumerate(
                zip(jax.random.split(key, len(followed_by)), followed_by, strict=True)
            )
        }

    def apply(self, params: Params, x: Input, key: Key) -> Array:
        """Maps one input to ``(num_outputs,)``; the key draws the dropped units."""
        return run(self.steps, params, x, key)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What `apply` does, in order."""
        steps: list[Step] = [Vector(self.num_inputs)]
        for i in range(len(self.hidden)):
            steps += [DenseMap(f"dense_{i}"), Activate(self.activation)]
            if self.dropout:
                # Place 0 is before the first layer: networks with this one as their head use it.
                steps.append(Drop(self.dropout, place=i + 1))
        return (*steps, DenseMap(f"dense_{len(self.hidden)}"))


def check_dense(hidden: object, num_outputs: int, activation: object, dropout: float) -> None:
    """Validates the fields that every network with a dense head shares."""
    if not isinstance(hidden, tuple):
        raise InvalidArgumentError(
            f"hidden must be a tuple of widths such as (200, 200); got {hidden!r}."
        )
    for i, width in enumerate(hidden):
        _check.positive_integer(**{f"hidden[{i}]": width})
    _check.positive_integer(num_outputs=num_outputs)
    check_activation(activation)
    _check.fraction(zero=True, one=False, dropout=dropout)


@part(Network)
@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingBag:
    """The mean of the embeddings of an input's tokens, then dense layers.

    An input is a vector of whole numbers from 0 to ``num_tokens - 1``; negative ones are padding
    and do not count. A token beyond the range makes the output NaN. The vocabulary is part of
    the configuration: it must be public, not collected from private records. The parameters are
    ``{"embedding": {"table"}, "dense_0": {"kernel", "bias"}, ...}``.

    Attributes:
      num_tokens: the size of the vocabulary.
      num_features: the length of an embedding.
      hidden: the width of each hidden dense layer; may be empty.
      num_outputs: how many numbers come out.
      activation: what follows each hidden layer.
      dropout: the probability of dropping an entry of the mean embedding or a hidden unit, in
        training and in prediction alike.

    Example:
      >>> network = EmbeddingBag(num_tokens=100, num_features=8, num_outputs=2)
      >>> params = network.init(jax.random.key(0))
      >>> network.apply(params, jnp.array([5, 17, 99, -1]), jax.random.key(1)).shape
      (2,)
    """

    num_tokens: int
    num_features: int
    hidden: tuple[int, ...] = ()
    num_outputs: int
    activation: Activation = Activation.RELU
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_dense(self.hidden, self.num_outputs, self.activation, self.dropout)
        _check.positive_integer(num_tokens=self.num_tokens, num_features=self.num_features)

    @property
    def head(self) -> MLP:
        """The dense layers behind the mean embedding."""
        return MLP(
            num_inputs=self.num_features,
            hidden=self.hidden,
            num_outputs=self.num_outputs,
            activation=self.activation,
            dropout=self.dropout,
        )

    def init(self, key: Key) -> Params:
        """Draws standard normal embeddings, and a head scaled for the activation."""
        table_key, head_key = jax.random.split(key)
        table = layers.init_normal(table_key, (self.num_tokens, self.num_features))
        return {"embedding": {"table": table}, **self.head.init(head_key)}

    def apply(self, params: Params, x: Input, key: Key) -> Array:
        """Maps one vector of tokens to ``(num_outputs,)``; the key draws what is dropped."""
        tokens = jnp.asarray(x)
        if tokens.ndim != 1 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise InvalidArgumentError(
                "an input must be a vector of whole-number tokens, with negative ones for "
                f"padding; got shape {tokens.shape} and dtype {tokens.dtype}."
            )
        bag = layers.mean_embedding(params["embedding"]["table"], tokens)
        bag = layers.dropout(key, bag, rate=self.dropout, place=0)
        return self.head.apply(params, bag, key)


Shape: TypeAlias = tuple[int, int, int]


def _pair(value: int | Extent) -> Extent:
    return value if isinstance(value, tuple) else (value, value)


def _check_pair(*, minimum: int = 1, **values: object) -> None:
    for name, value in values.items():
        parts = value if isinstance(value, tuple) else (value, value)
        if len(parts) != 2 or not all(_is_whole(part, minimum) for part in parts):
            raise InvalidArgumentError(
                f"{name} must be a whole number of at least {minimum}, or a pair of them for "
                f"height and width; got {value!r}."
            )


def _is_whole(value: object, minimum: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= minimum


def _num_positions(
    shape: Shape, window: int | Extent, stride: int | Extent, padding: Extent
) -> Extent:
    rows, columns = (
        (shape[axis] + 2 * padding[axis] - _pair(window)[axis]) // _pair(stride)[axis] + 1
        for axis in (0, 1)
    )
    return rows, columns


@part()
@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv:
    """A convolution followed by the network's activation.

    Attributes:
      features: how many channels come out.
      kernel: the size of the window; one number, or height and width.
      stride: the step between windows.
      padding: rows and columns of zeros added on each side.

    Example:
      >>> Conv(features=16, kernel=8, stride=2, padding=3).output_shape((28, 28, 1))
      (14, 14, 16)
    """

    features: int
    kernel: int | Extent
    stride: int | Extent = 1
    padding: int | Extent = 0

    def __post_init__(self) -> None:
        _check.positive_integer(features=self.features)
        _check_pair(kernel=self.kernel, stride=self.stride)
        _check_pair(minimum=0, padding=self.padding)

    def output_shape(self, shape: Shape) -> Shape:
        """Returns the shape of the output for an input of this shape."""
        rows, columns = _num_positions(shape, self.kernel, self.stride, _pair(self.padding))
        return rows, columns, self.features


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pool:
    window: int | Extent
    stride: int | Extent

    def __post_init__(self) -> None:
        _check_pair(window=self.window, stride=self.stride)

    def output_shape(self, shape: Shape) -> Shape:
        """Returns the shape of the output for an input of this shape."""
        return *_num_positions(shape, self.window, self.stride, (0, 0)), shape[2]


@part()
@dataclasses.dataclass(frozen=True, kw_only=True)
class MaxPool(_Pool):
    """The maximum over windows.

    Example:
      >>> MaxPool(window=2, stride=1).output_shape((14, 14, 16))
      (13, 13, 16)
    """


@part()
@dataclasses.dataclass(frozen=True, kw_only=True)
class AveragePool(_Pool):
    """The mean over windows.

    Example:
      >>> AveragePool(window=7, stride=7).output_shape((28, 28, 1))
      (4, 4, 1)
    """


Stage: TypeAlias = Conv | MaxPool | AveragePool


@part(Network)
@dataclasses.dataclass(frozen=True, kw_only=True)
class CNN:
    """Stages on an image, flattened into dense layers.

    The parameters are ``{"conv_0": {"kernel", "bias"}, ..., "dense_0": ..., ...}``.

    Attributes:
      input_shape: height, width and channels of one image.
      stages: convolutions (each followed by the activation) and pools, in order.
      hidden: the width of each hidden dense layer after the stages.
      num_outputs: how many numbers come out.
      activation: what follows each convolution and each hidden dense layer.
      dropout: the probability of dropping a flattened feature or a hidden dense unit, in
        training and in prediction alike.

    Example:
      >>> network = CNN(
      ...     input_shape=(8, 8, 1),
      ...     stages=(Conv(features=4, kernel=3), MaxPool(window=2, stride=2)),
      ...     hidden=(16,),
      ...     num_outputs=3,
      ... )
      >>> network.num_features
      36
    """

    input_shape: Shape
    stages: tuple[Stage, ...]
    hidden: tuple[int, ...] = ()
    num_outputs: int
    activation: Activation = Activation.RELU
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_dense(self.hidden, self.num_outputs, self.activation, self.dropout)
        if not isinstance(self.input_shape, tuple) or len(self.input_shape) != 3:
            raise InvalidArgumentError(
                "input_shape must be (height, width, channels), with 1 channel for grey images; "
                f"got {self.input_shape!r}."
            )
        for i, length in enumerate(self.input_shape):
            _check.positive_integer(**{f"input_shape[{i}]": length})
        if not isinstance(self.stages, tuple):
            raise InvalidArgumentError(
                f"stages must be a tuple such as (Conv(features=16, kernel=3),); "
                f"got {self.stages!r}."
            )
        for i, stage in enumerate(self.stages):
            if not isinstance(stage, Conv | MaxPool | AveragePool):
                raise InvalidArgumentError(
                    f"stages[{i}] must be a Conv, MaxPool or AveragePool; got {stage!r}."
                )
        for _, stage, shape in self._walk():
            if min(stage.output_shape(shape)) < 1:
                raise InvalidArgumentError(
                    f"{stage} does not fit its input of shape {shape}; use a smaller window, "
                    "more padding or fewer stages."
                )

    def _walk(self) -> Iterator[tuple[str, Stage, Shape]]:
        """Yields each stage with the name of its parameters and the shape it receives."""
        shape, num_convs = self.input_shape, 0
        for stage in self.stages:
            yield f"conv_{num_convs}", stage, shape
            num_convs += isinstance(stage, Conv)
            shape = stage.output_shape(shape)

    @property
    def num_features(self) -> int:
        """The length of the flattened output of the last stage."""
        shape = self.input_shape
        for stage in self.stages:
            shape = stage.output_shape(shape)
        return math.prod(shape)

    @property
    def head(self) -> MLP:
        """The dense layers behind the stages."""
        return MLP(
            num_inputs=self.num_features,
            hidden=self.hidden,
            num_outputs=self.num_outputs,
            activation=self.activation,
            dropout=self.dropout,
        )

    def init(self, key: Key) -> Params:
        """Draws kernels scaled for the activation, with zero biases."""
        head_key, *stage_keys = jax.random.split(key, 1 + len(self.stages))
        params = self.head.init(head_key)
        for stage_key, (name, stage, shape) in zip(stage_keys, self._walk(), strict=True):
            if isinstance(stage, Conv):
                kernel_shape = (*_pair(stage.kernel), shape[2], stage.features)
                params[name] = layers.init_layer(stage_key, kernel_shape, before=self.activation)
        return params

    def apply(self, params: Params, x: Input, key: Key) -> Array:
        """Maps one image to ``(num_outputs,)``; the key draws what is dropped.

        The channel axis of a grey image may be left out.
        """
        return run(self.steps, params, x, key)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What `apply` does, in order."""
        steps: list[Step] = [Image(self.input_shape)]
        for name, stage, _ in self._walk():
            match stage:
                case Conv():
                    steps.append(Convolve(name, _pair(stage.stride), _pair(stage.padding)))
                    steps.append(Activate(self.activation))
                case MaxPool():
                    steps.append(Maximum(_pair(stage.window), _pair(stage.stride)))
                case AveragePool():
                    steps.append(Average(_pair(stage.window), _pair(stage.stride)))
        flatten, *head = self.head.steps
        drop = [Drop(self.dropout, place=0)] if self.dropout else []
        return (*steps, flatten, *drop, *head)
