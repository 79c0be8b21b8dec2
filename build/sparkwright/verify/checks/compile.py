"""Kernels that are compiled while requests wait: every kind of request twice, and a watch for compilers.

What a server compiles before it is ready, or when it first sees a kind of request, is its warm-up. What it
compiles for the same kinds again would be compiled in use as well. Runs by ``--checks compile`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.engine.capabilities import LOG
from sparkwright.engine.cell import WATCHED, Cell, Load
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.common import CheckedCells, Reason, conclude, describe, triage

ROUNDS = ("first", "again")
REQUESTS = 4
TOKENS = 32
# Greedy, sampled, and sampled with top-p, which FlashInfer's kernels do where vLLM uses them.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "greedy c=1": {"concurrency": 1},
    "greedy c=4": {"concurrency": 4},
    "sampled c=4": {"concurrency": 4, "temperature": 0.8},
    "top-p c=4": {"concurrency": 4, "temperature": 0.8, "top_p": 0.9},
}


@dataclass(frozen=True)
class CompileCheck:
    """Each kind of request in two rounds, with the server's compilers and caches watched."""

    name: str = "compile"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return one cell of each kind, and then each again with other prompts."""
        return tuple(
            Cell(
                check="compile",
                name=f"{kind} {turn}",
                load=Load(requests=REQUESTS, max_tokens=TOKENS, seed=context.profile.seed, **how),
                prompts=context.prompts_in_turn(REQUESTS, f"compile {kind} {turn}"),
                tags={"round": turn, WATCHED: "compilers"},
            )
            for turn in ROUNDS
            for kind, how in KINDS.items()
        )

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return one finding, on the second round; what the first one compiled is a remark.

        A server that a kind of request ends or breaks in the first round fails too.
        """
        seen = triage(self, context, observations)
        again = seen.tagged(round="again")
        warmed = [one for o in seen.tagged(round="first").sound for one in o.compiled or ()]
        warnings = [f"the first requests had {', '.join(warmed[:5])} compiled"] if warmed else []
        return [
            conclude(
                seen,
                "nothing is compiled after the warm-up",
                "While kinds of requests are served that the server has seen before, none of its processes is"
                " a compiler, and no cache of compiled kernels grows. A request that waits for a compiler"
                " waits for seconds to minutes.",
                against=_against(again),
                passed=f"no compiler ran, and no kernel was added, in {len(again.sound)} cells",
                threshold="no compiler and no new file",
                measured={"compiled at first": float(len(warmed))},
                warnings=(*seen.notes, *warnings),
                needs=(LOG,),
            )
        ]


def _against(seen: CheckedCells) -> list[Reason]:
    found: list[Reason] = []
    for observation in seen.sound:
        where = describe(observation.cell)
        if observation.compiled is None:
            cause = f"the server's processes could not be watched in {where}"
            found.append((Verdict.INCONCLUSIVE, cause))
        elif observation.compiled:
            shown = ", ".join(observation.compiled[:5])
            found.append(
                (Verdict.FAIL, f"compiled while requests of a known kind waited, in {where}: {shown}")
            )
    return found


CHECK = RegisteredCheck(CompileCheck())
