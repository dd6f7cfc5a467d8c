"""Membership inference on a model: was this record in the table that it was trained on?

A random part of the table are canaries; a fair coin says which of them the run may see. The attack
looks at what the run published and at the canaries, never at the coins, and its guesses give a
lower bound on epsilon for this one run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tacit import _check, _tree
from tacit.audit.canaries import coins, one_run_result
from tacit.audit.lira import lira_scores, shadow_coins
from tacit.audit.result import OWNER_SIDE, SYNTHETIC, AuditedData, AuditResult
from tacit.audit.training import Trainer, canary_scores, weighted
from tacit.errors import InvalidArgumentError
from tacit.typing import Array, Record

__all__ = ["LiRA", "LossAttack", "audit_membership"]


@dataclass(frozen=True, kw_only=True)
class LossAttack:
    """The simplest attack: who is predicted well was there."""

    @property
    def sentence(self) -> str:
        """What it is, for a report."""
        return "membership inference by how well each record is predicted"


@dataclass(frozen=True, kw_only=True)
class LiRA:
    """The likelihood-ratio attack: compares with models trained with and without the record.

    Args:
      num_shadows: how many models; each has every canary with probability one half.
      is_online: whether models with the canary are used too; offline attacks are weaker.

    Reference:
      Carlini et al., "Membership inference attacks from first principles" (2022).
    """

    num_shadows: int = 32
    is_online: bool = True

    @property
    def sentence(self) -> str:
        """What it is, for a report."""
        way = "online" if self.is_online else "offline"
        return f"likelihood-ratio membership inference ({way}, {self.num_shadows} shadow models)"


def audit_membership(
    trainer: Trainer,
    records: Record,
    *,
    num_canaries: int,
    attack: LossAttack | LiRA | None = None,
    confidence: float = 0.95,
    is_synthetic: bool = False,
    seed: int | None = None,
) -> AuditResult:
    """Audits a run of any method on any model, on the records themselves.

    Guarantee:
      If the run is as private as its statement says, a violation is reported with probability at
      most ``1 - confidence``, whatever the attack. The result itself is computed from the records
      and is not covered by any guarantee, unless they are synthetic.

    Args:
      trainer: trains the run under attack: `PlanTrainer` or `FunctionTrainer`.
      records: the table that it would be trained on.
      num_canaries: how many random records of it get a coin; the others are always there.
      attack: how canaries are scored; `LossAttack` by default.
      confidence: of lower bound and verdict.
      is_synthetic: whether the records are made up, so that the result may be published.
      seed: for tests; fresh coins and noise by default.
    """
    _check.fraction(one=False, confidence=confidence)
    num_records = _tree.num_records(records)
    _check.positive_integer(num_canaries=num_canaries)
    if num_canaries > num_records:
        raise InvalidArgumentError(
            f"num_canaries must be at most the table's {num_records} records; got {num_canaries}."
        )
    attack = attack or LossAttack()
    generator = np.random.default_rng(None if seed is None else [seed, 0x0E1E])
    rows = generator.choice(num_records, num_canaries, replace=False)
    canaries: Record = _tree.take(records, jnp.asarray(rows))
    is_present = coins(num_canaries, seed=seed)
    posterior = trainer.train(
        weighted(records, _presence(is_present, rows, num_records)), seed=seed
    )
    epsilon, delta = _claim(posterior.statement)
    scores: NDArray[np.float64] | Array = canary_scores(
        posterior.model, posterior.draws(), canaries
    )
    if isinstance(attack, LiRA):
        shadow_has = shadow_coins(attack.num_shadows, num_canaries, seed=seed)
        presence = np.stack([_presence(row, rows, num_records) for row in shadow_has])
        shadows = trainer.shadow_scores(records, presence, canaries, seed=seed)
        scores = lira_scores(scores, shadows, shadow_has, is_online=attack.is_online)
    return one_run_result(
        np.asarray(scores),
        is_present,
        attack=f"{attack.sentence}, {num_canaries} canaries in one run",
        data=AuditedData(
            name="synthetic records" if is_synthetic else "the private records themselves",
            num_records=num_records,
            public=is_synthetic,
            statement=SYNTHETIC if is_synthetic else OWNER_SIDE,
        ),
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
    )


def _presence(
    is_present: NDArray[np.bool_], rows: NDArray[np.int64], num_records: int
) -> NDArray[np.float32]:
    presence = np.ones(num_records, np.float32)
    presence[rows] = is_present
    return presence


def _claim(statement: Mapping[str, Any]) -> tuple[float, float]:
    try:
        return float(statement["epsilon"]), float(statement["delta"])
    except (KeyError, TypeError, ValueError):
        raise InvalidArgumentError(
            "trainer must return a posterior with a privacy statement, which is what is audited;"
            f" got the statement {statement!r}."
        ) from None
