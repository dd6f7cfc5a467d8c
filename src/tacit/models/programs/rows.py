"""Rows: a handler that runs a program on a few records, whatever size its record plate has."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.primitives import _PYRO_STACK, Messenger

from tacit.errors import InvalidArgumentError
from tacit.typing import Key

__all__ = ["RecordRows", "in_plate", "one_for_each_record"]


def in_plate(site: Any, plate: str) -> bool:
    """Whether a site of a trace stands inside a plate."""
    return any(frame.name == plate for frame in site.get("cond_indep_stack", ()))


def one_for_each_record(name: str) -> InvalidArgumentError:
    """Returns the refusal of a parameter that has an entry for each record."""
    return InvalidArgumentError(
        f"the parameter {name!r} has an entry for each record. It would hold that record's own"
        " value, which no noise could hide. Make it a function of the record (an amortised"
        " guide), or a latent in a plate of public groups."
    )


def _length(shape: tuple[int, ...], dim: int) -> int:
    """The length of an axis counted from the right; one where there is none."""
    return shape[dim] if len(shape) >= -dim else 1


class RecordRows(Messenger):  # type: ignore[misc]
    """Gives the record plate as many rows as the records at hand, at their own scale.

    The plate's indices become ``0 .. num_rows - 1``, so that a program that subsamples inside sees
    just the records it was given, and the factor ``size / num_rows`` that the plate puts on its
    sites is taken off. Other handlers' scales and masks stay.

    The keys that the program draws are those it would draw on the whole table: what is outside the
    record plate has the same values. Inside, latents are drawn from the record's own key.

    Args:
      fn: the program.
      plate: the name of the record plate.
      num_rows: how many records the program is run on.
      takes_key: whether the plate draws indices when the program runs on the whole table, which
        takes one key from the sequence.
      record_key: where draws inside the plate come from; None leaves them to the program's seed.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        plate: str,
        num_rows: int,
        takes_key: bool,
        record_key: Key | None,
    ) -> None:
        super().__init__(fn)
        self._plate = plate
        self._num_rows = num_rows
        self._takes_key = takes_key
        self._record_key = record_key
        self._size = num_rows
        self._is_taking = False

    def process_message(self, msg: Any) -> None:
        """Replaces the indices of the plate, and scale and key of what is inside."""
        kind = msg["type"]
        if kind == "plate" and msg["name"] == self._plate:
            self._resize(msg)
        elif kind == "sample" and in_plate(msg, self._plate):
            if self._size != self._num_rows:
                msg["scale"] = msg["scale"] / (self._size / self._num_rows)
            if msg["value"] is None and msg["kwargs"]["rng_key"] is None:
                msg["kwargs"]["rng_key"] = self._own_key()
        elif kind == "prng_key" and not self._is_taking and self._is_inside():
            msg["kwargs"]["rng_key"] = self._own_key()
        elif kind == "subsample" and self._is_inside():
            # The rows at hand are the subsample; the plate would ask for the whole table.
            msg["kwargs"]["event_dim"] = None

    def postprocess_message(self, msg: Any) -> None:
        """Refuses what has rows that are not those of the records at hand."""
        dims = [frame.dim for frame in msg.get("cond_indep_stack", ()) if frame.name == self._plate]
        if not dims:
            return
        if msg["type"] == "param" and msg["kwargs"].get("event_dim") is not None:
            # The plate would index it, as soon as it hears of it.
            if _length(jnp.shape(msg["value"]), dims[0] - msg["kwargs"]["event_dim"]) != 1:
                raise one_for_each_record(msg["name"])
        elif msg["type"] == "sample":
            event_dim = len(msg["fn"].event_shape)
            lengths = (
                _length(tuple(msg["fn"].batch_shape), dims[0]),
                _length(jnp.shape(msg["value"]), dims[0] - event_dim),
            )
            if any(length not in (1, self._num_rows) for length in lengths):
                raise InvalidArgumentError(
                    f"the site {msg['name']!r} has {max(lengths)} rows when the program is run on"
                    f" {self._num_rows} of the records. Its rows must be those of its arguments:"
                    " pass all records as arguments and close over none."
                )

    def _resize(self, msg: Any) -> None:
        self._size = msg["args"][0]
        if self._takes_key:
            self._take_key()
        msg["value"] = jnp.arange(self._num_rows)
        msg["args"] = (self._size, self._num_rows)

    def _own_key(self) -> Key | None:
        if self._record_key is None:
            return None
        self._take_key()
        self._record_key, own = jax.random.split(self._record_key)
        return own

    def _take_key(self) -> None:
        """Takes one key from the program's sequence, so that later sites have the usual ones."""
        self._is_taking = True
        numpyro.prng_key()
        self._is_taking = False

    def _is_inside(self) -> bool:
        return any(
            isinstance(handler, numpyro.plate) and handler.name == self._plate
            for handler in _PYRO_STACK
        )
