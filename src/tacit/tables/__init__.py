"""Tables: where the records of a run are: in memory, on devices or on disk."""

from tacit.tables.base import Table
from tacit.tables.distributed import Distributed, distribute
from tacit.tables.mesh import device_mesh
from tacit.tables.on_host import OnHost, RowSource

__all__ = ["Distributed", "OnHost", "RowSource", "Table", "device_mesh", "distribute"]
