"""Records on disk: tables that are larger than memory."""

from tacit.data.stored.encoding import Encoded, encode_to_folder
from tacit.data.stored.manifest import digest_of
from tacit.data.stored.opening import open_records
from tacit.data.stored.source import StoredRecords, map_arrays
from tacit.data.stored.writing import write_records

__all__ = [
    "Encoded",
    "StoredRecords",
    "digest_of",
    "encode_to_folder",
    "map_arrays",
    "open_records",
    "write_records",
]
