"""Judge what engines accepted: pure functions over the records of cells, no import of vLLM or torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.judge import ALLOWED, names_of, outcome, reason, shortfalls

from trained.cells import DRAFTS, Cell

SAME = 0.15
"""Tokens a step by which two means may differ where nothing should: answers part at near ties."""
DRAWS = 1000
Steps = list[list[int]]


@dataclass(frozen=True)
class Difference:
    """By how much one mean of tokens a step is above another over the same prompts, with 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def none(self) -> bool:
        """Return whether it may be nothing: the interval holds zero, or the means are close."""
        return self.low <= 0.0 <= self.high or abs(self.mean) <= SAME

    def __str__(self) -> str:
        """Return it as the table has it."""
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def steps_of(row: Mapping[str, Any]) -> list[int]:
    """Return a request's steps with drafts: all but the prefill's and the last, which the end may cut."""
    return list(row["steps"][1:-1])


def mean(rows: Sequence[Sequence[int]]) -> float:
    """Return the mean of the tokens that a step confirms."""
    count = sum(map(len, rows))
    return sum(map(sum, rows)) / count if count else 0.0


def bootstrap(rows: Sequence[Any], figure: Callable[[Sequence[Any]], float]) -> tuple[float, float]:
    """Return the 95 % interval of *figure*, by drawing requests again as wholes."""
    draw = random.Random(0)
    found = sorted(figure(draw.choices(rows, k=len(rows))) for _ in range(DRAWS))
    return found[round(0.025 * (DRAWS - 1))], found[round(0.975 * (DRAWS - 1))]


def difference(one: Steps, other: Steps) -> Difference:
    """Return the difference of the means over pairs of the same prompts."""
    pairs = [pair for pair in zip(one, other, strict=False) if all(pair)]
    if not pairs:
        return Difference(0.0, 0.0, 0.0)

    def apart(some: Sequence[tuple[list[int], list[int]]]) -> float:
        return mean([left for left, _ in some]) - mean([right for _, right in some])

    return Difference(apart(pairs), *bootstrap(pairs, apart))


def waves(line: Mapping[str, Any]) -> dict[str, Steps]:
    """Return the steps of each wave of a cell's record."""
    found = (line.get("seen") or {}).get("waves", {})
    return {name: [steps_of(row) for row in wave["rows"]] for name, wave in found.items()}


def faults(
    cell: Cell,
    line: dict[str, Any],
    right: dict[str, Any] | None,
    windows: list[int | None],
    foreseen: Steps | None,
    device: str = "cuda",
) -> list[str]:
    """Return everything that is wrong with a cell, in words.

    Answers over 16 bits are compared with those without a drafter; over a rounded format they differ from
    batch to batch. What upstream's tree loses is for the table: its answers and counters alone are judged."""
    if outcome(line) != "served":
        return [f"{outcome(line)} with status {line['status']}: {reason(line) or 'no error is named'}"]
    found = _answer_faults(line, right) if cell.cache == "bf16" else []
    found += _counter_faults(line) if cell.trained else []
    if cell.tree == "stock":
        return found
    found += _view_faults(cell, line["seen"]["view"], windows) if device == "cuda" else []
    found += _acceptance_faults(line, foreseen) if cell.trained and cell.cache == "bf16" else []
    warm = {name: wave["rows"] for name, wave in line["seen"]["waves"].items() if name.endswith("warm")}
    return found + [
        f"{name}: not all prompts came from the prefix cache"
        for name, rows in warm.items()
        if not all(row["cached"] for row in rows)
    ]


def _answer_faults(line: dict[str, Any], right: dict[str, Any] | None) -> list[str]:
    if right is None or outcome(right) != "served":
        return ["there is no reference to compare answers with"]
    best, found = right["seen"]["waves"]["cold"]["rows"], []
    for name, wave in line["seen"]["waves"].items():
        wrong = shortfalls(wave["rows"], best[: len(wave["rows"])], "bf16", ALLOWED["bf16"])
        found += [f"{name}: {one}" for one in wrong]
    return found


def _counter_faults(line: dict[str, Any]) -> list[str]:
    found = []
    for name, wave in line["seen"]["waves"].items():
        if name == "beside":  # the long request has drafts too
            continue
        seen = sum(step - 1 for row in wave["rows"] for step in row["steps"][1:])
        counted = wave["counters"].get("accepted", 0)
        cut = DRAFTS * len(wave["rows"])  # the end of an answer cuts its last step
        if not seen <= counted <= seen + cut:
            found.append(f"{name}: {counted} accepted by the counters, {seen} by the steps")
    return found


def _view_faults(cell: Cell, view: dict[str, Any], windows: list[int | None]) -> list[str]:
    found, layers = [], list(view["layers"].values())
    others = {layer["backend"] for layer in layers} - {"TRITON_ATTN"}
    if others:
        found.append(f"layers attend by {', '.join(sorted(others))}")
    own = [layer["window"] for layer in layers if layer["draft"]]
    if own != windows:
        found.append(f"windows {own}, not {windows}")
    for draft, kind in ((False, cell.cache), (True, cell.own or cell.cache)):
        bad = {layer["cache"] for layer in layers if layer["draft"] is draft} - names_of(kind)
        if bad:
            found.append(f"caches {sorted(bad)} of the {'drafter' if draft else 'target'}, not {kind}")
    return found


def _acceptance_faults(line: dict[str, Any], foreseen: Steps | None) -> list[str]:
    found = waves(line)
    if not found.get("cold"):
        return ["no wave was answered"]
    pairs = {name: (steps, found["cold"][: len(steps)]) for name, steps in found.items() if name != "cold"}
    if foreseen:
        pairs["cold beside torch"] = (found["cold"], foreseen)
    apart = {name: difference(*pair) for name, pair in pairs.items()}
    return [f"{name}: {one} tokens a step" for name, one in apart.items() if not one.none]


def table(lines: Mapping[Cell, dict[str, Any]], foreseen: Mapping[str, Steps]) -> str:
    """Return what a step confirms in each wave of each cell, as Markdown.

    The difference is to upstream's tree where it served the same, else to 16 bits of the same drafter.
    """
    rows = [
        "| cell | wave | requests · steps | first accepted, % | tokens a step | difference | by torch |",
        "|---|---|---|---:|---|---|---|",
    ]
    for cell, line in lines.items():
        beside = (Cell(cell.drafter, tree="stock"), Cell(cell.drafter))
        for name, steps in waves(line).items():
            some = [row for row in steps if row]
            if not cell.trained or not some:
                continue
            low, high = bootstrap(some, mean)
            every = [step for row in some for step in row]
            first = 100 * sum(step > 1 for step in every) / len(every)
            others = (waves(lines[one]).get(name) for one in beside if one in lines and one != cell)
            other = next((one for one in others if one), None)
            apart = str(difference(steps, other)) if other else ""
            known = f"{mean(foreseen[cell.name]):.2f}" if name == "cold" and cell.name in foreseen else ""
            rows.append(
                f"| {cell.name} | {name} | {len(some)} · {len(every):,} | {first:.1f} "
                f"| {mean(some):.2f} [{low:.2f}, {high:.2f}] | {apart} | {known} |"
            )
    return "\n".join(rows)
