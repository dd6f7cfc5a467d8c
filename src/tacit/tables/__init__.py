"""Tables: where the records of a run are: in memory, on devices or on disk."""

from tacit.tables.base import Table
from tacit.tables.distributed import Distributed, device_mesh
from tacit.tables.on_host import OnHost, RowSource, distribute

__all__ = ["Distributed", "OnHost", "RowSource", "Table", "device_mesh", "distribute"]
