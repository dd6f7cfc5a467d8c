"""Attacks: search a ball around one input for a point where a loss is large."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.robust.balls import Ball, floating_input
from tacit.typing import Array, Input, Key, Scalar

__all__ = ["FGSM", "PGD", "Attack"]


_Seen: TypeAlias = tuple[Array, Scalar]
"""A point and the loss there."""

_START = 2**31 - 1
"""What the record's key is folded with for random starts; layers use small numbers."""


class Attack(Protocol):
    """Finds a bad point for one input. Public configuration."""

    def __hash__(self) -> int: ...

    @property
    def ball(self) -> Ball:
        """Where it searches."""
        ...

    def at(self, radius: float | Scalar) -> Self:
        """Returns the attack on a ball of another radius, which may be traced."""
        ...

    def __call__(self, key: Key, loss: Callable[[Array], Scalar], x: Input) -> Array:
        """Returns a point of the ball around ``x`` where ``loss`` is large."""
        ...


@dataclass(frozen=True, kw_only=True)
class FGSM:
    """One step of steepest ascent to the edge of the ball; the fast gradient (sign) method.

    Example:
      >>> from tacit.robust.balls import Linf
      >>> attack = FGSM(ball=Linf(radius=0.25))
      >>> attack(jax.random.key(0), lambda x: x[0] - 2.0 * x[1], jnp.zeros(2))
      Array([ 0.25, -0.25], dtype=float32)

    Reference:
      Goodfellow, Shlens and Szegedy, Explaining and harnessing adversarial examples, ICLR 2015.
    """

    ball: Ball

    def at(self, radius: float | Scalar) -> Self:
        """Returns the attack on a ball of another radius, which may be traced."""
        return replace(self, ball=self.ball.at(radius))

    def __call__(self, key: Key, loss: Callable[[Array], Scalar], x: Input) -> Array:
        """Returns the end of the step, inside the range; nothing is random."""
        del key
        x = floating_input(x)
        return self.ball.project(x + self.ball.ascend(jax.grad(loss)(x), self.ball.radius), x)


@dataclass(frozen=True, kw_only=True)
class PGD:
    """Projected gradient ascent; returns the worst point that it has seen, ``x`` included.

    Each step is a steepest ascent, projected on the ball around the ORIGINAL input and on the
    range. Memory does not grow with steps or restarts.

    Attributes:
      ball: where it searches.
      num_steps: of each restart.
      step_size: in the ball's norm; by default ``2.5 * radius / num_steps``, with which a start
        anywhere in the ball can reach any other point of it, and turn.
      num_restarts: how many starts are tried.
      random_start: whether to start anywhere in the ball, or at the input itself.

    Example:
      >>> from tacit.robust.balls import L2
      >>> attack = PGD(ball=L2(radius=5.0), random_start=False)
      >>> x = attack(jax.random.key(0), lambda x: 3.0 * x[0] + 4.0 * x[1], jnp.zeros(2))
      >>> bool(jnp.allclose(x, jnp.array([3.0, 4.0]), atol=1e-3))
      True

    Reference:
      Madry et al., Towards deep learning models resistant to adversarial attacks, ICLR 2018.
    """

    ball: Ball
    num_steps: int = 20
    step_size: float | None = None
    num_restarts: int = 1
    random_start: bool = True

    def __post_init__(self) -> None:
        _check.positive_integer(num_steps=self.num_steps, num_restarts=self.num_restarts)
        if self.step_size is not None:
            _check.positive(step_size=self.step_size)
        if self.num_restarts > 1 and not self.random_start:
            raise InvalidArgumentError(
                f"num_restarts must be 1 where random_start is False; got {self.num_restarts}."
                " All restarts would be the same."
            )

    def at(self, radius: float | Scalar) -> Self:
        """Returns the attack on a ball of another radius, which may be traced."""
        return replace(self, ball=self.ball.at(radius))

    def __call__(self, key: Key, loss: Callable[[Array], Scalar], x: Input) -> Array:
        """Returns the point with the largest loss among all that were visited."""
        centre = floating_input(x)
        given = self.step_size
        size = 2.5 * self.ball.radius / self.num_steps if given is None else given

        def step(carry: tuple[Array, _Seen], _: None) -> tuple[tuple[Array, _Seen], None]:
            x, worst = carry
            value, gradient = jax.value_and_grad(loss)(x)
            moved = self.ball.project(x + self.ball.ascend(gradient, size), centre)
            return (moved, _worse(worst, (x, value))), None

        def restart(worst: _Seen, number: Array) -> tuple[_Seen, None]:
            start = centre
            if self.random_start:
                start_key = jax.random.fold_in(jax.random.fold_in(key, _START), number)
                start = self.ball.sample(start_key, centre)
            (last, worst), _ = lax.scan(step, (start, worst), length=self.num_steps)
            return _worse(worst, (last, loss(last))), None

        worst, _ = lax.scan(restart, (centre, loss(centre)), jnp.arange(self.num_restarts))
        return worst[0]


def _worse(one: _Seen, other: _Seen) -> _Seen:
    # A loss that is not a number is never larger, so it never replaces a point that has one.
    is_worse = other[1] > one[1]
    return jnp.where(is_worse, other[0], one[0]), jnp.where(is_worse, other[1], one[1])
