"""Tables: where the records of a run are: in memory, on devices or on disk."""

from tacit.tables.distributed import device_mesh
from tacit.tables.on_host import OnHost, distribute

__all__ = ["OnHost", "device_mesh", "distribute"]
