"""Judge what engines accepted: pure functions over the records of cells, no import of vLLM or torch."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.judge import ALLOWED, RARE, Compared, compared, outcome, reason

from trained.cells import DRAFTS

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
from kv_quality.intervals import bootstrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trained.cells import Cell

__all__ = [
    "Acceptance",
    "Difference",
    "acceptance",
    "answer_table",
    "by_chance",
    "difference",
    "far_off",
    "faults",
    "own_spread",
    "same_answers",
    "shared",
    "steps_of",
    "table",
]

SAME = 0.15
"""Tokens a step by which two means may differ where nothing should: answers part at near ties."""
FAR = 0.1
"""Largest share of first other tokens that a rounded format may have beyond its allowance in nats.

Keys and values follow an attention that other launches round otherwise, and a code that flips is a sixth of a
value or more. On an H200 4 of 60 were so far off between two waves of an engine over NVFP4 without a drafter,
and 15 of 63 between NVFP4 and 16 bits.
"""
BLOCK = 16
"""Tokens of a block of the prefix cache: vLLM's own choice, which no cell changes."""
Steps = list[list[int]]


@dataclass(frozen=True)
class Acceptance:
    """Accepted drafts of some requests, counted.

    Attributes:
        requests: that made a step.
        steps: of all of them.
        places: share of steps in which each drafted place was accepted.
        first: 95 % interval of the first place's.
        tokens: that a step confirms, in the mean.
        interval: 95 %, of these.
    """

    requests: int
    steps: int
    places: tuple[float, ...]
    first: tuple[float, float]
    tokens: float
    interval: tuple[float, float]


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


def steps_of(row: dict[str, Any]) -> list[int]:
    """Return a request's steps with drafts: all but the prefill's and the last, which the end may cut."""
    return list(row["steps"][1:-1])


def share(rows: Sequence[Sequence[int]], place: int) -> float:
    """Return the share of steps in which the draft at *place* (from 0) was accepted."""
    count = sum(map(len, rows))
    return sum(one > place + 1 for row in rows for one in row) / count if count else 0.0


def mean(rows: Sequence[Sequence[int]]) -> float:
    """Return the mean of the tokens that a step confirms."""
    count = sum(map(len, rows))
    return sum(map(sum, rows)) / count if count else 0.0


def acceptance(steps: Steps) -> Acceptance:
    """Return what was accepted, with intervals by drawing requests again."""
    rows = [row for row in steps if row]
    if not rows:
        return Acceptance(0, 0, (0.0,) * DRAFTS, (0.0, 0.0), 0.0, (0.0, 0.0))
    return Acceptance(
        requests=len(rows),
        steps=sum(map(len, rows)),
        places=tuple(share(rows, place) for place in range(DRAFTS)),
        first=bootstrap(rows, lambda some: share(some, 0)),
        tokens=mean(rows),
        interval=bootstrap(rows, mean),
    )


def difference(one: Steps, other: Steps) -> Difference:
    """Return the difference of the means over pairs of the same prompts."""
    pairs = [pair for pair in zip(one, other, strict=False) if all(pair)]
    if not pairs:
        return Difference(0.0, 0.0, 0.0)

    def apart(some: Sequence[tuple[list[int], list[int]]]) -> float:
        return mean([left for left, _ in some]) - mean([right for _, right in some])

    return Difference(apart(pairs), *bootstrap(pairs, apart))


def waves(line: dict[str, Any]) -> dict[str, Steps]:
    """Return the steps of each wave of a cell's record."""
    found = (line.get("seen") or {}).get("waves", {})
    return {name: [steps_of(row) for row in wave["rows"]] for name, wave in found.items()}


def faults(
    cell: Cell,
    line: dict[str, Any],
    right: dict[str, Any] | None,
    windows: list[int | None],
    foreseen: dict[str, Steps] | None,
    prompts: Sequence[Sequence[int]] = (),
    device: str = "cuda",
) -> list[str]:
    """Return everything that is wrong with a cell, in words.

    What upstream's tree loses is for the table: of it only answers and counters are judged. Answers are
    compared with those of the same format without a drafter. Where a format rounds, two waves of one engine
    differ as much as a drafter changes: there a share of the answers may part far off, and acceptance is
    compared over requests with the same answer alone.

    Args:
        cell: the cell.
        line: its record.
        right: the record of its reference.
        windows: of the drafter's layers, as it was trained.
        foreseen: steps of each wave as torch computes them; None where they were not computed.
        prompts: in their order; without them a cold wave may have nothing from the prefix cache.
        device: ``cuda`` or ``cpu``.
    """
    if outcome(line) != "served":
        return [f"{outcome(line)} with status {line['status']}: {reason(line) or 'no error is named'}"]
    found = _answer_faults(cell, line, right) + _counter_faults(cell, line)
    if cell.tree == "stock":
        return found
    if device == "cuda":
        found += _view_faults(cell, line["seen"]["view"], windows)
    return found + _acceptance_faults(cell, line, foreseen) + _cache_faults(line, prompts)


