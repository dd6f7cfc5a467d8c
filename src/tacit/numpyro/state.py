"""The state of a private run, in the shape of NumPyro's, and what of it may be published."""

import zlib
from typing import Any, NamedTuple

from tacit.numpyro.method import ProgramSVI, StepState
from tacit.privacy.cost import event_to_json
from tacit.rng import fresh_key
from tacit.typing import Array, Key, Tree

__all__ = ["DPSVIState", "fingerprint_of"]


class DPSVIState(NamedTuple):
    """The state of a run: `numpyro.infer.svi.SVIState` and what privacy needs beside it.

    A state is there to be used once. A statement counts the steps that led to *one* state: two
    steps from the same state are two releases, and it knows of one of them. Publish what comes of
    one, or add up the costs of both, as a ledger does. Outside compiled code `DPSVI` warns of it;
    inside, nothing can be seen. Steps from one state never share their noise, unless they are the
    same in every bit of state, records and mask: outside compiled code each draws its own, inside
    it follows from all of these and the secret key. Printed or pickled, a state is without its
    secret key; one that is read back has a new one.

    Attributes:
      optim_state: of the optimiser; may be published.
      mutable_state: always None; programs with mutable state are refused.
      rng_key: of the guide's draws; may be published.
      step: how many steps were made; may be published.
      fingerprint: tells states of one configuration from those of others; may be published.
      declared: how many steps were declared before the first, 0 if none were; may be published.
      private_key: SECRET, of batches and noise inside compiled code. Each step replaces it, so that
        it tells nothing of the noise of earlier ones.
    """

    optim_state: Tree
    mutable_state: None
    rng_key: Key
    step: Array
    fingerprint: Array
    declared: Array
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


def _with_fresh_key(*public: Any) -> DPSVIState:
    return DPSVIState._make((*public, fresh_key()))


def fingerprint_of(method: ProgramSVI, *, is_secure: bool) -> int:
    """Returns a number that tells what steps are worth apart; all that goes into it is public."""
    cost = event_to_json(method.cost(1))
    text = f"{method.public_records} {cost} {method.loss} {method.shares_batches} {is_secure}"
    return zlib.crc32(text.encode())
