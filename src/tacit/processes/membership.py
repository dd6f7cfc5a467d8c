"""Membership: how many processes there are, and which of them this is."""

from dataclasses import dataclass

import jax

__all__ = ["is_coordinator", "num_processes", "remember_membership"]


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
