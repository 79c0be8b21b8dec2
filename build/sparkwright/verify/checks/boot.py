"""Checks of a server's start: the facts in its log and counters, and its first answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparkwright.engine.capabilities import GPU, LOG
from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.engine.slow_kernels import (
    computes_fp4,
    fallbacks,
    has_fp4_weights,
    lost_graphs,
    names_fp4_kernels,
)
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.acceptance import drafter_finding
from sparkwright.verify.checks.bands import capacity_of
from sparkwright.verify.checks.common import CheckedCells, Reason, conclude, main_facts, triage

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


@dataclass(frozen=True)
class BootCheck:
    """The start of every server, and one short request of each category to the first."""

    name: str = "boot"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return one cell: the first answers, one at a time."""
        sizes = context.profile
        prompts = context.prompts_of_each(-(-ANSWERS // max(1, len(sizes.categories))), "boot")
        load = Load(requests=len(prompts), max_tokens=min(ANSWER_TOKENS, sizes.max_tokens), seed=sizes.seed)
        return (Cell(check="boot", name="first answers", load=load, prompts=prompts),)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return findings on answers and drafts, then of each rule over every start whose log was read.

        A server that did not come up is an observation of the first cell with its exit status in `died`, the
        log's tail in `log`, or why it was given up in `canary`.
        """
        seen = triage(self, context, observations)
        known = context.facts or {("main", 0): BootFacts()}
        boots = {f"{arm} boot {number}": facts for (arm, number), facts in sorted(known.items())}
        rules = (_estimate, _budget, _captures, _runner, _kernels)
        return [
            _answers(seen, context),
            _drafts(seen, context),
            *(rule(seen, boots) for rule in rules),
            *_capacity(seen, boots, context),
        ]


CHECK = RegisteredCheck(BootCheck(), profiles={"full": 10, "cpu": 10, "smoke": 10, "demo": 10})


# First answers -------------------------------------------------------------------------------------------


def _answers(seen: CheckedCells, context: Context) -> Finding:
    facts = main_facts(context)
    return conclude(
        seen,
        "the server starts and answers",
        "The server comes up and answers requests of every category in full. That /health answers is not"
        " enough: it may do so while the engine is dead.",
        passed=f"{sum(len(o.counted) for o in seen.sound)} requests were answered in full",
        threshold="every request, by generating tokens",
        measured={"seconds to the first answer": facts.seconds} if facts.seconds >= 0 else {},
        warnings=seen.notes,
    )


def _drafts(seen: CheckedCells, context: Context) -> Finding:
    facts = main_facts(context)
    definition = "Tokens are drafted, and at least 0.05 of them a draft are accepted."
    measured: dict[str, float | str] = {"method": facts.speculative_method, "k": facts.speculative_tokens}
    return drafter_finding(seen, facts, definition, measured)


# Rules over each start -----------------------------------------------------------------------------------


def _each(boots: _Boots, rule: Callable[[BootFacts], Reason | None]) -> tuple[list[Reason], list[str]]:
    """Return the reasons of *rule* against each start, and its warnings."""
    against: list[Reason] = []
    warnings: list[str] = []
    for name, facts in boots.items():
        if (found := rule(facts)) is None:
            continue
        verdict, cause = found
        if verdict is Verdict.PASS:
            warnings.append(f"{name}: {cause}")
        else:
            against.append((verdict, f"{name}: {cause}"))
    return against, warnings


def _estimate(seen: CheckedCells, boots: _Boots) -> Finding:
    against, warnings = _each(boots, _estimate_of)
    return conclude(
        seen.on_facts(),
        "the estimate of CUDA graphs' memory is not negative",
        "vLLM subtracts the estimated memory of CUDA graphs from what the KV cache may take; a negative"
        " estimate adds memory that does not exist. It occurs where GPU and host share memory.",
        against=against,
        passed="no estimate is negative",
        threshold="estimate >= 0 GiB",
        measured={
            f"{name} estimate GiB": facts.graph_gib
            for name, facts in boots.items()
            if facts.graph_gib is not None
        },
        warnings=warnings,
        needs=(LOG, GPU),
    )


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


def _budget(seen: CheckedCells, boots: _Boots) -> Finding:
    against, warnings = _each(boots, _budget_of)
    return conclude(
        seen.on_facts(),
        "KV cache and weights stay within the budget",
        "KV cache and weights together take no more than the share of the memory that the server may use.",
        against=against,
        passed="every start stays within its budget",
        threshold=f"KV + weights <= utilization x total, within {BUDGET_SLACK:.0%}",
        measured={
            f"{name} {what}": value
            for name, facts in boots.items()
            for what, value in (
                ("KV GiB", facts.kv_gib),
                ("weights GiB", facts.weights_gib),
                ("total GiB", facts.total_gib),
                ("utilization", facts.utilization),
            )
            if value >= 0
        },
        warnings=warnings,
        needs=(LOG, GPU),
    )


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


def _captures(seen: CheckedCells, boots: _Boots) -> Finding:
    against, warnings = _each(boots, _captures_of)
    return conclude(
        seen.on_facts(),
        "decode graphs are captured for whole drafts",
        "With k drafted tokens a decode step has 1 + k rows a request, so sizes that full decode graphs are"
        " captured for are multiples of 1 + k. In vLLM 0.24.0 the modes FULL, FULL_DECODE_ONLY and"
        " FULL_AND_PIECEWISE have them (resolve_cudagraph_mode_and_sizes rounds there), the last two for"
        " sizes from 1 + k to that many for each of max-num-seqs. Piecewise graphs leave attention out and"
        " may have any size; others only pad more.",
        against=against,
        passed="every size that must be a multiple is one",
        threshold="size % (1 + k) == 0",
        measured={
            f"{name} {what}": value
            for name, facts in boots.items()
            for what, value in (
                ("graph mode", facts.graph_mode),
                ("sizes", " ".join(map(str, facts.capture_sizes))),
            )
            if value
        },
        warnings=warnings,
        needs=(LOG, GPU),
    )


def _captures_of(facts: BootFacts) -> Reason | None:
    step = 1 + facts.speculative_tokens
    if facts.graph_mode == "NONE" or step <= 1:
        return None  # no graphs, no drafts, or k unknown: the finding on the drafter says which
    if not facts.graph_mode or not facts.capture_sizes:
        return Verdict.INCONCLUSIVE, "its log names no graph mode, or no capture sizes"
    if lost := lost_graphs(facts):
        return Verdict.PASS, lost
    odd = [size for size in facts.capture_sizes if size % step]
    wrong = odd if facts.graph_mode == "FULL" else [size for size in odd if _decodes(size, facts)]
    if "FULL" in facts.graph_mode and wrong:
        shown = f"sizes {_first(wrong)} are no multiples of 1 + k = {step}"
        return Verdict.FAIL, f"{shown}, with {facts.graph_mode} graphs on runner {facts.runner or 'unknown'}"
    if odd:
        shown = f"sizes {_first(odd)} are no multiples of 1 + k = {step}"
        return Verdict.PASS, f"{shown}: piecewise graphs may, and pad decode steps further than needed"
    return None


def _decodes(size: int, facts: BootFacts) -> bool:
    """Tell if a graph for decode steps alone is captured for this size."""
    step = 1 + facts.speculative_tokens
    return step <= size and (facts.max_num_seqs < 0 or size <= step * facts.max_num_seqs)


def _first(sizes: Sequence[int], most: int = 6) -> str:
    return ", ".join(map(str, sizes[:most])) + "…" * (len(sizes) > most)


def _runner(seen: CheckedCells, boots: _Boots) -> Finding:
    against, warnings = _each(boots, _runner_of)
    runners = {name: facts.runner for name, facts in boots.items() if facts.runner}
    for arm in {name.partition(" ")[0] for name in runners}:
        of_arm = {name: runner for name, runner in runners.items() if name.partition(" ")[0] == arm}
        if len(set(of_arm.values())) > 1:
            shown = ", ".join(f"{name} ran {runner}" for name, runner in of_arm.items())
            against.append((Verdict.INVALID, f"starts of one arm ran different model runners: {shown}"))
    return conclude(
        seen.on_facts(),
        "the model runner is known",
        "vLLM has two model runners, and a patch of one does not apply to the other. All starts of one arm"
        " use the same one.",
        against=against,
        passed=", ".join(f"{name} ran {runner}" for name, runner in runners.items()) or "no start",
        threshold="named in the log",
        measured=dict(runners),
        warnings=warnings,
        needs=(LOG,),
    )


def _runner_of(facts: BootFacts) -> Reason | None:
    return None if facts.runner else (Verdict.INCONCLUSIVE, "its log names no model runner")


def _kernels(seen: CheckedCells, boots: _Boots) -> Finding:
    against, warnings = _each(boots, _kernels_of)
    return conclude(
        seen.on_facts(),
        "FP4 weights run on FP4 kernels",
        "A card of compute capability 10, 11 or 12 computes in FP4. Where vLLM finds no kernels for that, it"
        " unpacks the weights to 16 bits, emulates FP4 or runs without graphs, and serves on. That is no"
        " defect where the recipe names the backend.",
        against=against,
        passed="; ".join(f"{name}: {_kernels_shown(facts)}" for name, facts in boots.items()) or "no start",
        threshold="no slower path that the recipe does not name",
        measured={
            f"{name} {what}": ", ".join(values)
            for name, facts in boots.items()
            for what, values in (
                ("linear", facts.linear_backends),
                ("MoE", facts.moe_backends),
                ("attention", facts.backends),
                ("drafter's attention", facts.drafter_backends),
            )
            if values
        },
        warnings=warnings,
        needs=(LOG, GPU),
    )


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


# Capacity ------------------------------------------------------------------------------------------------


def _capacity(seen: CheckedCells, boots: _Boots, context: Context) -> list[Finding]:
    """Return a finding if a start has an NVFP4 KV cache, against FP8 of another start or of the band."""
    packed = {name: facts for name, facts in boots.items() if facts.kv_dtype.startswith("nvfp4")}
    if not packed:
        return []
    fp8 = _fp8_tokens_per_gib(boots, context.band)
    against, measured = _ratios(packed, fp8)
    return [
        conclude(
            seen.on_facts(),
            "NVFP4 holds more tokens a byte than FP8",
            "Tokens of KV cache per GiB over those of FP8 for the same model. Totals are not comparable: the"
            " two may have different amounts of memory.",
            against=against,
            passed=f"{', '.join(f'{name} {value}' for name, value in measured.items())}",
            threshold=f"at least {LEAST_OF_RATIO:.0%} of 16/9 = {LEAST_OF_RATIO * NVFP4_RATIO:.2f}",
            measured=measured,
        )
    ]


def _fp8_tokens_per_gib(boots: _Boots, band: str) -> float:
    """Return the figure of a start with FP8, else of the band; 0 if there is none."""
    for facts in boots.values():
        if facts.kv_dtype.startswith("fp8") and facts.kv_tokens > 0 and facts.kv_gib > 0:
            return facts.kv_tokens / facts.kv_gib
    return capacity_of(band)


def _ratios(packed: Mapping[str, BootFacts], fp8: float) -> tuple[list[Reason], dict[str, float | str]]:
    against: list[Reason] = []
    measured: dict[str, float | str] = {}
    for name, facts in packed.items():
        if fp8 <= 0:
            against.append(
                (Verdict.INCONCLUSIVE, f"{name}: there is no FP8 cache of this model to compare with")
            )
        elif facts.kv_tokens <= 0 or facts.kv_gib <= 0:
            against.append(
                (Verdict.INCONCLUSIVE, f"{name}: its log does not name the capacity of the KV cache")
            )
        else:
            value = facts.kv_tokens / facts.kv_gib / fp8
            measured[f"{name} ratio"] = round(value, 3)
            if value < LEAST_OF_RATIO * NVFP4_RATIO:
                shown = f"its NVFP4 cache holds {value:.2f} times the tokens of FP8 per GiB"
                against.append((Verdict.FAIL, f"{name}: {shown}, and 16/9 = 1.78 are expected"))
    return against, measured
