"""The coordinator: what one process does for all, and how the others learn of it."""

import contextlib
import hashlib
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from tacit.errors import InvalidArgumentError, LostWorkerError, StoppedByCoordinatorError
from tacit.processes.losing import translating_lost_workers
from tacit.processes.membership import is_coordinator, num_processes
from tacit.rng import CHACHA20, fresh_key
from tacit.typing import Key

__all__ = ["from_coordinator", "on_coordinator", "require_agreement", "shared_fresh_key"]

T = TypeVar("T")


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


def from_coordinator(action: Callable[[], str]) -> str:
    """Lets the coordinator find out a text, and returns it in all processes.

    Raises:
      StoppedByCoordinatorError: as `on_coordinator`.

    Example:
      >>> from_coordinator(lambda: "epsilon = 1")
      'epsilon = 1'
    """
    text = on_coordinator(action) or ""
    if num_processes() == 1:
        return text
    own = np.frombuffer(text.encode(), np.uint8)
    with translating_lost_workers():
        size = int(multihost_utils.broadcast_one_to_all(np.array([own.size], np.int32))[0])
        padded = np.zeros(size, np.uint8)
        padded[: own.size] = own
        found = np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8)
    return found.tobytes().decode()


def require_agreement(**texts: str) -> None:
    """Raises, in all processes, unless all of them have the same texts.

    Processes that compute with different plans or checkpoints would end with nonsense, or wait for
    each other for ever. Only digests are exchanged.

    Example:
      >>> require_agreement(plan="400 steps")
    """
    if num_processes() == 1:
        return
    digests = [hashlib.sha256(text.encode()).digest() for text in texts.values()]
    own = np.frombuffer(b"".join(digests), np.int32).reshape(len(texts), -1)
    with translating_lost_workers():
        found = np.asarray(multihost_utils.process_allgather(own))
    for number, name in enumerate(texts):
        others = np.flatnonzero((found[:, number] != found[0, number]).any(axis=-1))
        if others.size:
            raise InvalidArgumentError(
                f"{name} must be the same in all processes; process {others[0]} has another than"
                " the coordinator. Give all of them the same options and files."
            )


def _broadcast_flag(flag: bool) -> bool:
    with translating_lost_workers():
        return bool(multihost_utils.broadcast_one_to_all(np.array([flag], np.int32))[0])
