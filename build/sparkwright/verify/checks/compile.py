"""Kernels that are compiled while requests wait: every kind of request twice, and a watch for compilers.

What a server compiles before it is ready, or when it first sees a kind of request, is its warm-up. What it
compiles for the same kinds again would be compiled in use as well. Runs by ``--checks compile`` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.engine.cell import WATCHED, Cell
from sparkwright.engine.findings import LOG, Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check, conclude
from sparkwright.verify.checks.triage import CheckedCells, Reason, describe

ROUNDS = ("first", "again")
REQUESTS, TOKENS = 4, 32
# Greedy, sampled, and sampled with top-p, which FlashInfer's kernels do where vLLM uses them.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "greedy c=1": {"concurrency": 1},
    "greedy c=4": {"concurrency": 4},
    "sampled c=4": {"concurrency": 4, "temperature": 0.8},
    "top-p c=4": {"concurrency": 4, "temperature": 0.8, "top_p": 0.9},
}


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield one cell of each kind, and then each again with other prompts."""
    for turn in ROUNDS:
        for kind, how in KINDS.items():
            prompts = context.prompts_in_turn(REQUESTS, f"compile {kind} {turn}")
            tags = {"round": turn, WATCHED: "compilers"}
            yield context.cell("compile", f"{kind} {turn}", prompts, tags=tags, max_tokens=TOKENS, **how)


def judge(_: Context, seen: CheckedCells) -> list[Finding]:
    """Return one finding, on the second round; what the first one compiled is a remark.

    A server that a kind of request ends or breaks in the first round fails too.
    """
    again = seen.tagged(round="again").sound
    warmed = [one for o in seen.tagged(round="first").sound for one in o.compiled or ()]
    warnings = [f"the first requests had {', '.join(warmed[:5])} compiled"] if warmed else []
    against: list[Reason] = []
    for observation in again:
        where = describe(observation.cell)
        if observation.compiled is None:
            against.append((Verdict.INCONCLUSIVE, f"the server's processes could not be watched in {where}"))
        elif observation.compiled:
            shown = f"{where}: {', '.join(observation.compiled[:5])}"
            against.append((Verdict.FAIL, f"compiled while requests of a known kind waited, in {shown}"))
    return [
        conclude(
            seen,
            "compile.warmed",
            against=against,
            passed=f"no compiler ran, and no kernel was added, in {len(again)} cells",
            measured={"compiled at first": float(len(warmed))},
            warnings=(*seen.notes, *warnings),
            needs=(LOG,),
        )
    ]


CHECK = Check("compile", cells, judge)
