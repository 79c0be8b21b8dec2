"""Reasoning in chats: off, on and within a budget; it stays in its own field, and an answer follows.

The request says by ``chat_template_kwargs`` if the model is to think, and by ``thinking_token_budget`` for
how long: vLLM 0.24 (model runner V1) and 0.33 take it where they have a reasoning parser. A template without
such a switch writes the same prompt either way, which the number of prompt tokens shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkwright.engine.cell import REFUSED, Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import CHAT, Check, conclude, not_applicable
from sparkwright.verify.checks.flaws import against_each, answers_in, reasoning_mark
from sparkwright.verify.checks.traffic import questions
from sparkwright.verify.checks.triage import CheckedCells, Reason, all_refused

LONGEST = 2048
"""Tokens of reasoning and answer together: models think for some hundred about questions like these."""
PLAIN = 512
"""Tokens of an answer without reasoning."""
BUDGET = 24
SLACK = 24
"""Tokens beyond the budget that count as within it: marks around the reasoning, the words that some parsers
end it with, and the accepted tokens of a draft that come with the end of it."""


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield the same questions without reasoning, with it, and with a budget for it."""
    for kind, length, budget in (("off", PLAIN, 0), ("on", LONGEST, 0), ("budget", LONGEST, BUDGET)):
        prompts = questions("thinking", "reasoning", f"(Question {context.profile.seed}.) ", kind)
        yield context.cell(
            "thinking",
            f"thinking {kind}",
            prompts,
            tags={"kind": kind} | ({REFUSED: "may"} if budget else {}),
            concurrency=len(prompts),
            max_tokens=length,
            thinking=kind != "off",
            thinking_budget=budget,
            **CHAT,
        )


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return findings on reasoning that is off, on, and within a budget."""
    refused = next((o for o in seen.made if o.cell.tags["kind"] == "budget" and all_refused(o)), None)
    if refused is not None:
        seen = seen.where(lambda cell: cell.key != refused.cell.key)
    found = {o.cell.tags["kind"]: o for o in seen.sound}
    switch = _switch(found.get("off"), found.get("on"))
    thinks = {kind: _thinks(found.get(kind)) for kind in ("off", "on")}
    both = seen.where(lambda cell: cell.tags["kind"] in {"off", "on"})
    off = seen.tagged(kind="off")
    # Why there is nothing to judge, of each.
    not_off = not_on = unlimited = ""
    if not (off.troubles or switch):
        not_off = "the chat template has no switch of reasoning" if thinks["off"] else _NOTHING
    if not (both.troubles or switch or thinks["on"]):
        not_on = _NOTHING
    if refused is not None:
        unlimited = f"the server takes no budget: {all_refused(refused)}"
    elif not (seen.troubles or thinks["on"]):
        unlimited = _NOTHING
    budget = seen.tagged(kind="budget")
    return [
        not_applicable(off, "thinking.off", not_off) if not_off else _off(context, off),
        not_applicable(both, "thinking.on", not_on) if not_on else _on(context, both, found.get("on")),
        not_applicable(seen, "thinking.budget", unlimited) if unlimited else _budget(context, budget, found),
    ]


CHECK = Check("thinking", cells, judge)
_NOTHING = "the model does not think: no answer has reasoning, and its prompt is the same with and without"


# What was seen ------------------------------------------------------------------------------------------


def _switch(off: Observation | None, on: Observation | None) -> bool | None:
    """Tell if the template's prompt depends on the switch; `None` if tokens of prompts are not counted."""
    if off is None or on is None:
        return None
    counts = [[sample.prompt_tokens for sample in o.counted] for o in (off, on)]
    return sum(counts[0]) != sum(counts[1]) if all(map(all, counts)) else None


def _reasoning(sample: Sample) -> str:
    """Return the reasoning of *sample*; parsers may send the line breaks around one that is empty."""
    return sample.text[: sample.reasoning_chars].strip()


