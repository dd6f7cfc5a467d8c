"""Accounting: what a cost means in epsilon and delta.

Costs are dp_accounting's events, and a second accountant built on its loss distributions verifies
every statement (`tacit.privacy.statement.second_accountant`). Its own accountants are not enough:
they have no rule for fixed-size batches under zero-out adjacency, none for Poisson batches of
bounded size, which are what is drawn here, and none for disjoint shards; their grids take minutes
for schedules of a thousand distinct noise multipliers, and where delta is below about 1e-12 they
return infinity. Here a release is looked up in one table of what is proven (`rules`), as a
dominating pair (`pairs`) or as Rényi divergences (`renyi`); a composition is one product of Fourier
transforms (`losses`), and the smallest of several upper bounds is returned (`accountants`).
docs/accounting.md has the comparison.
"""

from tacit.privacy.accounting.accountants import (
    GDP,
    PLD,
    RDP,
    Accountant,
    CLTApproximation,
    delta,
    epsilon,
)
from tacit.privacy.accounting.rules import Adjacency

__all__ = ["GDP", "PLD", "RDP", "Accountant", "Adjacency", "CLTApproximation", "delta", "epsilon"]
