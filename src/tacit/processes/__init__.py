"""Processes: several of them execute one run, and only the coordinator touches what lasts.

All processes of a run call the same functions in the same order. Process 0 is the coordinator: it
alone pays ledgers and writes files. `jax.distributed` connects them; nothing here replaces it.
"""

from tacit.processes.coordinator import (
    is_coordinator,
    num_processes,
    on_coordinator,
    shared_fresh_key,
)
from tacit.processes.losing import translating_lost_workers
from tacit.processes.starting import start_processes, stop_processes

__all__ = [
    "is_coordinator",
    "num_processes",
    "on_coordinator",
    "shared_fresh_key",
    "start_processes",
    "stop_processes",
    "translating_lost_workers",
]
