"""Steps on the clock: many in one compiled loop, as `tacit.fit` makes them, or dispatched singly.

XLA runs some operations differently inside of a loop: on a CPU, gradients of convolutions are
slower there. So a step has two costs, and users of `fit` pay the first.
"""

import math
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.timing import Visit, repeat
from tacit.inference.compilation import step_key
from tacit.inference.method import Kernel
from tacit.typing import Array, Key, Tree

__all__ = ["Step", "dispatched", "in_loop", "loop_of", "made_in_loop", "private_step", "visit_of"]

Step: TypeAlias = Callable[[Array, Key, Any, Any], Any]
"""``step(t, key, state, data)`` returns the next state."""

_MAX_STEPS = 100_000


def loop_of(step: Step) -> Callable[[Any, Any, Key, Any, Any], Any]:
    """Returns ``steps(first, last, key, state, data)``, one compiled loop; the state is given away.

    How many steps it makes is a value, so that nothing is unrolled. The data are an argument, so
    that nothing is computed from them beforehand.
    """

    def steps(first: Array, last: Array, key: Key, state: Any, data: Any) -> Any:
        return lax.fori_loop(first, last, lambda t, state: step(t, key, state, data), state)

    return jax.jit(steps, donate_argnums=3)


def in_loop(step: Step, state: Any, key: Key, data: Any) -> Visit:
    """Returns the visit that goes on by as many steps in one loop as fill the seconds.

    The first makes one step, and compiles before. Every step has the mean of its loop.
    """
    compiled: Any = None
    held, done, latest = _copied(state), 0, math.inf

    def visit(seconds: float) -> list[float]:
        nonlocal compiled, held, done, latest
        num_steps = min(_MAX_STEPS, max(1, round(1e3 * seconds / latest)))
        bounds = np.int32(done), np.int32(done + num_steps)
        if compiled is None:
            compiled = loop_of(step).lower(*bounds, key, held, data).compile()
        start = time.perf_counter()
        held = jax.block_until_ready(compiled(*bounds, key, held, data))
        latest = 1e3 * (time.perf_counter() - start) / num_steps
        done += num_steps
        return num_steps * [latest]

    return visit


def made_in_loop(make: Callable[[Array, Key, Any], Tree], key: Key, data: Any) -> Visit:
    """Returns the visit of a loop in which each step makes the same thing anew.

    Args:
      make: a function of the step, the key and the data, that must depend on the step: else XLA
        moves what does not out of the loop.
      key: for all steps.
      data: likewise.
    """
    shapes = jax.eval_shape(make, np.int32(0), key, data)
    # All of the last result leaves the loop, so all of it is made.
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return in_loop(lambda t, key, state, data: make(t, key, data), state, key, data)


def dispatched(step: Step, state: Any, key: Key, data: Any) -> Visit:
    """Returns the visit that dispatches one compiled step after the other."""
    compiled: Any = None
    held, done = _copied(state), 0

    def run() -> None:
        nonlocal held, done
        held = jax.block_until_ready(compiled(np.int32(done), key, held, data))
        done += 1

    def visit(seconds: float) -> list[float]:
        nonlocal compiled
        if compiled is None:
            jitted = jax.jit(step, donate_argnums=2)
            compiled = jitted.lower(np.int32(0), key, held, data).compile()
        return repeat(run)(seconds)

    return visit


def private_step(kernel: Kernel) -> Step:
    """Returns the step of a method, with the keys that `fit` gives it."""
    return lambda t, key, state, data: kernel.step(step_key(key, t), state, data)[0]


def visit_of(function: Callable[..., Tree], *inputs: Any) -> Visit:
    """Returns the visit that calls a compiled function and waits for its result."""
    return repeat(lambda: jax.block_until_ready(function(*inputs)))


def _copied(state: Any) -> Any:
    # The caller's arrays must survive the first step, which gives its state away.
    return jax.tree.map(jnp.copy, state)
