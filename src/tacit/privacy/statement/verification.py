"""Verifying a privacy statement from the file alone, by a second accountant."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.errors import TacitError
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.accounting.rules import Adjacency
from tacit.privacy.statement import text
from tacit.privacy.statement.fields import checksum, missing_fields
from tacit.privacy.statement.second_accountant import (
    Leaf,
    attack_from_curve,
    epsilons_from_json,
    releases_from_json,
)

__all__ = ["Verification", "verify_statement"]

_SLACK = 1e-3
"""Two pessimistic grids differ by less than this part of epsilon."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What the second accountant found.

    Attributes:
      holds: whether the claim holds; False also where nothing is promised, or cannot be checked.
      verdict: one line for people.
      claimed: the statement's epsilon; infinite where it promises nothing; None if unreadable.
      recomputed: the second accountant's epsilon, an upper bound; None where it could not be had.
      delta: at which both hold.
      problems: everything that is wrong, a line each.
    """

    holds: bool
    verdict: str
    claimed: float | None
    recomputed: float | None
    delta: float | None
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON-able data; an infinite number is the text 'infinity'."""

        def plain(value: Any) -> Any:
            return "infinity" if isinstance(value, float) and math.isinf(value) else value

        return {key: plain(value) for key, value in dataclasses.asdict(self).items()}


def verify_statement(
    document: Mapping[str, Any], *, sealed: Mapping[str, Any] | None = None
) -> Verification:
    """Recomputes epsilon from a statement alone and says whether its claim holds.

    Guarantee:
      Nothing of tacit's own accounting is used: the cost is read from the JSON and composed by
      dp_accounting's loss distributions, an upper bound. The claim holds if it is no more than a
      thousandth below. That says that the accounting is right, not that the run was honest: an
      invented cost gives a consistent statement.

    Args:
      document: `Statement.to_json`, or what is in ``statement.json``.
      sealed: another copy, from the posterior, that must say the same.

    Example:
      >>> import dp_accounting as dpa
      >>> from tacit.privacy.budget import Budget
      >>> from tacit.privacy.cost import Cost
      >>> from tacit.privacy.statement.construction import make_statement
      >>> statement = make_statement(
      ...     cost=Cost(dpa.GaussianDpEvent(4.0), is_secure=True),
      ...     budget=Budget(epsilon=1.0, delta=1e-5), unit="one record", num_units=1000)
      >>> verify_statement(statement.to_json()).holds
      True
      >>> verify_statement(statement.to_json() | {"epsilon": 0.5}).holds
      False
    """
    missing = missing_fields(document)
    if missing:
        return _unreadable(f"the statement has no {', '.join(missing)}")
    try:
        claimed = float(document["epsilon"])
        delta = float(document["delta"])
        adjacency = str(document["adjacency"]).partition(":")[0]
        if math.isnan(claimed) or claimed < 0 or not 0 < delta < 1:
            return _unreadable(f"epsilon {claimed!r} at delta {delta!r} is no promise")
        counts = releases_from_json(document["cost"], adjacency=adjacency)
        problems = list(_contradictions(document, counts))
        recomputed = math.inf
        if math.isfinite(claimed):
            points = [(float(row["epsilon"]), float(row["delta"])) for row in document["curve"]]
            recomputed, *others = epsilons_from_json(
                counts,
                adjacency=adjacency,
                deltas=[delta, *(point[1] for point in points)],
                near=claimed,
            )
            problems += _unfounded(points, others)
    except TacitError as error:
        return _unreadable(f"{error}")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        return _unreadable(f"a field is wrong ({type(error).__name__}: {error})")
    if sealed is not None and any(document.get(key) != value for key, value in sealed.items()):
        problems.append("it is not the statement in posterior.json: one of them was altered")
    if math.isinf(claimed):
        problems.insert(0, "NOT PRIVATE: the statement promises nothing; publish nothing of it")
    elif recomputed > claimed * (1 + _SLACK):
        problems.insert(
            0, f"the claim is TOO SMALL: {claimed:g} is claimed, {recomputed:.4g} was spent"
        )
    if not document["is_secure"]:
        problems.append("INSECURE: the noise came from a known seed, which takes it off again")
    verdict = (
        "; ".join(problems)
        if problems
        else f"the claim holds: epsilon {claimed:g} is claimed, {recomputed:.4g} was spent"
    )
    return Verification(
        holds=not problems,
        verdict=verdict,
        claimed=claimed,
        recomputed=recomputed,
        delta=delta,
        problems=tuple(problems),
    )


