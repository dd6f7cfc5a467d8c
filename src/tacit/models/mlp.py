"""Multilayer perceptrons; with no hidden layer, linear and logistic regression."""

import dataclasses

import jax

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models import layers
from tacit.models.activations import Activation, check_activation
from tacit.models.steps import Activate, Dense, Drop, Step, Vector, run
from tacit.typing import Array, Input, Key, Params

__all__ = ["MLP"]


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
            steps += [Dense(f"dense_{i}"), Activate(self.activation)]
            if self.dropout:
                # Place 0 is before the first layer: networks with this one as their head use it.
                steps.append(Drop(self.dropout, place=i + 1))
        return (*steps, Dense(f"dense_{len(self.hidden)}"))


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
