"""The matrix as people read it: one row a cell, its outcome and what was wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleet.judge import compared, outcome, reason

if TYPE_CHECKING:
    from fleet.matrix import Cell

__all__ = ["table"]

_HEAD = "| cell | outcome | verdict | boot s | s | others of compared | accepted | cached | says |"


def _beside(seen: dict[str, Any], right: dict[str, Any] | None) -> str:
    if right is None:
        return ""
    parts = []
    for level, line in seen["levels"].items():
        if level in right["levels"]:
            some = compared(line["answers"], right["levels"][level]["answers"])
            parts.append(f"{some.others}/{some.tokens} ({some.worst:.2f})")
    return ", ".join(parts)


def _accepted(seen: dict[str, Any]) -> str:
    totals = {"drafted": 0, "accepted": 0}
    for line in seen["levels"].values():
        for name in totals:
            totals[name] += line["counters"].get(name, 0)
    return f"{totals['accepted']}/{totals['drafted']}" if totals["drafted"] else ""


def _row(cell: Cell, line: dict[str, Any], right: dict[str, Any] | None, found: list[str]) -> str:
    seen = line.get("seen") or {}
    came = outcome(line)
    served = came == "served"
    says = "; ".join(found) or ("" if served else reason(line))
    columns = [
        cell.name,
        came,
        "FAIL" if found else "pass",
        str(seen.get("boot_seconds", "")),
        f"{line['seconds']:.0f}",
        _beside(seen, right) if served else "",
        _accepted(seen) if served else "",
        str(seen["warm"]["cached"]) if served else "",
        says.replace("|", "\\|")[:300],
    ]
    return f"| {' | '.join(columns)} |"


def table(rows: list[tuple[Cell, dict[str, Any], dict[str, Any] | None, list[str]]], asked: int) -> str:
    """Return the matrix as Markdown, and the tally under it.

    Args:
        rows: of each cell that ran, the cell, its record, what its reference's engine wrote, and its faults.
        asked: how many cells there are.
    """
    lines = [_HEAD, "|---|---|---|---:|---:|---|---|---:|---|", *(_row(*row) for row in rows)]
    failed = sum(bool(found) for *_, found in rows)
    tally = f"{len(rows) - failed} passed, {failed} failed, {asked - len(rows)} not run"
    return "\n".join([*lines, "", tally])
