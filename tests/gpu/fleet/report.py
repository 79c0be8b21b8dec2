"""The matrix as people read it: one row a cell, its outcome and what was wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleet.judge import compared, lacking, outcome, pooled, reason

if TYPE_CHECKING:
    from fleet.matrix import Cell

    # The cell, its record, what its reference's engine wrote, the same of 16 bits, and its faults.
    Row = tuple[Cell, dict[str, Any], dict[str, Any] | None, dict[str, Any] | None, list[str]]

__all__ = ["table"]

_HEAD = (
    "| cell | outcome | verdict | boot s | s | others of compared | of 16 bits | accepted | cached | says |"
)


def _beside(seen: dict[str, Any], right: dict[str, Any] | None) -> str:
    if right is None:
        return ""
    parts = []
    for level, line in seen["levels"].items():
        if level in right["levels"]:
            some = compared(line["answers"], right["levels"][level]["answers"])
            parts.append(f"{some.others}/{some.tokens} ({some.worst:.2f})")
    return ", ".join(parts)


def _beside_plain(seen: dict[str, Any], plain: dict[str, Any] | None) -> str:
    if plain is None:
        return ""
    some = pooled(seen, plain)
    return f"{some.others}/{some.tokens} ({some.worst:.2f})"


def _accepted(seen: dict[str, Any]) -> str:
    totals = {"drafted": 0, "accepted": 0}
    for line in seen["levels"].values():
        for name in totals:
            totals[name] += line["counters"].get(name, 0)
    return f"{totals['accepted']}/{totals['drafted']}" if totals["drafted"] else ""


def _verdict(came: str, *, lacks: bool, failed: bool) -> str:
    if came == "out of time":
        return "not run to its end"
    return "no kernel" if lacks else "FAIL" if failed else "pass"


def _row(row: Row, *, lacks: bool) -> str:
    cell, line, right, plain, found = row
    seen = line.get("seen") or {}
    came = outcome(line)
    served = came == "served"
    says = ("" if lacks else "; ".join(found)) or ("" if served else reason(line))
    columns = [
        cell.name,
        came,
        _verdict(came, lacks=lacks, failed=bool(found)),
        str(seen.get("boot_seconds", "")),
        f"{line['seconds']:.0f}",
        _beside(seen, right) if served else "",
        _beside_plain(seen, plain) if served else "",
        _accepted(seen) if served else "",
        str(seen["warm"]["cached"]) if served else "",
        says.replace("|", "\\|")[:300],
    ]
    return f"| {' | '.join(columns)} |"


def table(rows: list[Row], asked: int, device: str) -> str:
    """Return the matrix as Markdown, and the tally under it.

    Args:
        rows: of each cell that ran, the cell, its record, what its reference's engine wrote, of a format's
            own reference what the one of 16 bits wrote, and its faults.
        asked: how many cells there are.
        device: ``cuda`` or ``cpu``.
    """
    without = {cell for cell, line, *_ in rows if lacking(line, device)}
    lines = [
        _HEAD,
        "|---|---|---|---:|---:|---|---|---|---:|---|",
        *(_row(row, lacks=row[0] in without) for row in rows),
    ]
    failed = sum(bool(found) and cell not in without for cell, *_, found in rows)
    late = sum(outcome(line) == "out of time" for _, line, *_ in rows)
    passed, left = len(rows) - failed - len(without) - late, asked - len(rows)
    tally = (
        f"{passed} passed, {failed} failed, {len(without)} without a kernel, "
        f"{late} out of time, {left} not run"
    )
    wheels = sorted({(line.get("seen") or {}).get("wheel", "") for _, line, *_ in rows} - {""})
    told = [f"wheel: {', '.join(wheels)}", ""] if wheels else []
    return "\n".join([*told, *lines, "", tally])
