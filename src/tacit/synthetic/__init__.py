"""Synthetic tables from any posterior over all columns, and what they keep of the real one."""

from tacit.synthetic.rows import RowCode, as_table
from tacit.synthetic.tables import (
    Combined,
    Utility,
    combined,
    marginal_distances,
    synthetic_tables,
    table_utility,
)
from tacit.synthetic.twin import RowMixture, twin_guide, twin_program

__all__ = [
    "Combined",
    "RowCode",
    "RowMixture",
    "Utility",
    "as_table",
    "combined",
    "marginal_distances",
    "synthetic_tables",
    "table_utility",
    "twin_guide",
    "twin_program",
]