def _contradictions(document: Mapping[str, Any], counts: Counter[Leaf]) -> Iterator[str]:
    """Yields what the statement says twice, and differently."""
    if "sha256" in document and document["sha256"] != checksum(document):
        yield "ALTERED: the statement does not match its checksum"
    epsilon, curve, attack = (
        float(document["epsilon"]),
        document["curve"],
        document["best_attack"],
    )
    claimed = round_up(epsilon)
    words = text.epsilon_text(
        claimed, is_bound=bool(document["is_bound"]), is_secure=bool(document["is_secure"])
    )
    if words != document["epsilon_text"]:
        yield f"ALTERED: epsilon is {claimed}, but epsilon_text is {document['epsilon_text']!r}"
    if document["summary"] != text.summary(document):
        yield "ALTERED: the summary is not that of this promise"
    adjacency = Adjacency(str(document["adjacency"]).partition(":")[0])
    if document["adjacency"] != f"{adjacency}: {adjacency.sentence}":
        yield "ALTERED: the adjacency is not what its name means"
    if math.isfinite(epsilon):
        if {"delta": document["delta"], "epsilon": epsilon} not in curve:
            yield "ALTERED: epsilon is not on the curve"
        if attack is None or not _is_founded(attack, curve):
            yield "ALTERED: the best attack is not that of the curve"
    sizes = {int(engine["num_records"]) for engine in document["engines"]}
    units = int(document["num_units"])
    if any(size > units for size in sizes) or (
        document["composition"] == text.SEQUENTIAL and sizes - {units}
    ):
        yield f"ALTERED: there are {units} units, but sums over {sorted(sizes)} records"
    if (
        document["is_secure"]
        and "INSECURE" in f"{document['randomness']}{document['epsilon_text']}"
    ):
        yield "ALTERED: is_secure says the opposite of randomness"
    if document["arithmetic"] != text.ARITHMETIC:
        yield f"ALTERED: nothing is known of the arithmetic {document['arithmetic']!r}"
    if counts and _extremes(document["releases_made"]) != _extremes_of(counts):
        yield "ALTERED: releases_made does not list the releases of cost"


def _unfounded(points: list[tuple[float, float]], found: list[float]) -> Iterator[str]:
    """Yields the points of a curve that claim too little."""
    for (epsilon, delta), recomputed in zip(points, found, strict=True):
        # Rounded up in the third digit; small ones are lost in two different grids.
        if recomputed > epsilon * (1 + _SLACK) + 1e-3:
            yield f"ALTERED: epsilon at delta {delta:g} is {recomputed:.4g}, not {epsilon:g}"


def _is_founded(attack: Mapping[str, Any], curve: list[Mapping[str, Any]]) -> bool:
    found = attack_from_curve(curve, float(attack["false_positive_rate"]))
    return abs(found - float(attack["true_positive_rate"])) < 1e-9


def _extremes(rows: list[dict[str, Any]]) -> tuple[int, str, str]:
    return (
        sum(int(row["times"]) for row in rows),
        f"{min(row['lowest_noise_multiplier'] for row in rows):.6g}",
        f"{max(row['highest_noise_multiplier'] for row in rows):.6g}",
    )


def _extremes_of(counts: Counter[Leaf]) -> tuple[int, str, str]:
    noises = [leaf.noise for leaf in counts]
    return sum(counts.values()), f"{min(noises):.6g}", f"{max(noises):.6g}"


def _unreadable(reason: str) -> Verification:
    problem = f"NOT VERIFIABLE: {reason}"
    return Verification(
        holds=False,
        verdict=problem,
        claimed=None,
        recomputed=None,
        delta=None,
        problems=(problem,),
    )
