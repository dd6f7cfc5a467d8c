"""Accounting: what a cost means in epsilon and delta."""

from tacit.privacy.accounting.accountants import (
    DEFAULT_ACCOUNTANT,
    GDP,
    PLD,
    RDP,
    Accountant,
    CLTApproximation,
    delta,
    delta_curve,
    epsilon,
    epsilon_curve,
    round_up,
)
from tacit.privacy.accounting.rules import Adjacency

__all__ = [
    "DEFAULT_ACCOUNTANT",
    "GDP",
    "PLD",
    "RDP",
    "Accountant",
    "Adjacency",
    "CLTApproximation",
    "delta",
    "delta_curve",
    "epsilon",
    "epsilon_curve",
    "round_up",
]
