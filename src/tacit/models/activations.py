"""Activations by name, each with the size of initial weights that suits it."""

import enum
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from tacit.errors import InvalidArgumentError
from tacit.typing import Array

__all__ = ["Activation"]


class Activation(enum.StrEnum):
    """An elementwise function between layers.

    Example:
      >>> Activation.RELU(jnp.array([-1.0, 2.0]))
      Array([0., 2.], dtype=float32)
    """

    RELU = "relu"
    TANH = "tanh"
    SOFTPLUS = "softplus"
    ELU = "elu"
    GELU = "gelu"
    SIGMOID = "sigmoid"
    IDENTITY = "identity"

    def __call__(self, x: Array) -> Array:
        """Applies the function to every element."""
        return _FUNCTIONS[self](x)

    def kernel_std(self, num_in: int, num_out: int) -> float:
        """Returns the spread of initial weights before this activation that keeps a signal's size.

        He for functions that cut half of the signal, Glorot for the saturating ones, LeCun for
        the identity.

        Args:
          num_in: how many inputs one output sees.
          num_out: how many outputs one input reaches.
        """
        match self:
            case Activation.IDENTITY:
                return math.sqrt(1 / num_in)
            case Activation.TANH | Activation.SIGMOID:
                return math.sqrt(2 / (num_in + num_out))
            case _:
                return math.sqrt(2 / num_in)


_FUNCTIONS: dict[Activation, Callable[[Array], Array]] = {
    Activation.RELU: jax.nn.relu,
    Activation.TANH: jnp.tanh,
    Activation.SOFTPLUS: jax.nn.softplus,
    Activation.ELU: jax.nn.elu,
    Activation.GELU: jax.nn.gelu,
    Activation.SIGMOID: jax.nn.sigmoid,
    Activation.IDENTITY: lambda x: x,
}


def check_activation(activation: object) -> None:
    """Raises unless the value is an ``Activation``, naming the member to use instead."""
    if not isinstance(activation, Activation):
        members = ", ".join(f"Activation.{member.name}" for member in Activation)
        raise InvalidArgumentError(f"activation must be one of {members}; got {activation!r}.")
