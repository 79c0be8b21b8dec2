"""Reasoning in chats: off, on and within a budget; it stays in its own field, and an answer follows.

The request says by ``chat_template_kwargs`` if the model is to think, and by ``thinking_token_budget`` for
how long: vLLM 0.24 (model runner V1) and 0.33 take it where they have a reasoning parser. A template without
such a switch writes the same prompt either way, which the number of prompt tokens shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.engine.cell import REFUSED, Cell, Load, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.chatter import against_each, answers_in, reasoning_mark
from sparkwright.verify.checks.common import (
    CheckedCells,
    Reason,
    all_refused,
    conclude,
    not_applicable,
    triage,
)

LONGEST = 2048
"""Tokens of reasoning and answer together: models think for some hundred about questions like these."""
PLAIN = 512
"""Tokens of an answer without reasoning."""
BUDGET = 24
SLACK = 24
"""Tokens beyond the budget that count as within it: marks around the reasoning, the words that some parsers
end it with, and the accepted tokens of a draft that come with the end of it."""

_QUESTIONS = (
    "A train leaves at 14:35 and arrives at 17:10. How many minutes does it take?",
    "Tom has 3 boxes of 12 eggs and breaks 5 eggs. How many eggs are whole?",
    "Which is larger, 7/8 or 6/7? Explain in one sentence.",
    "Anna is older than Ben, and Ben is older than Carl. Who is the youngest?",
)


@dataclass(frozen=True)
class Thinking:
    """The same questions without reasoning, with it, and with a budget for it."""

    name: str = "thinking"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return a cell without reasoning, one with it, and one with a budget."""
        return _cell(context, "off"), _cell(context, "on"), _cell(context, "budget", BUDGET)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return findings on reasoning that is off, on, and within a budget."""
        refused = next((o for o in observations if o.cell.tags["kind"] == "budget" and all_refused(o)), None)
        planned = [cell for cell in self.plan(context) if refused is None or cell.key != refused.cell.key]
        kept = [o for o in observations if o is not refused]
        seen = triage(self, context, kept, planned)
        found = {o.cell.tags["kind"]: o for o in seen.sound}
        switch = _switch(found.get("off"), found.get("on"))
        findings = [
            _off(context, seen.tagged(kind="off"), found, switch),
            _on(context, seen.where(lambda cell: cell.tags["kind"] in {"off", "on"}), found, switch),
        ]
        if refused is not None:
            return [*findings, _unlimited(seen, f"the server takes no budget: {all_refused(refused)}")]
        return [*findings, _budget(context, seen, found)]


CHECK = RegisteredCheck(Thinking(), profiles={"full": 27})


def _cell(context: Context, kind: str, budget: int = 0) -> Cell:
    prompts = tuple(
        Prompt(name=f"{kind}/{n}", category="reasoning", text=f"(Question {context.profile.seed}.) {text}")
        for n, text in enumerate(_QUESTIONS)
    )
    load = Load(
        concurrency=len(prompts),
        requests=len(prompts),
        max_tokens=PLAIN if kind == "off" else LONGEST,
        natural_stop=True,
        chat=True,
        thinking=kind != "off",
        thinking_budget=budget,
        seed=context.profile.seed,
    )
    return Cell(
        check="thinking",
        name=f"thinking {kind}",
        load=load,
        prompts=prompts,
        tags={"kind": kind} | ({REFUSED: "may"} if budget else {}),
    )


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

_OFF, _ON, _WITHIN = "no reasoning where it is off", "reasoning has its field", "reasoning keeps its budget"


def _nothing(seen: CheckedCells, name: str) -> Finding:
    reason = "the model does not think: no answer has reasoning, and its prompt is the same with and without"
    return not_applicable(seen, name, "Chats of a model that can think.", reason)


def _off(
    context: Context,
    seen: CheckedCells,
    found: dict[str, Observation],
    switch: bool | None,  # noqa: FBT001
) -> Finding:
    if not seen.troubles and not (switch or _thinks(found.get("off"))):
        return _nothing(seen, _OFF)
    if not seen.troubles and not switch:
        return not_applicable(
            seen, _OFF, "Chats that switch reasoning off.", "the chat template has no switch of reasoning"
        )

    def reasoned(_: Observation, sample: Sample) -> str:
        if found := _reasoning(sample):
            return f"{len(found)} characters of reasoning"
        return "" if sample.answer.strip() else f"no answer in {sample.output_tokens} tokens"

    return conclude(
        seen,
        _OFF,
        "Chats with enable_thinking false: answers have no reasoning, and none is empty.",
        against=[] if context.made_up else against_each(seen, reasoned),
        passed=f"{answers_in(seen)} answers have none",
        threshold="none",
        warnings=seen.notes,
    )


def _on(
    context: Context,
    seen: CheckedCells,
    found: dict[str, Observation],
    switch: bool | None,  # noqa: FBT001
) -> Finding:
    on = found.get("on")
    if not seen.troubles and not (switch or _thinks(on)):
        return _nothing(seen, _ON)
    thought = seen.tagged(kind="on")
    against = [] if context.made_up else against_each(thought, _unparsed)
    if on is not None and not against and not context.made_up:
        against = _unreasoned(on)
    tokens = [thought_tokens(sample) for sample in on.counted] if on is not None else []
    return conclude(
        seen,
        _ON,
        "Chats with enable_thinking true: reasoning comes in a field of its own, and an answer follows it.",
        against=against,
        passed=f"{answers_in(thought)} answers follow {min(tokens, default=0)} to {max(tokens, default=0)}"
        " tokens of reasoning",
        threshold=f"all; of those that {LONGEST} tokens cut, the reasoning alone",
        measured={"most tokens of reasoning": max(tokens, default=0)},
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


def _unlimited(seen: CheckedCells, because: str) -> Finding:
    return not_applicable(seen, _WITHIN, "Chats with a budget of reasoning.", because)


def _budget(context: Context, seen: CheckedCells, found: dict[str, Observation]) -> Finding:
    on, within = found.get("on"), found.get("budget")
    if not seen.troubles and not _thinks(on):
        return _nothing(seen, _WITHIN)
    limit = BUDGET + SLACK
    free = max((thought_tokens(sample) for sample in on.counted), default=0) if on is not None else 0
    most = max((thought_tokens(sample) for sample in within.counted), default=0) if within is not None else 0
    against: list[Reason] = []
    if most > limit:
        shown = f"{most} tokens of reasoning came where {BUDGET} were allowed"
        against = [(Verdict.FAIL, f"{shown}, {free} without a budget")]
    elif free <= limit and on is not None:
        shown = f"reasoning has {free} tokens at the most without a budget: {BUDGET} do not limit it"
        against = [(Verdict.INCONCLUSIVE, shown)]
    return conclude(
        seen.tagged(kind="budget"),
        _WITHIN,
        "Chats with thinking_token_budget: reasoning ends there, and an answer follows.",
        against=[] if context.made_up else [*against, *against_each(seen.tagged(kind="budget"), _unparsed)],
        passed=f"{most} tokens of reasoning at the most, {free} without a budget",
        threshold=f"{BUDGET} tokens, and {SLACK} for marks, the last words and a draft",
        measured={"tokens with a budget": most, "tokens without": free},
    )
