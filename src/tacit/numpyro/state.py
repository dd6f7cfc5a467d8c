"""The state of a private run, in the shape of NumPyro's, and which part of it may be published."""

import zlib
from typing import Any, NamedTuple

from tacit.numpyro.method import ProgramSVI, StepState
from tacit.privacy.events import event_to_json
from tacit.rng import fresh_key
from tacit.typing import Array, Key, Tree

__all__ = ["DPSVIState", "fingerprint_of"]


class DPSVIState(NamedTuple):
    """The state of a run: `numpyro.infer.svi.SVIState` and what privacy needs beside it.

    A state is there to be used once. Steps that are taken twice from one state inside compiled
    code have the same noise; outside, each call of `DPSVI.update` draws its own. Printed or
    pickled, a state is without its secret key; one that is read back has a new one.

    Attributes:
      optim_state: of the optimiser; may be published.
      mutable_state: always None; programs with mutable state are refused.
      rng_key: of the guide's draws; may be published.
      step: how many steps were made; may be published.
      fingerprint: tells states of one configuration from those of others; may be published.
      private_key: SECRET, of batches and noise inside compiled code. Each step replaces it, so that
        it tells nothing of the noise of earlier ones.
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

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields[:-1])
        return f"DPSVIState({fields}, private_key=<secret>)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_fresh_key, tuple(self)[:-1]

    def moved_to(self, public: StepState) -> "DPSVIState":
        """Returns the state after some steps."""
        return self._replace(
            optim_state=public.optim_state, rng_key=public.rng_key, step=public.step
        )


def _with_fresh_key(
    optim_state: Tree, mutable_state: None, rng_key: Key, step: Array, fingerprint: Array
) -> DPSVIState:
    return DPSVIState(optim_state, mutable_state, rng_key, step, fingerprint, fresh_key())


def fingerprint_of(method: ProgramSVI, *, is_secure: bool) -> int:
    """Returns a number that tells what steps are worth apart; all that goes into it is public."""
    cost = event_to_json(method.cost(1))
    text = f"{method.num_records} {cost} {method.loss} {method.shares_batches} {is_secure}"
    return zlib.crc32(text.encode())
