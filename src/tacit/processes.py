"""Processes: several of them execute one run, and only the coordinator touches what lasts.

What happens, and how long it takes:
  * A process that dies (killed, out of memory, crashed) closes its connections. The next collective
    of the others fails within milliseconds, as `LostWorkerError`.
  * One that falls silent (its host lost power, the network is cut) is noticed after the heartbeat
    timeout. JAX then aborts the others from a thread of its own (SIGABRT), and so it does at once
    where the coordinator died and no collective is under way. Python code cannot catch that; the
    command line makes one line of it. Nothing is lost: what was charged is on the disk already.
"""

import atexit
import contextlib
import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from tacit import _check
from tacit.chacha20 import CHACHA20
from tacit.errors import (
    InvalidArgumentError,
    LostWorkerError,
    StoppedByCoordinatorError,
    TacitError,
)
from tacit.rng import fresh_key
from tacit.typing import Key

__all__ = [
    "end_if_broken",
    "end_now",
    "from_coordinator",
    "is_coordinator",
    "num_processes",
    "on_coordinator",
    "remember_membership",
    "require_place",
    "require_same_everywhere",
    "shared_fresh_key",
    "start_processes",
    "stop_processes",
    "translating_lost_workers",
]


@dataclass
class _Own:
    num_processes: int | None = None
    process_id: int | None = None


_own = _Own()


def remember_membership(*, num_processes: int, process_id: int) -> None:
    """Notes what this process was started as.

    JAX knows it as well, but to ask it initialises the backend, which waits for all processes:
    one that fails before would wait for those that wait for it.
    """
    _own.num_processes, _own.process_id = num_processes, process_id


def num_processes() -> int:
    """Returns how many processes take part in the run; 1 where none were started.

    Example:
      >>> num_processes()
      1
    """
    if not jax.distributed.is_initialized():
        return 1
    return jax.process_count() if _own.num_processes is None else _own.num_processes


def is_coordinator() -> bool:
    """Returns whether this process pays and writes: process 0, or the only one.

    Example:
      >>> is_coordinator()
      True
    """
    if not jax.distributed.is_initialized():
        return True
    return (jax.process_index() if _own.process_id is None else _own.process_id) == 0


# JAX has no type of its own for this, but raises ValueError or JaxRuntimeError with a status code
# and the words of whichever layer noticed first.
_STATUS = re.compile(r"\s*(UNKNOWN|UNAVAILABLE|INTERNAL|DEADLINE_EXCEEDED|ABORTED|CANCELLED)\b")
_SIGNS = re.compile(
    r"gloo|nccl|closed by peer|reset by peer|broken pipe|socket closed|heartbeat timeout"
    r"|coordination service|barrier|unhealthy",
    re.IGNORECASE,
)

# The coordinator ends a little later than the other survivors: when it goes, JAX aborts those that
# have not noticed the loss themselves.
_HEAD_START = 1.0

_is_broken = threading.Event()


@contextlib.contextmanager
def translating_lost_workers(*, after_step: int | None = None) -> Iterator[None]:
    """Turns what JAX raises where a process of the run is gone into `LostWorkerError`.

    JAX computes ahead: wait for the results inside (``jax.block_until_ready``), or the error comes
    later and elsewhere. After this error the process can only end. It then does so without waiting
    for the lost one, with exit code 1.

    Args:
      after_step: how many steps were finished before.

    Example:
      >>> with translating_lost_workers(after_step=20):
      ...     raise ValueError("this is another error, and stays as it is")
      Traceback (most recent call last):
      ValueError: this is another error, and stays as it is
    """
    try:
        yield
    except TacitError:
        raise
    except (ValueError, RuntimeError) as error:  # JaxRuntimeError is a RuntimeError
        if num_processes() == 1 or not _tells_of_loss(str(error)):
            raise
        _is_broken.set()
        where = "" if after_step is None else f" after step {after_step}"
        raise LostWorkerError(
            f"a process of this run was lost{where}. What was charged stays charged. Go on from the"
            " last checkpoint, with as many processes as you like."
        ) from error


def end_if_broken() -> None:
    """Ends a process that has lost another, or failed alone; for the exit of the interpreter."""
    # Python leaves there what nobody caught.
    if _is_broken.is_set() or hasattr(sys, "last_value"):
        end_now(1)


