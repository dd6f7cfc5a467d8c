"""Records from tables and images, under a public schema."""

from tacit.data.columns import CategoricalColumn, NumericColumn, NumericTarget, Target
from tacit.data.frames import ADULT_SCHEMA, load_adult
from tacit.data.record_source import open_records
from tacit.data.record_writing import encode_to_folder, write_records
from tacit.data.records import as_records, encode_images, encode_table
from tacit.data.schema import Schema

__all__ = [
    "ADULT_SCHEMA",
    "CategoricalColumn",
    "NumericColumn",
    "NumericTarget",
    "Schema",
    "Target",
    "as_records",
    "encode_images",
    "encode_table",
    "encode_to_folder",
    "load_adult",
    "open_records",
    "write_records",
]
