"""Starting the processes of a run: who takes part, and where they meet."""

import atexit
import re

import jax

from tacit import _check
from tacit.errors import InvalidArgumentError, TacitError
from tacit.processes.losing import end_if_broken, translating_lost_workers
from tacit.processes.membership import remember_membership

__all__ = ["require_place", "start_processes", "stop_processes"]

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
