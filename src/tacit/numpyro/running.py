"""Running many steps: what `tacit.fit` does, from a state of NumPyro's shape and back to one."""

from dataclasses import replace
from typing import cast

import jax
import jax.numpy as jnp

from tacit.inference.checkpoint import Checkpoint
from tacit.inference.fit import fit
from tacit.inference.plan import Plan
from tacit.inference.progress import OnProgress
from tacit.models import Model
from tacit.numpyro.method import StepState
from tacit.numpyro.prepared import Prepared
from tacit.numpyro.state import DPSVIState
from tacit.privacy.budget import Ledger
from tacit.privacy.cost import Cost
from tacit.typing import Array, Record

__all__ = ["run_steps"]


def run_steps(
    prepared: Prepared,
    state: DPSVIState,
    num_steps: int,
    records: Record,
    *,
    skip_non_finite: bool,
    seed: int | None,
    ledger: Ledger | None,
    run_id: str | None,
    progress: OnProgress | None,
) -> tuple[DPSVIState, Array, str | None]:
    """Returns the state after so many steps more, the loss of each, and what the ledger calls it.

    Guarantee:
      As `tacit.fit`: budget and ledger are asked before any record is read, the key is fresh, and
      the ledger is charged before each chunk.
    """
    method = replace(
        prepared.resolved.method,
        skip_non_finite=skip_non_finite,
        # `fit` makes a state to see its shapes: it must be one of the same kind of keys.
        key_impl=jax.random.key_impl(state.rng_key),
    )
    start = int(state.step)
    plan = Plan(
        method=method,
        num_steps=start + num_steps,
        burn_in=start,
        thinning=1 if method.has_losses else None,
    )
    made = fit(
        plan,
        # `fit` hands it on to the method's `build` and looks at nothing of it.
        cast(Model, prepared.program),
        records,
        budget=prepared.resolved.budget,
        seed=seed,
        ledger=ledger,
        progress=progress,
        resume=Checkpoint(
            step=start,
            states=jax.tree.map(lambda leaf: leaf[None], state.public),
            kept=None,
            info=None,
            cost=Cost.nothing() if start == 0 else Cost(method.cost(start), seed is None),
            run_id=run_id,
            declared=prepared.declared_of(state),
        ),
    ).checkpoint
    last = StepState(*jax.tree.map(lambda leaf: leaf[0], made.states))
    losses = made.info.loss[0] if method.has_losses else jnp.full(num_steps, jnp.nan)
    return state.moved_to(last), losses, made.run_id
