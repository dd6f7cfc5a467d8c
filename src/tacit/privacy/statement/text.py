"""The words of a privacy statement."""

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from tacit.privacy.accounting.rules import Adjacency

__all__ = [
    "ARITHMETIC",
    "CHARGED",
    "COVERED",
    "FIXED",
    "MECHANISM",
    "NOISE",
    "NOT_COVERED",
    "OTHER_RELEASES",
    "RECOMPUTE",
    "SECRET",
    "SEEDED",
    "SENSITIVITY",
    "SEQUENTIAL",
    "SHOWN",
    "THREAT_MODEL",
    "clipped_records",
    "describe_engine",
    "describe_release",
    "epsilon_text",
    "full",
    "is_declared",
    "not_protected",
    "percent_up",
    "promise",
    "sections",
    "short",
    "summary",
]

FIXED = "declared before the first, and all of them made"

SEQUENTIAL = "sequential: every record pays for every release"

MECHANISM = (
    "Gaussian noise on sums of clipped per-record values (Dwork and Roth 2014, appendix A), one"
    " release after another (Abadi et al. 2016), on {batches}"
)

ARITHMETIC = "integers on a lattice; Gaussian noise rounded to it and sampled exactly"

NOISE = "Gaussian, rounded to a lattice and sampled exactly; no tail is cut"

SECRET = "ChaCha20, 256-bit key from the operating system"

SEEDED = "ChaCha20 from a known seed: INSECURE, anyone who has it can take the noise off"

SENSITIVITY = (
    "one record adds at most the clip norm to a sum, as the machine computes it: rounding is inside"
    " the bound"
)

THREAT_MODEL = (
    "an adversary who knows every record but one, the plan and this statement, who sees every"
    " state of every chain and not only the last, and has any amount of computing power; not one"
    " who sees the noise's key, or the machine while it runs"
)

COVERED = (
    "the posterior: all retained states",
    "checkpoints, the method's public Info and the progress of epsilon",
    "whatever is computed from these without looking at the records again",
)

NOT_COVERED = (
    "the records themselves, and any file made from them",
    "metrics, predictions and plots on private records, unless they say what they cost",
    "figures seen while choosing settings, unless tuning says that they are counted",
)

OTHER_RELEASES = "unknown to this run: earlier and later releases on the same records add up"

CHARGED = (
    "this run was charged to its owner's ledger, which holds the sum over all runs on these records"
)

RECOMPUTE = (
    "Run `tacit statement --verify` on this file. By hand, with dp_accounting alone: rebuild"
    " `cost` (each `kind` is a class of dp_accounting, the other entries its arguments; of a"
    " ParallelDpEvent take `event`, once; a ConditionedPoissonDpEvent costs no more than a"
    " PoissonSampledDpEvent of its `sampling_probability` and `event`), compose it in a"
    " PLDAccountant of the stated adjacency, and ask for epsilon at `delta`. It must not exceed"
    " `epsilon`, but for conditioned batches, which cost up to a hundredth less than Poisson"
    " batches: docs/accounting.md has the factor."
)

SHOWN = (
    *("unit of privacy", "adjacency", "method", "releases"),
    *("clipped records", "accountant", "tuning", "date"),
)
"""What of the full statement is shown in a notebook."""

_TUNING = {
    "none": "none: settings were fixed before anyone looked at the records",
    "public": "on public records only",
    "simulated": "tuned on simulated records; these were not looked at",
    "counted": "on these records, and counted in this epsilon or in the owner's ledger",
    "not counted": (
        "not counted: if settings were chosen by looking at these records, as by comparing runs,"
        " that adds to this epsilon"
    ),
}


def is_declared(document: Mapping[str, Any]) -> bool:
    """Whether the number of units is a declared upper bound, and the true one is private."""
    return str(document["adjacency"]).startswith(Adjacency.ADD_REMOVE.value)


def not_protected(document: Mapping[str, Any]) -> str:
    """Returns what is taken as public."""
    number = "declared number" if is_declared(document) else "number"
    return f"the {number} of units, the schema, the list of classes, the plan"


