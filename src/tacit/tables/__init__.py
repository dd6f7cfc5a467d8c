"""Tables: where the records of a run are."""

from tacit.tables.base import Batch, ClippedSum, InMemory, Summing, Table, as_summing, as_table
from tacit.tables.distributed import Distributed, distribute
from tacit.tables.fetched import DrawnInLoopError, Fetched, FetchedStep, Recorder, fetch
from tacit.tables.mesh import (
    CHAINS,
    PARAMETERS,
    at_home,
    cut_of,
    describe_mesh,
    device_mesh,
    everywhere,
    is_spread,
    on_table,
    over_shards,
    shared_among,
)
from tacit.tables.on_host import OnHost, RowSource
from tacit.tables.scattered import RECORDS, Scattered
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
    "everywhere",
    "fetch",
    "is_spread",
    "on_table",
    "over_shards",
    "shared_among",
]
