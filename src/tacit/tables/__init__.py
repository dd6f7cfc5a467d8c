"""Tables: where the records of a run are."""

from tacit.tables.base import (
    Batch,
    ClippedSum,
    InMemory,
    Keys,
    Summing,
    Table,
    as_summing,
    as_table,
)
from tacit.tables.distributed import Distributed, distribute
from tacit.tables.fetched import Fetched, FetchedStep, fetch
from tacit.tables.mapping import is_spread, on_table, over_shards, shared_among
from tacit.tables.mesh import CHAINS, PARAMETERS, describe_mesh, device_mesh, largest_share
from tacit.tables.on_host import OnHost, RowSource
from tacit.tables.placing import at_home, cut_of, everywhere
from tacit.tables.recorder import DrawnInLoopError, Recorder
from tacit.tables.room import drawn_batch
from tacit.tables.scattered import RECORDS, Scattered, in_rows, out_of_rows
from tacit.tables.shard import Shard

__all__ = [
    "CHAINS",
    "PARAMETERS",
    "RECORDS",
    "Batch",
    "ClippedSum",
    "Distributed",
    "DrawnInLoopError",
    "Fetched",
    "FetchedStep",
    "InMemory",
    "Keys",
    "OnHost",
    "Recorder",
    "RowSource",
    "Scattered",
    "Shard",
    "Summing",
    "Table",
    "as_summing",
    "as_table",
    "at_home",
    "cut_of",
    "describe_mesh",
    "device_mesh",
    "distribute",
    "drawn_batch",
    "everywhere",
    "fetch",
    "in_rows",
    "is_spread",
    "largest_share",
    "on_table",
    "out_of_rows",
    "over_shards",
    "shared_among",
]