def _unit(document: Mapping[str, Any]) -> str:
    most = "at most " if is_declared(document) else ""
    return f"{document['unit']}; {most}{document['num_units']} of them"


def summary(document: Mapping[str, Any]) -> str:
    """Returns the promise in plain language."""
    epsilon = float(document["epsilon"])
    if math.isinf(epsilon):
        return (
            "This run promises no privacy at all. Whoever sees its results may learn anything"
            " about anyone in the data. Publish nothing of it."
        )
    person = document["unit"].split(" (")[0].removeprefix("one ").split(",")[0]
    times = math.exp(min(epsilon, 700))
    factor = f"{math.ceil(100 * times) / 100:.2f}" if times < 100 else f"{1.05 * times:.1e}"
    is_replaced = str(document["adjacency"]).startswith("replace-one")
    change = (
        f"Replace any one {person} by any other"
        if is_replaced
        else f"Take any one {person} out of the data"
    )
    attack = document["best_attack"]
    sentences = [
        f"{change}: no outcome of this run becomes more than {factor} times as likely, or as"
        f" unlikely, up to a chance of {document['delta']:g}.",
    ]
    if attack is not None:
        sentences.append(
            f"So a test that wrongly accuses {100 * attack['false_positive_rate']:.3g} % of the"
            f" absent can find at most {percent_up(attack['true_positive_rate'])} of the present,"
            " whatever else its author knows."
        )
    sentences.append(
        "It does not hide what is true of many at once: that is what a model is to learn."
    )
    if document["delta"] >= 1 / document["num_units"]:
        sentences.append(
            f"MIND: delta is not below 1/{document['num_units']}, so a run that publishes one of"
            " them outright would keep this promise too."
        )
    if not document["is_bound"]:
        sentences.insert(0, "NOT A GUARANTEE: epsilon was approximated.")
    if not document["is_secure"]:
        sentences.insert(
            0, "INSECURE: the noise came from a known seed, so none of this holds in earnest."
        )
    return " ".join(sentences)


def percent_up(share: float, *, digits: int = 1) -> str:
    """Returns a share of which is said "at most": never rounded down.

    Example:
      >>> percent_up(0.0341)
      '3.5 %'
    """
    scale = 10**digits
    # A hair against floating point, so that an exact tenth stays one.
    return f"{math.ceil(100 * scale * share - 1e-6) / scale:.{digits}f} %"


def epsilon_text(epsilon: str, *, is_bound: bool, is_secure: bool) -> str:
    """Returns an epsilon that was rounded up, with what must be said beside it."""
    if epsilon == "infinity":
        return epsilon
    words = epsilon if is_bound else f"about {epsilon}"
    return words if is_secure else f"{words} INSECURE"


def promise(document: Mapping[str, Any]) -> str:
    """Returns the first line: what is promised, or that nothing is."""
    if math.isinf(float(document["epsilon"])):
        return "NOT PRIVATE: epsilon is infinity; publish nothing of this run."
    line = f"({document['epsilon_text']}, {document['delta']:g})-differentially private"
    return line if document["is_bound"] else f"approximately {line}: NOT A GUARANTEE"


def short(document: Mapping[str, Any]) -> str:
    """Returns the statement in a few lines."""
    rows = {
        "adjacency": document["adjacency"],
        "unit": _unit(document),
        "accountant": document["accountant"],
        "releases": document["releases"],
        "length": document["length"],
        "composition": document["composition"],
        "randomness": document["randomness"],
        "noise": document["noise"],
        "sensitivity": document["sensitivity"],
        "clipped": clipped_records(document),
        "not covered": document["not_protected"],
        "date": document["date"],
    }
    if not rows["clipped"]:
        del rows["clipped"]
    if document["composition"] == SEQUENTIAL:
        del rows["composition"]
    if document["length"] == FIXED:
        del rows["length"]
    return "\n".join([promise(document), *(f"  {name:12} {row}" for name, row in rows.items())])


