"""Checks of a server's start: facts in its log and counters, first answers, kernels compiled after them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sparkwright.engine.cell import WATCHED, Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.engine.slow_kernels import (
    computes_fp4,
    fallbacks,
    has_fp4_weights,
    lost_graphs,
    names_fp4_kernels,
)
from sparkwright.verify.check import Context
from sparkwright.verify.checks.bands import capacity_of
from sparkwright.verify.checks.common import Check, Values, conclude
from sparkwright.verify.checks.figures import drafter_finding
from sparkwright.verify.checks.triage import CheckedCells, Reason, describe

ANSWERS = 8
ANSWER_TOKENS = 96
BUDGET_SLACK = 0.02
"""Of the budget; logs round to a hundredth of a GiB, and the server itself measures what is free."""
NVFP4_RATIO = 16 / 9
"""Tokens a byte that NVFP4 holds over FP8: half a byte and a sixteenth for scales against one byte (vLLM
0.24.0, ``nvfp4_kv_cache_full_dim``: head_size // 2 + head_size // 16). Measured on GB10: 1.79."""
LEAST_OF_RATIO = 0.85
"""Layers that stay in FP8 or 16 bit (a drafter's, linear attention's state) take their share."""

_Boots = dict[str, BootFacts]


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield one cell: the first answers, one at a time."""
    sizes = context.profile
    prompts = context.prompts_of_each(-(-ANSWERS // max(1, len(sizes.categories))), "boot")
    yield context.cell("boot", "first answers", prompts, max_tokens=min(ANSWER_TOKENS, sizes.max_tokens))


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return findings on answers and drafts, then of each rule over every start whose log was read.

    A server that did not come up is an observation of the first cell with its exit status in `died`, the
    log's tail in `log`, or why it was given up in `canary`.
    """
    known = context.facts or {("main", 0): BootFacts()}
    boots = {f"{arm} boot {number}": facts for (arm, number), facts in sorted(known.items())}
    facts = context.main
    return [
        conclude(
            seen,
            "boot.answers",
            passed=f"{sum(len(o.counted) for o in seen.sound)} requests were answered in full",
            measured={"seconds to the first answer": facts.seconds} if facts.seconds >= 0 else {},
            warnings=seen.notes,
        ),
        drafter_finding(
            seen,
            facts,
            "Tokens are drafted, and at least 0.05 of them a draft are accepted.",
            {"method": facts.speculative_method, "k": facts.speculative_tokens},
        ),
        *(_ruled(seen, boots, rule) for rule in _RULES),
        *_capacity(seen, boots, context),
    ]


CHECK = Check("boot", cells, judge)


# Rules over each start -----------------------------------------------------------------------------------


_Rule = tuple[str, Callable[[BootFacts], Reason | None], str]
"""A rule that every start keeps: key, what is against a start, and the cause of a pass.

What is against a start is a warning if its verdict is a pass. The facts that it rests on are the start's.
"""


def _ruled(seen: CheckedCells, boots: _Boots, rule: _Rule) -> Finding:
    key, broken, passed = rule
    against: list[Reason] = []
    warnings: list[str] = []
    for name, facts in boots.items():
        if (found := broken(facts)) is not None:
            verdict, cause = found
            if verdict is Verdict.PASS:
                warnings.append(f"{name}: {cause}")
            else:
                against.append((verdict, f"{name}: {cause}"))
    if broken is _kernels_of:
        passed = "; ".join(f"{name}: {_kernels_shown(facts)}" for name, facts in boots.items())
    return conclude(seen.on_facts(), key, against=against, passed=passed or "no start", warnings=warnings)


def _estimate_of(facts: BootFacts) -> Reason | None:
    if facts.graph_gib is None:
        if facts.runner == "v2" or facts.graph_mode == "NONE":
            return None  # 0.24's second model runner makes no estimate, and without graphs there is none
        return Verdict.INCONCLUSIVE, "its log names no estimate"
    if facts.graph_gib >= 0:
        return None
    shown = f"CUDA graphs were estimated at {facts.graph_gib:.2f} GiB"
    took = f"; the KV cache took {facts.kv_gib:.2f} GiB" if facts.kv_gib >= 0 else ""
    return Verdict.FAIL, shown + took


def _budget_of(facts: BootFacts) -> Reason | None:
    known = {
        "KV cache": facts.kv_gib,
        "weights": facts.weights_gib,
        "total memory": facts.total_gib,
        "utilization": facts.utilization,
    }
    if absent := [name for name, value in known.items() if value < 0]:
        return Verdict.INCONCLUSIVE, f"not known: {', '.join(absent)}"
    taken, budget = facts.kv_gib + facts.weights_gib, facts.utilization * facts.total_gib
    if taken <= budget * (1 + BUDGET_SLACK):
        return None
    parts = f"{facts.kv_gib:.1f} GiB of KV cache and {facts.weights_gib:.1f} GiB of weights"
    share = f"{facts.utilization:.2f} x {facts.total_gib:.1f} GiB"
    return Verdict.FAIL, f"{parts} are {taken - budget:.1f} GiB more than {share} = {budget:.1f} GiB"


def _captures_of(facts: BootFacts) -> Reason | None:
    step = 1 + facts.speculative_tokens
    if facts.graph_mode == "NONE" or step <= 1:
        return None  # no graphs, no drafts, or k unknown: the finding on the drafter says which
    if not facts.graph_mode or not facts.capture_sizes:
        return Verdict.INCONCLUSIVE, "its log names no graph mode, or no capture sizes"
    if lost := lost_graphs(facts):
        return Verdict.PASS, lost
    odd = [size for size in facts.capture_sizes if size % step]
    most = step * facts.max_num_seqs if facts.max_num_seqs >= 0 else math.inf
    # Every graph in mode FULL, else those from one request's step to that of all, are for decode steps.
    wrong = odd if facts.graph_mode == "FULL" else [size for size in odd if step <= size <= most]
    shown = "sizes {} are no multiples of 1 + k = " + str(step)
    if "FULL" in facts.graph_mode and wrong:
        shown = shown.format(_first(wrong))
        return Verdict.FAIL, f"{shown}, with {facts.graph_mode} graphs on runner {facts.runner or 'unknown'}"
    if odd:
        shown = shown.format(_first(odd))
        return Verdict.PASS, f"{shown}: piecewise graphs may, and pad decode steps further than needed"
    return None


def _first(sizes: Sequence[int], most: int = 6) -> str:
    return ", ".join(map(str, sizes[:most])) + "…" * (len(sizes) > most)


def _kernels_of(facts: BootFacts) -> Reason | None:
    if not has_fp4_weights(facts):
        return None
    found = fallbacks(facts)
    if not facts.capability and found:
        return Verdict.INCONCLUSIVE, f"the card is not known: {'; '.join(map(str, found))}"
    if not computes_fp4(facts.capability):
        return None
    if found:
        return Verdict.FAIL, "; ".join(map(str, found))
    if not names_fp4_kernels(facts):
        return Verdict.INCONCLUSIVE, "its log names no kernel of the FP4 weights"
    return None


def _kernels_shown(facts: BootFacts) -> str:
    return ", ".join((*facts.linear_backends, *facts.moe_backends)) or "no kernels of FP4 weights"


_RULES: tuple[_Rule, ...] = (
    ("boot.estimate", _estimate_of, "no estimate is negative"),
    ("boot.budget", _budget_of, "every start stays within its budget"),
    ("boot.captures", _captures_of, "every size that must be a multiple is one"),
    ("boot.kernels", _kernels_of, ""),
)


# Capacity ------------------------------------------------------------------------------------------------


def _capacity(seen: CheckedCells, boots: _Boots, context: Context) -> list[Finding]:
    """Return a finding if a start has an NVFP4 KV cache, against FP8 of another start or of the band."""
    packed = {name: facts for name, facts in boots.items() if facts.kv_dtype.startswith("nvfp4")}
    if not packed:
        return []
    fp8 = _fp8_tokens_per_gib(boots, context.band)
    least = LEAST_OF_RATIO * NVFP4_RATIO
    against: list[Reason] = []
    measured: Values = {}
    for name, facts in packed.items():
        if fp8 <= 0:
            why = f"{name}: there is no FP8 cache of this model to compare with"
            against.append((Verdict.INCONCLUSIVE, why))
        elif facts.kv_tokens <= 0 or facts.kv_gib <= 0:
            why = f"{name}: its log does not name the capacity of the KV cache"
            against.append((Verdict.INCONCLUSIVE, why))
        else:
            value = facts.kv_tokens / facts.kv_gib / fp8
            measured[f"{name} ratio"] = round(value, 3)
            if value < least:
                shown = f"its NVFP4 cache holds {value:.2f} times the tokens of FP8 per GiB"
                against.append((Verdict.FAIL, f"{name}: {shown}, and 16/9 = 1.78 are expected"))
    return [
        conclude(
            seen.on_facts(),
            "boot.capacity",
            told={"least": least},
            against=against,
            passed=", ".join(f"{name} {value}" for name, value in measured.items()),
            measured=measured,
        )
    ]


def _fp8_tokens_per_gib(boots: _Boots, band: str) -> float:
    """Return the figure of a start with FP8, else of the band; 0 if there is none."""
    for facts in boots.values():
        if facts.kv_dtype.startswith("fp8") and facts.kv_tokens > 0 and facts.kv_gib > 0:
            return facts.kv_tokens / facts.kv_gib
    return capacity_of(band)


# Kernels that are compiled while requests wait -----------------------------------------------------------

ROUNDS = ("first", "again")
REQUESTS, TOKENS = 4, 32
# Greedy, sampled, and sampled with top-p, which FlashInfer's kernels do where vLLM uses them.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "greedy c=1": {"concurrency": 1},
    "greedy c=4": {"concurrency": 4},
    "sampled c=4": {"concurrency": 4, "temperature": 0.8},
    "top-p c=4": {"concurrency": 4, "temperature": 0.8, "top_p": 0.9},
}


def _warming_cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield one cell of each kind, and then each again with other prompts.

    What a server compiles before it is ready, or when it first sees a kind of request, is its warm-up. What
    it compiles for the same kinds again would be compiled in use as well.
    """
    for turn in ROUNDS:
        for kind, how in KINDS.items():
            prompts = context.prompts_in_turn(REQUESTS, f"compile {kind} {turn}")
            tags = {"round": turn, WATCHED: "compilers"}
            yield context.cell("compile", f"{kind} {turn}", prompts, tags=tags, max_tokens=TOKENS, **how)


def _judge_warming(_: Context, seen: CheckedCells) -> list[Finding]:
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
            "boot.warmed",
            against=against,
            passed=f"no compiler ran, and no kernel was added, in {len(again)} cells",
            measured={"compiled at first": float(len(warmed))},
            warnings=(*seen.notes, *warnings),
        )
    ]


# In no profile: --checks selects it.
COMPILE = Check("compile", _warming_cells, _judge_warming)
