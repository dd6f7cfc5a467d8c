"""The table of the results, in Markdown, so that it can be printed and pasted alike."""

from collections.abc import Callable, Sequence

from benchmarks.peers import PEERS
from benchmarks.rows import Row

__all__ = ["render"]


def render(rows: Sequence[Row]) -> str:
    """Returns one line for each row; a target that is missed is named beside its value."""
    columns: dict[str, Callable[[Row], str]] = {
        "workload": lambda row: row["workload"],
        "batch (padded)": _batch,
        "plain ms": lambda row: _number(row["plain_ms"]),
        "clipped ms": lambda row: _number(row["clipped_ms"]),
        "ratio": lambda row: _judged(row, "gradient_ratio", row["gradient_ratio"]),
        "plain step ms": lambda row: _number(row.get("plain_step_ms")),
        "private step ms": lambda row: _number(row["step_ms"]),
        "ratio ": lambda row: _number(row["step_ratio"]),
        "of plain + noise": lambda row: _judged(
            row, "step_bound_ratio", row.get("step_bound_ratio")
        ),
        "without padding": lambda row: _number(row.get("equal_batch_bound_ratio")),
        **{f"× {peer}": _speedup(peer) for peer in PEERS},
        "memory": lambda row: _judged(row, "peak_memory_ratio", row["peak_memory_ratio"]),
    }
    lines = [list(columns), ["---"] * len(columns)]
    lines += [[cell(row) for cell in columns.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def _batch(row: Row) -> str:
    return f"{row['batch']} ({row['capacity']})" if "capacity" in row else f"{row['batch']}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _judged(row: Row, name: str, value: float | None) -> str:
    if name not in row["missed"]:
        return _number(value)
    bound = "≥" if name.startswith("speedup") else "≤"
    return f"{_number(value)} (missed: {bound} {row['targets'][name]:g})"


def _speedup(peer: str) -> Callable[[Row], str]:
    return lambda row: _judged(row, f"speedup_over.{peer}", row["speedup_over"][peer])
