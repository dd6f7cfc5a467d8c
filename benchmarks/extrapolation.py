"""A step on many hosts, on paper: what was measured on one core, multiplied out.

Nothing here was run. A host is one core of the machine that measured, or has a device of so many
times its speed; the network is counted at its nominal speed, both ways at once, or that of Gloo on
the measured core where that is slower; nothing overlaps but reading the rows of the next step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.scaling_parts import NUM_READ

__all__ = [
    "CUT",
    "Cluster",
    "Costs",
    "costs_of",
    "exchanged_bytes",
    "memory",
    "parts_of_step",
    "steps_in_chunk",
]

_FLOAT = 4
_READ_AT_ONCE = 2**26
"""As in `tacit.inference.chains`, where batches count with all their rows, whoever reads them."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a step is worked out for.

    Attributes:
      num_params: of the network; its cost is taken as that of dense layers.
      gigabits: per second, of each host's link.
      speed: how many times as fast as the measured core a host's device is.
      num_records: of the table.
      num_columns: of the table.
      num_hosts: that share it.
      batch: records in a batch.
    """

    num_params: float
    gigabits: float
    speed: float = 1.0
    num_records: float = 1e9
    num_columns: int = 50
    num_hosts: int = 100
    batch: float = 1e6


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Milliseconds on one core.

    Attributes:
      clipping: of one record and one parameter.
      noise: of one number of a sum.
      update: of one parameter.
      read: of one record.
      exchange: of one byte that a process sends through Gloo, at best.
      chunk: of what is done once for a chunk of steps.
      draw: of a batch, by its expected size.
    """

    clipping: float
    noise: float
    update: float
    read: float
    exchange: float
    chunk: float
    draw: Mapping[int, float]


def costs_of(found: Mapping[str, Any]) -> Costs:
    """Returns unit costs from what `benchmarks.scaling` found."""
    task, ms = found["parts"]["task"], found["parts"]["ms"]
    strong = found["strong"][-1]  # whose step was taken apart
    num_params, num_rows = strong["num_params"], strong["rows"]["1"]
    return Costs(
        clipping=ms["clipped sum"] / (num_rows * num_params),
        noise=ms["noise"] / num_params,
        update=ms["update"] / task["num_values"],
        read=ms["read"] / NUM_READ,
        # Two processes send half of the sum, twice.
        exchange=ms["exchange"] / (_FLOAT * task["num_values"]),
        # The ledger, and twice a word of the coordinator: that it is paid, and that all is written.
        chunk=ms["charge"] + 2 * ms["agree"],
        draw={size: ms[f"draw {size}"] for size in task["draws"]},
    )


def exchanged_bytes(cluster: Cluster) -> float:
    """Returns what each host sends in a step: a reduce-scatter and an all-gather of the sum."""
    others = (cluster.num_hosts - 1) / cluster.num_hosts
    return 2 * _FLOAT * cluster.num_params * others


def steps_in_chunk(cluster: Cluster) -> int:
    """Returns how many steps of a table on disk are read ahead at once."""
    return max(1, int(_READ_AT_ONCE // (cluster.batch * (_row_bytes(cluster) + 8))))


def _row_bytes(cluster: Cluster) -> int:
    return (cluster.num_columns + 2) * _FLOAT  # with its target and its weight


CUT = (
    "clipped sum of the host's share",
    "reading its rows, beyond that",
    "noise on its slice of the sum",
)
"""The parts of a step that more hosts make shorter."""


def parts_of_step(costs: Costs, cluster: Cluster) -> dict[str, float]:
    """Returns the milliseconds of each part of a step on one host, and their sum."""
    own_records = cluster.batch / cluster.num_hosts
    d = cluster.num_params
    clipped = own_records * d * costs.clipping / cluster.speed
    read = own_records * costs.read
    sent = exchanged_bytes(cluster)
    nominal = sent / (cluster.gigabits * 1e6 / 8)
    parts = {
        # Once to read its rows ahead, and once in the step.
        "drawing the batch twice, on every host": 2
        * costs.draw[int(cluster.batch)]
        / cluster.speed,
        "clipped sum of the host's share": clipped,
        "reading its rows, beyond that": max(0.0, read - clipped),
        "noise on its slice of the sum": d / cluster.num_hosts * costs.noise / cluster.speed,
        "exchanging sums": max(nominal, sent * costs.exchange / cluster.speed),
        "optimiser, on every host": d * costs.update / cluster.speed,
        "ledger and agreement": costs.chunk / steps_in_chunk(cluster),
    }
    return parts | {"whole step": sum(parts.values())}


def memory(cluster: Cluster) -> dict[str, float]:
    """Returns gigabytes on each host."""
    own_rows = cluster.batch / cluster.num_hosts * steps_in_chunk(cluster)
    return {
        "its share of the table, in memory": (
            cluster.num_records / cluster.num_hosts * _row_bytes(cluster) / 1e9
        ),
        "instead, on disk: rows that are read ahead": 2 * own_rows * _row_bytes(cluster) / 1e9,
        "a drawn batch: indices, mask, places": 9 * cluster.batch / 1e9,
        "parameters, Adam, the sum and the update": 5 * _FLOAT * cluster.num_params / 1e9,
    }
