"""A folder of records in the place of a table: opened, not read."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.cli._study import Study
from tacit.data import Schema, StoredRecords, Target, open_records
from tacit.data.stored import digest_of
from tacit.errors import InvalidArgumentError
from tacit.tables import OnHost

__all__ = ["open_stored", "require_classes"]

_BLOCK = 2**13


def open_stored(study: Study, schema: Schema) -> OnHost:
    """Returns the records of a folder, or raises unless they were encoded for this study."""
    folder = study.table
    records = open_records(folder)
    settled = {"--weight": study.weight, "--groups": study.groups, "--max-rows": study.max_rows}
    extra = [name for name, value in settled.items() if value is not None]
    if extra:
        raise InvalidArgumentError(
            f"{str(folder)!r} was encoded already, with or without {', '.join(extra)}; leave it out"
            " here, and give it to tacit encode."
        )
    if study.output.resolve().is_relative_to(folder.resolve()):
        raise InvalidArgumentError(
            f"--output {str(study.output)!r} is in the folder of the private records, and a run is"
            " made to be published. Choose another folder."
        )
    if records.schema_digest != digest_of(schema):
        raise InvalidArgumentError(
            f"{str(folder)!r} was encoded with another schema. Give the --schema that it was"
            " encoded with, or encode the table again with this one."
        )
    if isinstance(schema.target, Target):
        require_classes(_some_labels(records), schema.target)
    return OnHost(records)


def require_classes(labels: NDArray[Any], target: Target) -> None:
    """Raises where all labels are the same."""
    if len(np.unique(labels)) < 2:
        raise InvalidArgumentError(
            f"column {target.name!r}: all rows are of one class, so nothing can be learnt. Add rows"
            " of the others. (Not for publication: it depends on the records.)"
        )


def _some_labels(records: StoredRecords) -> NDArray[Any]:
    """Returns the classes of the first records, up to where a second one occurs."""
    found: NDArray[Any] = np.zeros(0)
    for start in range(0, records.num_records, _BLOCK):
        block = records.read(np.arange(start, min(start + _BLOCK, records.num_records)))
        labels = np.asarray(block.y if block.mask is None else block.y[block.mask])
        found = np.unique(np.concatenate([found, labels]))
        if len(found) > 1:
            break
    return found
