"""Tables: where the records of a run are."""

from tacit.tables.base import Batch, ClippedSum, InMemory, Summing, Table, as_summing, as_table
from tacit.tables.distributed import Distributed, distribute
from tacit.tables.fetched import DrawnInLoopError, Fetched, FetchedStep, Recorder, fetch
from tacit.tables.mesh import at_home, everywhere, is_spread, over_shards, records_mesh
from tacit.tables.on_host import OnHost, RowSource
from tacit.tables.scattered import Scattered
from tacit.tables.shard import Shard

__all__ = [
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
    "distribute",
    "everywhere",
    "fetch",
    "is_spread",
    "over_shards",
    "records_mesh",
]