def best_wave(line: dict[str, Any]) -> str:
    """Return the name of a cell's cold wave with the most requests at once."""
    named = [name for name in line["seen"]["waves"] if name.endswith("cold")]
    return max(named, key=lambda one: int(one.split()[0]))


def answers(line: dict[str, Any], right: dict[str, Any]) -> dict[str, Compared]:
    """Return the answers of each wave beside those of the reference's cold wave."""
    best = right["seen"]["waves"][best_wave(right)]["rows"]
    waves_ = line["seen"]["waves"]
    return {name: compared(wave["rows"], best[: len(wave["rows"])]) for name, wave in waves_.items()}


def own_spread(right: dict[str, Any]) -> Compared:
    """Return by how much a reference's waves differ from its cold one, and that from them, at most."""
    named = right["seen"]["waves"]
    cold = named[best_wave(right)]["rows"]
    found = [Compared(0, 0, 0.0)]
    for wave in named.values():
        rows = wave["rows"]
        if rows is not cold:
            found += [compared(rows, cold[: len(rows)]), compared(cold[: len(rows)], rows)]
    return Compared(
        sum(one.tokens for one in found), sum(one.others for one in found), max(one.worst for one in found)
    )


def _answer_faults(cell: Cell, line: dict[str, Any], right: dict[str, Any] | None) -> list[str]:
    if right is None or outcome(right) != "served":
        return ["there is no reference to compare answers with"]
    limit, told = ALLOWED[cell.cache], answers(line, right)
    if cell.cache == "bf16":
        found = [
            f"{name}: a token {one.worst:.2f} nats below the reference's, allowed {limit}"
            for name, one in told.items()
            if not one.worst <= limit
        ]
    else:  # all of a cell: one early other token ends the comparison of a short wave
        told = {
            "all waves": Compared(
                sum(one.tokens for one in told.values()), sum(one.others for one in told.values()), 0.0
            )
        }
        far = far_off(line, right, limit)
        others = told["all waves"].others
        found = [f"{far} of {others} other tokens are more than {limit} nats below the reference's"]
        found = found if far > by_chance(FAR * others) else []
    return found + [
        f"{name}: {one.others} of {one.tokens} compared tokens are others"
        for name, one in told.items()
        if one.others > by_chance(RARE[cell.cache] * one.tokens)
    ]


def by_chance(usual: float) -> float:
    """Return how many there may be where *usual* are expected: 1.64 deviations more, one of twenty."""
    return max(1.0, usual + 1.64 * math.sqrt(usual))


def far_off(line: dict[str, Any], right: dict[str, Any], limit: float) -> int:
    """Return how many first other tokens of a cell's answers are over *limit* nats below the reference's.

    Those that the reference did not keep count.
    """
    best = right["seen"]["waves"][best_wave(right)]["rows"]
    return sum(
        not compared([row], [other]).worst <= limit
        for wave in line["seen"]["waves"].values()
        for row, other in zip(wave["rows"], best, strict=False)
    )


def _counter_faults(cell: Cell, line: dict[str, Any]) -> list[str]:
    if cell.drafter == "none":
        return []
    found = []
    for name, wave in line["seen"]["waves"].items():
        if name == "beside":  # the long request has drafts too
            continue
        seen = sum(step - 1 for row in wave["rows"] for step in row["steps"][1:])
        counted = wave["counters"].get("accepted", 0)
        if (
            not seen <= counted <= seen + DRAFTS * len(wave["rows"])
        ):  # the end of an answer cuts its last step
            found.append(f"{name}: {counted} accepted by the counters, {seen} by the steps")
    return found


def _view_faults(cell: Cell, view: dict[str, Any], windows: list[int | None]) -> list[str]:
    found = []
    others = {layer["backend"] for layer in view["layers"]} - {"TRITON_ATTN"}
    if others:
        found.append(f"layers attend by {', '.join(sorted(others))}")
    own = [layer for layer in view["layers"] if layer["draft"]]
    if [layer["window"] for layer in own] != windows:
        found.append(f"windows {[layer['window'] for layer in own]}, not {windows}")
    wanted = {"bf16": ("auto", "bfloat16")}
    for draft, kind in ((False, cell.cache), (True, cell.own or cell.cache)):
        caches = {layer["cache"] for layer in view["layers"] if layer["draft"] is draft}
        bad = {one for one in caches if one not in wanted.get(kind, (kind,)) and not one.startswith(kind)}
        if bad:
            found.append(f"caches {sorted(bad)} of the {'drafter' if draft else 'target'}, not {kind}")
    return found


