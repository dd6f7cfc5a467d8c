"""Records from tables and images, under a public schema."""

from tacit.data.adult import ADULT_SCHEMA, load_adult
from tacit.data.columns import Categorical, Column, Numeric, NumericTarget, Scale, Target
from tacit.data.images import encode_images
from tacit.data.records import as_records
from tacit.data.schema import Schema
from tacit.data.shards import assign_shards, shard_records, shard_size
from tacit.data.sources import open_arrays, open_table
from tacit.data.stored import (
    Encoded,
    StoredRecords,
    encode_to_folder,
    map_arrays,
    open_records,
    write_records,
)
from tacit.data.tables import encode_table

__all__ = [
    "ADULT_SCHEMA",
    "Categorical",
    "Column",
    "Encoded",
    "Numeric",
    "NumericTarget",
    "Scale",
    "Schema",
    "StoredRecords",
    "Target",
    "as_records",
    "assign_shards",
    "encode_images",
    "encode_table",
    "encode_to_folder",
    "load_adult",
    "map_arrays",
    "open_arrays",
    "open_records",
    "open_table",
    "shard_records",
    "shard_size",
    "write_records",
]
