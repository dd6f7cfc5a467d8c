"""Synthetic tables from any posterior over all columns, and what they keep of the real one."""

from tacit.synthetic.rows import RowCode
from tacit.synthetic.tables import combined, marginal_distances, synthetic_tables, table_utility
from tacit.synthetic.twin import twin_guide, twin_program

__all__ = [
    "RowCode",
    "combined",
    "marginal_distances",
    "synthetic_tables",
    "table_utility",
    "twin_guide",
    "twin_program",
]
