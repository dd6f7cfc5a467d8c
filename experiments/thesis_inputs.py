"""What the thesis' networks see: pixels in a row, pixels in a square, or features of them."""

import functools
from typing import NamedTuple

from experiments.cells import Settings
from experiments.images import image_set
from tacit.models import Scattering, extract_features
from tacit.typing import Array, Record

__all__ = ["SCATTERING", "Inputs", "inputs_of"]

SCATTERING = "scattering 3969-10"
"""The network on features: logistic regression."""


class Inputs(NamedTuple):
    """Private records, public test records, and foreign inputs, all as a network sees them."""

    train: Record
    test: Record
    foreign: Array


def inputs_of(settings: Settings) -> Inputs:
    """Returns as many records as the settings say, and as many foreign inputs as test records."""
    is_flat = settings["network"] == "784-512-10"
    train, test = image_set(settings["data"], flat=is_flat)
    train = Record(*(part[: settings["num_records"]] for part in train[:3]))
    foreign = image_set(settings["foreign"], flat=is_flat).test.x[: len(test.y)]
    if settings["network"] != SCATTERING:
        return Inputs(train, test, foreign)
    features = functools.partial(extract_features, Scattering())
    return Inputs(
        train._replace(x=features(train.x)), test._replace(x=features(test.x)), features(foreign)
    )
