"""Search for batch sizes that break the server: on and between graph sizes, draining, mixed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.engine.capabilities import VLLM
from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.findings import Finding
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.common import SIGNATURES, CheckedCells, conclude, main_facts, triage
from sparkwright.verify.checks.states import progress_finding

LONGEST = 64
"""Output of a burst; long enough for several verify steps at its full size."""
LEAST = 16
STEP = 6
"""Tokens between the lengths of two requests that drain: about two verify steps at each size."""
DOCUMENT_TOKENS = (200, 700, 1500, 4000)
"""Lengths of prompts that are mixed in, so that prefills meet decodes."""
RESERVE = 2000
"""Tokens for their output, and for documents that turn out longer than planned."""

_THRESHOLD = (
    "no failed request, no exit, a plain request answered after each level, none of these in the log: "
    + ", ".join(SIGNATURES)
)


@dataclass(frozen=True)
class Crash:
    """Bursts at every level of and between the grid, a drain-down through all sizes, and mixed waves.

    The known crash comes where requests are counted with padding in one place and without in another, as at
    17 requests padded to a graph for 24. So sizes between the graphs' matter more than large ones.
    """

    name: str = "crash"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return bursts by level, then the drain-down, then the waves, if there are any."""
        sizes = context.profile
        levels = sorted({*sizes.levels, *sizes.off_grid})
        return (
            *(_burst(context, level) for level in levels),
            _drain(context, max(levels if sizes.waves else sizes.off_grid or levels, default=1)),
            *(_wave(context, number) for number in range(1, sizes.waves + 1)),
        )

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return one finding for each load that was planned; a crash names the requests in flight."""
        seen = triage(self, context, observations)
        bursts, drain, waves = (seen.tagged(kind=kind) for kind in ("burst", "drain", "wave"))
        levels = ", ".join(str(cell.load.concurrency) for cell in bursts.planned)
        return [
            conclude(
                bursts,
                "no batch size breaks the server",
                "At each level all requests are sent at once and answered in full; afterwards the server"
                " answers a plain request. Levels lie on and between the sizes that graphs are captured for.",
                passed=f"bursts of {levels} were answered",
                threshold=_THRESHOLD,
                warnings=seen.notes,
            ),
            conclude(
                drain,
                "draining breaks nothing",
                "As many requests as the highest level, each of another length, so that the running batch"
                " passes through every size down to one.",
                passed="every size down to one was passed through",
                threshold=_THRESHOLD,
            ),
            *([_answered_waves(waves)] if waves.planned else []),
            progress_finding(seen, observations, context.profile.speed),
        ]


def _answered_waves(waves: CheckedCells) -> Finding:
    return conclude(
        waves,
        "mixed waves break nothing",
        "Waves of random size with prompts and outputs of mixed length, so that prefills meet decodes.",
        passed=f"waves answered: {len(waves.sound)}",
        threshold=_THRESHOLD,
    )


CHECK = RegisteredCheck(Crash(), profiles={"full": 50, "cpu": 50, "smoke": 30, "demo": 50})


def _burst(context: Context, level: int) -> Cell:
    sizes = context.profile
    name = f"burst c={level}"
    return Cell(
        check="crash",
        name=name,
        load=Load(
            shape="burst",
            concurrency=level,
            requests=level,
            max_tokens=min(LONGEST, sizes.max_tokens),
            seed=sizes.seed,
        ),
        prompts=context.prompts_in_turn(level, name),
        tags={"kind": "burst"},
    )


def _drain(context: Context, level: int, name: str = "", seed: int = 0) -> Cell:
    name = name or f"drain from c={level}"
    return Cell(
        check="crash",
        name=name,
        load=Load(
            shape="drain",
            concurrency=level,
            requests=level,
            max_tokens=LEAST + STEP * level,
            min_tokens=LEAST,
            seed=context.profile.seed + seed,
        ),
        prompts=context.prompts_in_turn(level, name),
        tags={"kind": "drain"},
    )


def _wave(context: Context, number: int) -> Cell:
    """Return a drain of random size in which some prompts are documents."""
    sizes = context.profile
    chance = random.Random(f"crash wave {sizes.seed} {number}")  # noqa: S311 - a choice, not a secret
    level = chance.choice([*sizes.off_grid, *sizes.levels])
    longest = main_facts(context).max_model_len
    if VLLM in context.lacks:  # where the longest request is unknown, documents might be refused
        longest = max(0, longest)
    lengths = [tokens for tokens in DOCUMENT_TOKENS if longest < 0 or tokens + RESERVE <= longest]
    name = f"wave {number} c={level}"
    documents = [
        context.corpus.document(chance.choice(lengths), seed=sizes.seed + 1000 * number + i, salt=name)
        for i in range(-(-level // 4) if lengths else 0)
    ]
    prompts = [*context.prompts_in_turn(level - len(documents), name), *documents]
    chance.shuffle(prompts)
    drained = _drain(context, level, name, seed=number)
    return Cell(check="crash", name=name, load=drained.load, prompts=tuple(prompts), tags={"kind": "wave"})
