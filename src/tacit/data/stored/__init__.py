"""Records on disk: tables that are larger than memory."""

from tacit.data.stored.files import digest_of
from tacit.data.stored.source import StoredRecords, map_arrays, open_records
from tacit.data.stored.writing import Encoded, encode_to_folder, write_records

__all__ = [
    "Encoded",
    "StoredRecords",
    "digest_of",
    "encode_to_folder",
    "map_arrays",
    "open_records",
    "write_records",
]
