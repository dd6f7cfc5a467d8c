"""Starting the processes of a run: who takes part, and where they meet."""

import atexit

import jax

from tacit import _check
from tacit.errors import InvalidArgumentError, TacitError
from tacit.processes.losing import end_if_broken, translating_lost_workers

__all__ = ["start_processes", "stop_processes"]

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
    _check.positive_integer(
        num_processes=num_processes,
        heartbeat_timeout=heartbeat_timeout,
        start_timeout=start_timeout,
    )
    _check.non_negative_integer(process_id=process_id)
    if process_id >= num_processes:
        raise InvalidArgumentError(
            f"process_id must be below num_processes={num_processes}, counted from 0; got"
            f" {process_id!r}."
        )
    host = _host_of(coordinator)
    if jax.distributed.is_initialized():
        raise InvalidArgumentError(
            "start_processes was called already, and the processes are connected. Call it once."
        )
    if num_processes == 1:
        return
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes=num_processes,
            process_id=process_id,
            cluster_detection_method="deactivate",
            initialization_timeout=start_timeout,
            heartbeat_timeout_seconds=heartbeat_timeout,
            shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT,
            coordinator_bind_address=coordinator if _is_loopback(host) else None,
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
    # Runs before JAX's own end, which would wait for a lost process and then abort.
    atexit.register(end_if_broken)


def stop_processes() -> None:
    """Waits for the other processes and disconnects from them; nothing where there is one.

    Example:
      >>> stop_processes()
    """
    if jax.distributed.is_initialized():
        with translating_lost_workers():
            jax.distributed.shutdown()  # type: ignore[no-untyped-call]


def _host_of(coordinator: object) -> str:
    if isinstance(coordinator, str) and coordinator.isprintable() and " " not in coordinator:
        host, _, port = coordinator.rpartition(":")
        if host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16:
            return host
    raise InvalidArgumentError(
        "coordinator must be host:port, with a port from 1 to 65535, such as 10.0.0.1:7000; got"
        f" {coordinator!r}."
    )


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "[::1]") or host.startswith("127.")
