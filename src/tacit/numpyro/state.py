"""The state of a private run, in the shape of NumPyro's, and which part of it may be published."""

import zlib
from typing import NamedTuple

import jax.numpy as jnp

from tacit.numpyro.method import ProgramSVI, StepState
from tacit.privacy.events import event_to_json
from tacit.typing import Array, Key, Tree

__all__ = ["DPSVIState", "fingerprint_of"]


class DPSVIState(NamedTuple):
    """The state of a run: `numpyro.infer.svi.SVIState` and what privacy needs beside it.

    A state is there to be used once. Steps that are taken twice from one state inside compiled
    code have the same noise; outside, each call of `DPSVI.update` draws its own.

    Attributes:
      optim_state: of the optimiser; may be published.
      mutable_state: always None; programs with mutable state are refused.
      rng_key: of the guide's draws; may be published.
      step: how many steps were made; may be published.
      fingerprint: tells states of one configuration from those of others; may be published.
      private_key: SECRET, of batches and noise inside compiled code. It is never saved; whoever
        has it can take the noise off.
    """

    optim_state: Tree
    mutable_state: None
    rng_key: Key
    step: Array
    fingerprint: Array
    private_key: Key

    @property
    def public(self) -> StepState:
        """What a step carries; all of it may be published."""
        return StepState(self.optim_state, self.rng_key, self.step)

    def moved_to(self, public: StepState) -> "DPSVIState":
        """Returns the state after some steps."""
        return self._replace(
            optim_state=public.optim_state, rng_key=public.rng_key, step=public.step
        )


def fingerprint_of(method: ProgramSVI) -> Array:
    """Returns a number that tells costs of steps apart; all that goes into it is public."""
    text = f"{method.num_records} {event_to_json(method.cost(1))} {method.loss}"
    return jnp.asarray(zlib.crc32(text.encode()), jnp.uint32)
