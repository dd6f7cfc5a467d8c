"""The coordinator: what one process does for all, and how the others learn of it."""

import contextlib
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from tacit.errors import LostWorkerError, StoppedByCoordinatorError
from tacit.processes.losing import translating_lost_workers
from tacit.rng import CHACHA20, fresh_key
from tacit.typing import Key

__all__ = ["is_coordinator", "num_processes", "on_coordinator", "shared_fresh_key"]

T = TypeVar("T")


def num_processes() -> int:
    """Returns how many processes take part in the run; 1 where none were started.

    Example:
      >>> num_processes()
      1
    """
    # Asking JAX would initialise its backend, after which no process can be started.
    return jax.process_count() if jax.distributed.is_initialized() else 1


def is_coordinator() -> bool:
    """Returns whether this process pays and writes: process 0, or the only one.

    Example:
      >>> is_coordinator()
      True
    """
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def shared_fresh_key() -> Key:
    """Returns one new secret key, the same in all processes of a run.

    Guarantee:
      256 bits from the operating system's generator of the coordinator, as `tacit.rng.fresh_key`.
      With one process the key does not leave it. With several it crosses the network by JAX's
      collectives, which neither encrypt nor authenticate: noise is pseudorandom only to those who
      can read neither the memory of a process nor the traffic between the hosts. Keep that network
      private, or encrypt it; sums without noise cross it as well.

    Example:
      >>> jax.random.normal(shared_fresh_key(), (3,)).shape
      (3,)
    """
    if num_processes() == 1:
        return fresh_key()
    # Every process draws one, so that all compute alike; only the coordinator's is used.
    words = np.asarray(jax.random.key_data(fresh_key()))
    with translating_lost_workers():
        shared = multihost_utils.broadcast_one_to_all(words)
    key: Key = jax.random.wrap_key_data(jnp.asarray(shared, jnp.uint32), impl=CHACHA20)
    return key


def on_coordinator(action: Callable[[], T]) -> T | None:
    """Lets the coordinator act, and all processes learn whether it worked.

    Every process must call this at the same point. It returns when the action is done, so that what
    comes after it, such as reading the records that it paid for, waits for it everywhere.

    Returns:
      What the action gave on the coordinator, None elsewhere.

    Raises:
      StoppedByCoordinatorError: elsewhere, where the action failed. It says nothing of the reason,
        which the coordinator's own error gives.

    Example:
      >>> on_coordinator(lambda: 3)
      3
    """
    if num_processes() == 1:
        return action()
    if not is_coordinator():
        if not _broadcast_flag(True):
            raise StoppedByCoordinatorError(
                "the coordinator (process 0) stopped the run; its own message says why. What was"
                " charged stays charged."
            )
        return None
    try:
        result = action()
    except BaseException:  # an interrupt, too: the others wait for an answer
        with contextlib.suppress(LostWorkerError):  # the action's own error says more
            _broadcast_flag(False)
        raise
    _broadcast_flag(True)
    return result


def _broadcast_flag(flag: bool) -> bool:
    with translating_lost_workers():
        return bool(multihost_utils.broadcast_one_to_all(np.array([flag], np.int32))[0])
