"""Sites: where a record meets parameters, and the split programs that they stand in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.extend import core

from tacit.privacy.clipping.equations import bind, is_float, literal_or
from tacit.typing import Array

__all__ = ["Scan", "Site", "Split", "UnsupportedError", "Value"]


class UnsupportedError(Exception):
    """The loss has a shape that the fast path does not handle; the reference does."""


class Value(NamedTuple):
    """A value of the parameter part that the record part reads.

    Attributes:
      scope: the scan whose body reads it, or None at the top.
      var: its variable in the traced program.
    """

    scope: int | None
    var: core.Var


@dataclass(frozen=True, kw_only=True)
class Site:
    """One operation of the record part that reads parameter values.

    Attributes:
      index: where its record operands and cotangents are found.
      scope: the scan in whose body it stands, or None.
      equation: the operation; None is the identity (the initial state of a scan).
      values: the parameter values among its operands, by position; others are record data.
      trained: the positions whose values depend on trained parameters.
      is_stacked: which of ``values`` have one slice for each iteration of the scan.
    """

    index: int
    scope: int | None
    equation: core.JaxprEqn | None
    values: dict[int, Value]
    trained: tuple[int, ...]
    is_stacked: dict[int, bool]

    @property
    def name(self) -> str:
        """The name of the operation."""
        return "identity" if self.equation is None else self.equation.primitive.name

    def apply(self, values: dict[int, Array], data: Sequence[Array]) -> list[Array]:
        """Runs the operation for one record and one iteration; returns its float results."""
        if self.equation is None:
            return [values[0]]
        rest = iter(data)
        operands = [
            values[at] if at in values else literal_or(operand, rest)
            for at, operand in enumerate(self.equation.invars)
        ]
        return [out for out in bind(self.equation, operands) if is_float(out)]


@dataclass(frozen=True, kw_only=True)
class Scan:
    """An opened scan: where it stands and how its body is split."""

    index: int
    equation: core.JaxprEqn
    body: "Split"

    @property
    def num_consts(self) -> int:
        """How many operands are the same in every iteration."""
        return int(self.equation.params["num_consts"])

    @property
    def num_carry(self) -> int:
        """How many operands are carried from one iteration to the next."""
        return int(self.equation.params["num_carry"])

    @property
    def length(self) -> int:
        """How many iterations there are."""
        return int(self.equation.params["length"])


@dataclass
class Split:
    """A traced program split by what its variables depend on."""

    jaxpr: core.ClosedJaxpr
    # 0 for the parameter part, 1 for slices of stacked parameters, 2 for record data.
    level: dict[core.Var, int] = field(default_factory=dict)
    # On which trained parameters a variable of the parameter part depends.
    depends: dict[core.Var, frozenset[int]] = field(default_factory=dict)
    equations: dict[int, list[core.JaxprEqn]] = field(default_factory=lambda: {0: [], 1: [], 2: []})
    # By identity of an equation of the record part: its site, or the scan that it opens.
    special: dict[int, Any] = field(default_factory=dict)

    def inputs(self, level: int) -> list[core.Var]:
        """Returns the inputs of a level."""
        return [var for var in self.jaxpr.jaxpr.invars if self.level[var] == level]

    def level_of(self, operand: core.Var | core.Literal) -> int:
        """Returns the level of an operand; a literal is part of the program."""
        return 0 if isinstance(operand, core.Literal) else self.level[operand]

    def depends_of(self, operand: core.Var | core.Literal) -> frozenset[int]:
        """Returns the trained parameters on which an operand depends."""
        return frozenset() if isinstance(operand, core.Literal) else self.depends[operand]