def shared(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return how many tokens of each prompt, in whole blocks, an earlier one begins with as well.

    So many may come from a prefix cache that was empty when the first of them was asked.
    """
    found = []
    for at, prompt in enumerate(prompts):
        before = (_common(prompt, one) for one in prompts[:at])
        found.append(max(before, default=0) // BLOCK * BLOCK)
    return found


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _cache_faults(line: dict[str, Any], prompts: Sequence[Sequence[int]]) -> list[str]:
    found, allowed = [], shared(prompts)
    for name, wave in line["seen"]["waves"].items():
        cached = [row["cached"] for row in wave["rows"]]
        if name.endswith("warm") and not all(cached):
            found.append(f"{name}: not all prompts came from the prefix cache")
        if not name.endswith("cold"):
            continue
        limits = (allowed or [0] * len(cached))[: len(cached)]
        more = [(seen, limit) for seen, limit in zip(cached, limits, strict=True) if seen > limit]
        if more:
            seen, limit = max(more)
            found.append(
                f"{name}: {len(more)} prompts came from the prefix cache, "
                f"such as {seen} tokens where {limit} are an earlier prompt's"
            )
    return found


def _acceptance_faults(cell: Cell, line: dict[str, Any], foreseen: dict[str, Steps] | None) -> list[str]:
    if not cell.trained:
        return []
    found = waves(line)
    cold = {name: steps for name, steps in found.items() if name.endswith("cold")}
    if not cold:
        return ["no wave was answered"]
    best = max(cold, key=lambda name: len(cold[name]))
    pairs = {name: (steps, found[best]) for name, steps in found.items() if name != best}
    if cell.cache == "bf16":
        pairs |= {
            f"{name} beside torch": (steps, (foreseen or {})[name])
            for name, steps in cold.items()
            if foreseen
        }
    else:
        pairs = {name: same_answers(line, name, best) for name in pairs}
    wrong = []
    for name, (steps, other) in pairs.items():
        apart = difference(steps, other[: len(steps)])
        if not apart.none:
            wrong.append(f"{name}: {apart.mean:+.2f} [{apart.low:+.2f}, {apart.high:+.2f}] tokens a step")
    return wrong


def same_answers(line: dict[str, Any], one: str, other: str) -> tuple[Steps, Steps]:
    """Return the steps of two waves of a cell, of the requests that have the same answer in both.

    How many drafts are accepted depends on the text: other answers say nothing of the drafter.
    """
    told = line["seen"]["waves"]
    pairs = zip(told[one]["rows"], told[other]["rows"], strict=False)
    same = [(left, right) for left, right in pairs if left["tokens"] == right["tokens"]]
    return [steps_of(left) for left, _ in same], [steps_of(right) for _, right in same]


def table(
    lines: Sequence[tuple[Cell, dict[str, Any], dict[str, Steps]]],
) -> str:
    """Return what was accepted in each wave of each cell, as Markdown."""
    places = "1st, % | 2nd | 3rd | 4th | 5th | 6th | 7th"
    rows = [
        f"| cell | wave | requests · steps | {places} | tokens a step | to the cold wave | by torch |",
        "|---|---|---" + "|---:" * DRAFTS + "|---|---|---|",
    ]
    for cell, line, foreseen in lines:
        found = waves(line)
        cold = [steps for name, steps in found.items() if name.endswith("cold")]
        base = max(cold, key=len, default=[])
        for name, steps in found.items():
            if cell.drafter == "none":
                continue
            one = acceptance(steps)
            shares = [f"{100 * share_:.1f}" for share_ in one.places]
            shares[0] += f" [{100 * one.first[0]:.1f}, {100 * one.first[1]:.1f}]"
            apart = difference(steps, base[: len(steps)])
            beside = f"{apart.mean:+.2f} [{apart.low:+.2f}, {apart.high:+.2f}]" if steps is not base else ""
            known = f"{mean(foreseen[name]):.2f}" if name in foreseen else ""
            rows.append(
                f"| {cell.name} | {name} | {one.requests} · {one.steps:,} | {' | '.join(shares)} "
                f"| {one.tokens:.2f} [{one.interval[0]:.2f}, {one.interval[1]:.2f}] | {beside} | {known} |"
            )
    return "\n".join(rows)


def answer_table(lines: Sequence[tuple[Cell, dict[str, Any], dict[str, Any]]]) -> str:
    """Return how answers differ from those without a drafter in the same format, as Markdown.

    A reference's line says how its own cold and warm answers differ, each way.
    """
    rows = [
        "| cell | wave | tokens compared | other answers | largest gap, nats |",
        "|---|---|---:|---:|---:|",
    ]
    for cell, line, right in lines:
        alone = cell.drafter == "none"
        told = {"cold and warm": own_spread(line)} if alone else answers(line, right)
        rows += [
            f"| {cell.name} | {name} | {one.tokens:,} | {one.others} | {one.worst:.2f} |"
            for name, one in told.items()
        ]
    return "\n".join(rows)