def clipped_records(document: Mapping[str, Any]) -> str:
    """Returns how many records were clipped, as far as the releases tell; empty if they do not."""
    norms = document["norms"]
    if norms is None:
        return ""
    return (
        f"at most {percent_up(norms['at_most'])} of the records, in the second half of the run"
        " (95 % confidence; counted within the same releases, at no privacy cost)"
    )


def full(document: Mapping[str, Any]) -> str:
    """Returns all of the statement, wrapped, under headings."""
    lines = ["PRIVACY STATEMENT", "", promise(document), ""]
    lines += textwrap.wrap(document["summary"], 92)
    for heading, rows in sections(document):
        lines += ["", heading]
        for name, row in rows:
            lines += textwrap.wrap(
                f"{name:18} {row}", 92, initial_indent="  ", subsequent_indent=" " * 21
            )
    return "\n".join(lines)


def sections(document: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields the headings of a statement, each with its rows of a name and a text."""
    yield (
        "What is promised",
        [
            ("unit of privacy", _unit(document)),
            ("rows per unit", f"at most {document['rows_per_unit']}"),
            ("adjacency", document["adjacency"]),
            ("holds against", document["threat_model"]),
            ("not protected", document["not_protected"]),
            ("covered", "; ".join(document["artefacts_covered"])),
            ("not covered", "; ".join(document["artefacts_not_covered"])),
            ("intended use", document["intended_use"]),
        ],
    )
    yield "What was executed", list(_executed(document))
    yield "How epsilon was computed", list(_accounted(document))
    yield (
        "What else to know",
        [
            ("tuning", _TUNING[document["tuning"]]),
            ("other releases", document["other_releases"]),
            ("audit", document["audit"]),
            ("metrics", document["metrics_data"]),
            ("software", ", ".join(f"{k} {v}" for k, v in document["software"].items())),
            ("date", document["date"]),
            ("version", f"{document['version']} of this statement's fields"),
        ],
    )


def _executed(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "method", document["method"]
    yield "mechanism", document["mechanism"]
    if document["num_steps"] is not None:
        yield "steps", f"{document['num_steps']} of each of {document['num_chains']} chain(s)"
        yield "their number", document["length"]
    yield "releases", f"{document['releases']} noisy sums"
    for row in document["releases_made"]:
        yield "", describe_release(row)
    for engine in document["engines"]:
        yield f"sum {engine['name']!r}", describe_engine(engine)
    yield "composition", document["composition"]
    yield "noise", document["noise"]
    yield "sensitivity", document["sensitivity"]
    if document["norms"] is not None:
        yield "clipped records", clipped_records(document)
    yield "randomness", document["randomness"]


def _accounted(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "accountant", document["accountant"]
    check = document["cross_check"]
    if check is not None:
        yield "cross-check", f"{check['accountant']} gives {check['epsilon']}"
    if document["curve"]:
        pairs = (f"{row['epsilon']:g} at {row['delta']:g}" for row in document["curve"])
        yield "epsilon at delta", "; ".join(pairs)
    yield "to check it", document["recompute"]


def describe_release(row: Mapping[str, Any]) -> str:
    """Returns one kind of release, as executed, in a line."""
    low, high = row["lowest_noise_multiplier"], row["highest_noise_multiplier"]
    noise = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
    size = "" if row["size"] is None else f", size {row['size']}"
    return (
        f"{row['times']} x {row['sampling']}, rate {row['rate']:.6g}{size},"
        f" noise multiplier {noise}"
    )


def describe_engine(engine: Mapping[str, Any]) -> str:
    """Returns one configured sum in a line."""
    included = engine["inclusion_rate"]
    rate = f"rate {engine['rate']:.6g}"
    if included != engine["rate"]:
        rate = f"{rate}, inclusion rate {included:.6g}"
    return (
        f"{engine['clipping']} clip at {engine['clip_norm']}; {engine['sampling']} of"
        f" {engine['num_records']} records, {rate}, at most"
        f" {engine['capacity']} at once; divided by {engine['normaliser']}"
    )
