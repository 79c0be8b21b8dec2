"""Chats as users send them: conversations with the model's template, calls of tools, structured output.

Each further message of a conversation is sent with the answers that the server gave before, so that prefixes
grow as they do in use; the cells of such a turn are planned once the turn before it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.engine.capabilities import TOOLS
from sparkwright.engine.cell import REQUIRED, Cell, Load, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.chatter import (
    Described,
    against_each,
    answers_in,
    broken_characters,
    forced_flaw,
    misfit,
    reasoning_mark,
    role_mark,
    tool_flaw,
)
from sparkwright.verify.checks.common import CheckedCells, Reason, conclude, describe, triage
from sparkwright.verify.checks.dialogues import (
    PARALLEL,
    SCHEMA,
    SINGLE,
    STRUCTURED_PROMPTS,
    TOOLS_OFFERED,
    TURNS,
    first_turn,
    next_turn,
)

LOADED = 4
LONGEST = 256
"""Tokens of an answer at the most; answers that reach it are cut, and their ends are not judged."""
_DEMANDED = TOOLS_OFFERED[0].name
_LONG_TOKEN = 8
"""Characters of a token of JSON on average, at the most: tokenizers in use have 3 to 5."""


@dataclass(frozen=True)
class Traffic:
    """Conversations of several turns, tools and structured output, several at a time, with natural ends."""

    name: str = "traffic"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return the first turn of the conversations, and cells of what the server has."""
        cells = [_cell(context, "turn 1", "talk", first_turn(context.profile.seed))]
        if TOOLS not in context.lacks:
            for name, prompts in (("single", SINGLE), ("parallel", PARALLEL)):
                cells.append(_cell(context, f"tools {name}", "tools", prompts, tools=TOOLS_OFFERED))
        for name, prompts, choice in (("named", SINGLE, _DEMANDED), (REQUIRED, PARALLEL, REQUIRED)):
            load = {"tools": TOOLS_OFFERED, "tool_choice": choice}
            cells.append(_cell(context, f"tools {name}", "forced", prompts, **load))
        cells.append(_cell(context, "structured", "structured", STRUCTURED_PROMPTS, schema=SCHEMA))
        return tuple(cells)

    def extend(self, context: Context, observations: Sequence[Observation]) -> tuple[Cell, ...]:
        """Return the next turn of the conversations, if the one before it was answered."""
        seen = {observation.cell.key for observation in observations}
        return tuple(cell for cell in _planned(self, context, observations) if cell.key not in seen)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return findings on template, history, characters, reasoning, tool calls and structured output."""
        seen = triage(self, context, observations, _planned(self, context, observations))
        return [
            _template(context, seen.tagged(kind="talk")),
            _history(seen.tagged(kind="talk")),
            _characters(context, seen),
            _reasoning(context, seen),
            _tools(context, seen.tagged(kind="tools")),
            _forced(seen.tagged(kind="forced")),
            _structured(seen.tagged(kind="structured")),
        ]


CHECK = RegisteredCheck(Traffic(), profiles={"full": 25, "cpu": 25}, tries=(TOOLS,))


# Cells --------------------------------------------------------------------------------------------------


def _cell(
    context: Context,
    name: str,
    kind: str,
    prompts: tuple[Prompt, ...],
    **more: Any,
) -> Cell:
    load = Load(
        concurrency=min(LOADED, len(prompts)),
        requests=len(prompts),
        max_tokens=min(LONGEST, context.profile.max_tokens) if kind == "talk" else LONGEST,
        natural_stop=True,
        chat=True,
        thinking=context.profile.thinking,
        seed=context.profile.seed,
        **more,
    )
    return Cell(check="traffic", name=name, load=load, prompts=prompts, tags={"kind": kind})


def _planned(check: Traffic, context: Context, observations: Sequence[Observation]) -> tuple[Cell, ...]:
    """Return all cells that follow from *observations*: each turn from the answers of the one before."""
    by_key = {observation.cell.key: observation for observation in observations}
    first, *others = check.plan(context)
    turns = [first]
    while len(turns) < TURNS and (observation := by_key.get(turns[-1].key)) is not None:
        answers = {sample.prompt: sample.answer for sample in observation.counted}
        last = turns[-1].prompts
        if not all(answers.get(prompt.name) for prompt in last):
            break
        prompts = tuple(next_turn(prompt, answers[prompt.name]) for prompt in last)
        turns.append(_cell(context, f"turn {len(turns) + 1}", "talk", prompts))
    return (first, *others, *turns[1:])


# Judging ------------------------------------------------------------------------------------------------


def _passed(context: Context, text: str) -> str:
    return "not judged: the model's weights are made up" if context.made_up else text


def _template(context: Context, seen: CheckedCells) -> Finding:
    ended = sum(sample.finish_reason == "stop" for o in seen.sound for sample in o.counted)
    return conclude(
        seen,
        "answers are in the chat template",
        "No answer holds markers of roles or goes on with messages of its own, as it does where chats are"
        " sent to the model without its template.",
        against=[] if context.made_up else against_each(seen, lambda _, sample: role_mark(sample.answer)),
        passed=_passed(context, f"{answers_in(seen)} answers hold no marker of a role"),
        threshold="none",
        measured={"answers": answers_in(seen), "ended by themselves": ended},
        warnings=seen.notes,
    )


def _history(seen: CheckedCells) -> Finding:
    against: list[Reason] = []
    measured: dict[str, float | str] = {}
    before: dict[str, int] = {}
    for observation in seen.sound:
        asked = {sample.prompt.partition("/")[2]: sample.prompt_tokens for sample in observation.counted}
        measured[f"{describe(observation.cell)} prompt tokens"] = sum(asked.values())
        if kept := [
            name for name, tokens in asked.items() if before.get(name, 0) + 1 >= tokens > 0 and before
        ]:
            shown = f"{asked[kept[0]]} tokens after {before[kept[0]]}"
            cause = f"{describe(observation.cell)}: {len(kept)} of {len(asked)} prompts did not grow, first"
            against.append((Verdict.FAIL, f"{cause} {kept[0]}: {shown}: earlier messages are dropped"))
        before = asked
    return conclude(
        seen,
        "conversations reach the model",
        "Each turn's prompt has more tokens than the one before, since it holds that one and its answer.",
        against=against,
        passed="prompts grow with each turn",
        threshold="more tokens than the turn before",
        measured=measured,
        lenient=True,
    )


def _characters(context: Context, seen: CheckedCells) -> Finding:
    def find(_: Observation, sample: Sample) -> str:
        return broken_characters(sample.text, cut=sample.finish_reason == "length")

    return conclude(
        seen,
        "characters are whole",
        "No answer holds U+FFFD, or the characters that UTF-8 read as Latin-1 makes; the prompts ask for"
        " characters of two to four bytes.",
        against=[] if context.made_up else against_each(seen, find),
        passed=_passed(context, f"{answers_in(seen)} answers hold none"),
        threshold="none, but at the end of an answer that was cut",
        lenient=True,
    )


def _reasoning(context: Context, seen: CheckedCells) -> Finding:
    return conclude(
        seen,
        "reasoning stays out of the answer",
        "No answer holds a mark at which reasoning begins or ends.",
        against=[]
        if context.made_up
        else against_each(seen, lambda _, sample: reasoning_mark(sample.answer)),
        passed=_passed(context, f"{answers_in(seen)} answers hold no mark of reasoning"),
        threshold="none",
        lenient=True,
    )


def _tools(context: Context, seen: CheckedCells) -> Finding:
    tools = {tool.name: tool for tool in TOOLS_OFFERED}
    calls = sum(len(sample.tool_calls) for o in seen.sound for sample in o.counted)
    several = sum(len(sample.tool_calls) > 1 for o in seen.sound for sample in o.counted)
    against = against_each(seen, lambda _, sample: tool_flaw(sample, tools))
    if context.made_up:
        against = []
    elif not calls and not against and seen.sound:
        against = [(Verdict.INCONCLUSIVE, _uncalled(seen))]
    alone = calls and not several
    return conclude(
        seen,
        "tool calls are whole",
        "Calls name a tool that was offered, their streamed arguments are JSON that fits the tool's schema,"
        " and none is left in the answer's text.",
        against=against,
        passed=_passed(context, f"{calls} calls in {answers_in(seen)} answers fit their schemas"),
        threshold="all",
        measured={"calls": calls, "answers with several calls": several},
        warnings=["no answer holds several calls, so that parallel ones were not seen"] if alone else [],
        needs=(TOOLS,),
    )


def _uncalled(seen: CheckedCells) -> str:
    """Return the cause where no tool was called: too short prompts, or the model."""
    offered = sum(len(json.dumps(tool.parameters) + tool.description) for tool in TOOLS_OFFERED)
    longest = max(sample.prompt_tokens for o in seen.sound for sample in o.counted)
    cause = f"the model called no tool in {answers_in(seen)} answers, though each prompt asks for it"
    if 0 < longest < offered / _LONG_TOKEN:
        cause += (
            f"; prompts have {longest} tokens at the most, so that the chat template leaves the tools out"
        )
    return cause


def _forced(seen: CheckedCells) -> Finding:
    tools = {tool.name: tool for tool in TOOLS_OFFERED}
    samples = [(o.cell.load, sample) for o in seen.sound for sample in o.counted]
    cut = sum(sample.output_tokens >= load.max_tokens for load, sample in samples)
    calls = sum(len(sample.tool_calls) for _, sample in samples)
    against = against_each(seen, lambda o, sample: forced_flaw(sample, tools, o.cell.load))
    if not against and samples and cut == len(samples):
        against = [(Verdict.INCONCLUSIVE, f"all {cut} answers were cut at the longest output")]
    return conclude(
        seen,
        "demanded tool calls come",
        "Answers to requests that demand a call (tool_choice required, or a tool by its name) hold one, of a"
        " tool that was offered, with streamed arguments that are JSON and fit the tool's schema. The server"
        " makes sure of that, whatever the model would have said.",
        against=against,
        passed=f"{calls} calls in {len(samples) - cut} answers fit their schemas",
        threshold="all that were not cut at the longest output",
        measured={
            "calls": calls,
            "cut": cut,
            "events with a call": sum(c.kind == "tool" for _, sample in samples for c in sample.chunks),
        },
    )


def _structured(seen: CheckedCells) -> Finding:
    def find(observation: Observation, sample: Sample) -> str:
        if sample.finish_reason == "length":
            return ""
        return misfit(sample.answer, Described("answer", observation.cell.load.schema))

    cut = sum(sample.finish_reason == "length" for o in seen.sound for sample in o.counted)
    against = against_each(seen, find)
    if not against and seen.sound and cut == answers_in(seen):
        against = [(Verdict.INCONCLUSIVE, f"all {cut} answers were cut at the longest output")]
    return conclude(
        seen,
        "structured output fits its schema",
        "Answers to requests with a JSON schema are JSON that fits it.",
        against=against,
        passed=f"{answers_in(seen) - cut} answers fit",
        threshold="all that were not cut at the longest output",
        measured={"answers": answers_in(seen), "cut": cut},
    )