def _thinks(observation: Observation | None) -> bool:
    """Tell if any answer has reasoning, in its field or in the text."""
    return observation is not None and any(
        _reasoning(sample) or reasoning_mark(sample.answer) for sample in observation.counted
    )


def thought_tokens(sample: Sample) -> int:
    """Return the tokens of reasoning in *sample*: those of its chunks, or by its share of the characters."""
    counted = sum(chunk.tokens for chunk in sample.chunks if chunk.kind == "reasoning")
    if counted or not sample.text:
        return counted
    return round(sample.output_tokens * sample.reasoning_chars / len(sample.text))


# Findings -----------------------------------------------------------------------------------------------


def _off(context: Context, seen: CheckedCells) -> Finding:
    def reasoned(_: Observation, sample: Sample) -> str:
        if found := _reasoning(sample):
            return f"{len(found)} characters of reasoning"
        return "" if sample.answer.strip() else f"no answer in {sample.output_tokens} tokens"

    return conclude(
        seen,
        "thinking.off",
        against=against_each(seen, reasoned, made_up=context.made_up),
        passed=f"{answers_in(seen)} answers have none",
        warnings=seen.notes,
    )


def _on(context: Context, seen: CheckedCells, on: Observation | None) -> Finding:
    thought = seen.tagged(kind="on")
    against = against_each(thought, _unparsed, made_up=context.made_up)
    if on is not None and not against and not context.made_up:
        against = _unreasoned(on)
    tokens = [thought_tokens(sample) for sample in on.counted] if on is not None else []
    least, most = min(tokens, default=0), max(tokens, default=0)
    return conclude(
        seen,
        "thinking.on",
        against=against,
        passed=f"{answers_in(thought)} answers follow {least} to {most} tokens of reasoning",
        measured={"most tokens of reasoning": most},
    )


def _unparsed(_: Observation, sample: Sample) -> str:
    if mark := reasoning_mark(sample.answer):
        return f"{mark}: the server has no reasoning parser, or the wrong one"
    if sample.finish_reason != "length" and _reasoning(sample) and not sample.answer.strip():
        return f"{sample.output_tokens} tokens of reasoning, and no answer after them"
    return ""


def _unreasoned(on: Observation) -> list[Reason]:
    """Return the reason if answers have no reasoning at all, or all of them were cut."""
    if not any(map(_reasoning, on.counted)):
        shown = (
            f"thinking on: none of {len(on.counted)} answers has reasoning, though the template asks for it"
        )
        why = "the parser loses it" if any(s.answer.strip() for s in on.counted) else "they are empty"
        return [(Verdict.FAIL, f"{shown}: {why}")]
    if all(sample.finish_reason == "length" for sample in on.counted):
        shown = f"thinking on: {LONGEST} tokens cut all {len(on.counted)} answers"
        return [(Verdict.INCONCLUSIVE, shown)]
    return []


def _budget(context: Context, seen: CheckedCells, found: dict[str, Observation]) -> Finding:
    free, most = (
        max((thought_tokens(sample) for sample in found[kind].counted), default=0) if kind in found else 0
        for kind in ("on", "budget")
    )
    against: list[Reason] = []
    if most > BUDGET + SLACK:
        shown = f"{most} tokens of reasoning came where {BUDGET} were allowed"
        against = [(Verdict.FAIL, f"{shown}, {free} without a budget")]
    elif free <= BUDGET + SLACK and "on" in found:
        shown = f"reasoning has {free} tokens at the most without a budget: {BUDGET} do not limit it"
        against = [(Verdict.INCONCLUSIVE, shown)]
    return conclude(
        seen,
        "thinking.budget",
        against=[] if context.made_up else [*against, *against_each(seen, _unparsed)],
        passed=f"{most} tokens of reasoning at the most, {free} without a budget",
        measured={"tokens with a budget": most, "tokens without": free},
    )
