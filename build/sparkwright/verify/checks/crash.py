"""Search for batch sizes that break the server: on and between graph sizes, draining, mixed.

The known crash comes where requests are counted with padding in one place and without in another, as at 17
requests padded to a graph for 24. So sizes between the graphs' matter more than large ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import Finding
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check, conclude
from sparkwright.verify.checks.machine import progress_finding
from sparkwright.verify.checks.triage import CheckedCells

LONGEST = 64
"""Output of a burst; long enough for several verify steps at its full size."""
LEAST = 16
STEP = 6
"""Tokens between the lengths of two requests that drain: about two verify steps at each size."""
DOCUMENT_TOKENS = (200, 700, 1500, 4000)
"""Lengths of prompts that are mixed in, so that prefills meet decodes."""
RESERVE = 2000
"""Tokens for their output, and for documents that turn out longer than planned."""


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield bursts on and between the grid, a drain-down through all sizes, and mixed waves."""
    sizes = context.profile
    levels = sorted({*sizes.levels, *sizes.off_grid})
    for level in levels:
        name = f"burst c={level}"
        yield context.cell(
            "crash",
            name,
            context.prompts_in_turn(level, name),
            tags={"kind": "burst"},
            shape="burst",
            concurrency=level,
            max_tokens=min(LONGEST, sizes.max_tokens),
        )
    level = max(levels if sizes.waves else sizes.off_grid or levels, default=1)
    name = f"drain from c={level}"
    yield _drain(context, name, "drain", context.prompts_in_turn(level, name))
    for number in range(1, sizes.waves + 1):
        yield _wave(context, number)


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return one finding for each load that was planned; a crash names the requests in flight."""
    bursts, drain, waves = (seen.tagged(kind=kind) for kind in ("burst", "drain", "wave"))
    levels = ", ".join(str(cell.load.concurrency) for cell in bursts.planned)
    passed = "every size down to one was passed through"
    findings = [
        conclude(bursts, "crash.bursts", passed=f"bursts of {levels} were answered", warnings=seen.notes),
        conclude(drain, "crash.drain", passed=passed),
    ]
    if waves.planned:
        findings.append(conclude(waves, "crash.waves", passed=f"waves answered: {len(waves.sound)}"))
    return [*findings, progress_finding(seen, context.profile.speed)]


CHECK = Check("crash", cells, judge)


def _drain(context: Context, name: str, kind: str, prompts: Sequence[Prompt], seed: int = 0) -> Cell:
    level = len(prompts)
    return context.cell(
        "crash",
        name,
        prompts,
        tags={"kind": kind},
        shape="drain",
        concurrency=level,
        max_tokens=LEAST + STEP * level,
        min_tokens=LEAST,
        seed=context.profile.seed + seed,
    )


def _wave(context: Context, number: int) -> Cell:
    """Return a drain of random size in which some prompts are documents."""
    sizes = context.profile
    chance = random.Random(f"crash wave {sizes.seed} {number}")  # noqa: S311 - a choice, not a secret
    level = chance.choice([*sizes.off_grid, *sizes.levels])
    longest = context.main.max_model_len
    lengths = [tokens for tokens in DOCUMENT_TOKENS if longest < 0 or tokens + RESERVE <= longest]
    name = f"wave {number} c={level}"
    documents = [
        context.corpus.document(chance.choice(lengths), seed=sizes.seed + 1000 * number + i, salt=name)
        for i in range(-(-level // 4) if lengths else 0)
    ]
    prompts = [*context.prompts_in_turn(level - len(documents), name), *documents]
    chance.shuffle(prompts)
    return _drain(context, name, "wave", prompts, seed=number)
