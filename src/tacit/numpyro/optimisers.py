"""Optimisers: NumPyro's and optax's alike, and none that looks at records on its own."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.example_libraries import optimizers
from numpyro.optim import Minimize, _NumPyroOptim, optax_to_numpyro

from tacit.errors import InvalidArgumentError
from tacit.typing import Tree

__all__ = ["as_numpyro_optimiser", "reads_the_loss"]


def as_numpyro_optimiser(optim: Any) -> _NumPyroOptim:
    """Returns an optimiser in NumPyro's shape.

    Raises:
      InvalidArgumentError: if it is no optimiser, or one that evaluates the objective itself.
    """
    if isinstance(optim, Minimize):
        raise InvalidArgumentError(
            "optim must take one gradient a step; got Minimize, which evaluates the loss of all"
            " records again and again in one step. Use numpyro.optim.Adam."
        )
    if isinstance(optim, _NumPyroOptim):
        return optim
    if isinstance(optim, optimizers.Optimizer):
        return _NumPyroOptim(lambda *parts: parts, *optim)
    if isinstance(optim, optax.GradientTransformation):
        return optax_to_numpyro(optim)
    raise InvalidArgumentError(
        "optim must be an optimiser of numpyro.optim, jax.example_libraries.optimizers or optax;"
        f" got {type(optim).__name__}."
    )


def reads_the_loss(optim: _NumPyroOptim, params: Tree) -> bool:
    """Whether an update depends on the value of the loss, as for step sizes that follow it."""
    if not optim.update_with_value:
        return False
    state = jax.eval_shape(optim.init, params)
    program = jax.make_jaxpr(lambda value, g, s: optim.update(g, s, value=value))(
        jnp.zeros(()), params, state
    )
    value = program.jaxpr.invars[0]
    used = [operand for equation in program.jaxpr.eqns for operand in equation.invars]
    return any(operand is value for operand in [*used, *program.jaxpr.outvars])
