"""Processes: several of them execute one run, and only the coordinator touches what lasts.

All processes of a run call the same functions in the same order. Process 0 is the coordinator: it
alone pays ledgers and writes files. `jax.distributed` connects them; nothing here replaces it.
"""

from tacit.processes.coordinator import (
    from_coordinator,
    on_coordinator,
    require_agreement,
    shared_fresh_key,
)
from tacit.processes.losing import end_now, translating_lost_workers
from tacit.processes.membership import is_coordinator, num_processes
from tacit.processes.starting import require_place, start_processes, stop_processes

__all__ = [
    "end_now",
    "from_coordinator",
    "is_coordinator",
    "num_processes",
    "on_coordinator",
    "require_agreement",
    "require_place",
    "shared_fresh_key",
    "start_processes",
    "stop_processes",
    "translating_lost_workers",
]
