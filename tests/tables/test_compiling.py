"""A fit compiles its loop once, wherever its table is and however many chunks it has."""

import logging

import jax
import pytest

from tables import cases
from tacit.inference.compilation import forget_kernels
from tacit.tables import OnHost, distribute

TABLES = {
    "in memory": lambda: cases.RECORDS,
    "spread": lambda: distribute(cases.RECORDS),
    "on the host": lambda: OnHost(cases.RowsInMemory(cases.RECORDS)),
}


@pytest.mark.parametrize("place", TABLES)
def test_the_loop_is_compiled_once(place, caplog):
    forget_kernels()
    source = TABLES[place]()
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        cases.fitted(source, cases.plan(num_steps=8), chunk_steps=2)
    compiled = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("Compiling") and "_advance" in record.getMessage()
    ]
    assert len(compiled) == 1
