"""Synthetic tables from any posterior over all columns, and what they keep of the real one."""

from tacit.synthetic.tables import combined, synthetic_tables, table_utility
from tacit.synthetic.twin import twin_guide, twin_program

__all__ = ["combined", "synthetic_tables", "table_utility", "twin_guide", "twin_program"]