def end_now(code: int) -> NoReturn:
    """Ends a process of several without waiting for the others.

    At the exit of the interpreter JAX waits until all processes are there, and aborts if one never
    comes: too long for a process that failed alone, while the others wait for it.
    """
    if is_coordinator():
        time.sleep(_HEAD_START)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _tells_of_loss(text: str) -> bool:
    return bool(_STATUS.match(text)) and bool(_SIGNS.search(text))


_ADDRESS = re.compile(r"[\w.:\[\]-]*[\w\]]:[1-9]\d{0,4}", re.ASCII)

# For how many seconds a process that ends waits for the others to end.
_SHUTDOWN_TIMEOUT = 60


def start_processes(
    *,
    num_processes: int,
    process_id: int,
    coordinator: str,
    heartbeat_timeout: int = 100,
    start_timeout: int = 300,
) -> None:
    """Connects this process with the others of a run; call it before any JAX computation.

    Every process calls it, with the same arguments but for ``process_id``. With one process nothing
    is started.

    Args:
      num_processes: how many take part.
      process_id: which of them this is, from 0; 0 is the coordinator.
      coordinator: ``host:port``, where the others reach process 0. The port must be free there, and
        closed to everybody else: whoever can connect to it can join the run. A loopback address
        is opened to this machine only.
      heartbeat_timeout: after so many seconds without a sign of life a process counts as lost.
      start_timeout: for so many seconds the processes wait for each other; then JAX aborts them.

    Example:
      >>> start_processes(num_processes=1, process_id=0, coordinator="127.0.0.1:7000")
    """
    _check.positive_integer(heartbeat_timeout=heartbeat_timeout, start_timeout=start_timeout)
    require_place(num_processes=num_processes, process_id=process_id, coordinator=coordinator)
    if jax.distributed.is_initialized():
        raise InvalidArgumentError(
            "start_processes was called already, and the processes are connected. Call it once."
        )
    if num_processes == 1:
        return
    # With it, a process would take SIGTERM for advice and run on.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes=num_processes,
            process_id=process_id,
            cluster_detection_method="deactivate",
            initialization_timeout=start_timeout,
            heartbeat_timeout_seconds=heartbeat_timeout,
            shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT,
            coordinator_bind_address=coordinator if _is_loopback(coordinator) else None,
        )
    except RuntimeError as error:
        if "must be called before" in str(error):
            raise InvalidArgumentError(
                "start_processes must come before any JAX computation, and one was made in this"
                " process already. Call it first."
            ) from None
        raise TacitError(
            f"process {process_id} cannot start at coordinator {coordinator!r}. Is the port in use,"
            " or the address that of another machine?"
        ) from error
    remember_membership(num_processes=num_processes, process_id=process_id)
    # Runs before JAX's own end, which would wait for a lost process and then abort.
    atexit.register(end_if_broken)


def stop_processes() -> None:
    """Waits for the other processes and disconnects from them; nothing where there is one.

    Example:
      >>> stop_processes()
    """
    if jax.distributed.is_initialized():
        with translating_lost_workers():
            jax.distributed.shutdown()


def require_place(*, num_processes: int, process_id: int, coordinator: str) -> None:
    """Raises unless a process can be this one of so many, and ``coordinator`` is an address."""
    _check.positive_integer(num_processes=num_processes)
    _check.non_negative_integer(process_id=process_id)
    if process_id >= num_processes:
        raise InvalidArgumentError(
            f"process_id must be below num_processes={num_processes}, counted from 0; got"
            f" {process_id!r}."
        )
    if not isinstance(coordinator, str) or not _ADDRESS.fullmatch(coordinator):
        raise InvalidArgumentError(
            f"coordinator must be host:port, such as 10.0.0.1:7000; got {coordinator!r}."
        )


def _is_loopback(coordinator: str) -> bool:
    return coordinator.startswith(("localhost:", "127.", "[::1]:"))


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


def require_same_everywhere(**texts: str) -> None:
    """Raises, in all processes, unless all of them have the same texts.

    Processes that compute with different plans or checkpoints would end with nonsense, or wait for
    each other for ever. Only digests are exchanged.

    Example:
      >>> require_same_everywhere(plan="400 steps")
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
