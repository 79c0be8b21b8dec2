"""Chats as users send them: conversations with the model's template, tools, structured output, pictures.

Each further message of a conversation is sent with the answers that the server gave before, so that prefixes
grow as they do in use; the cells of such a turn are planned once the turn before it was measured.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import msgspec

from sparkwright.engine.cell import REFUSED, REQUIRED, Cell, Message, Prompt, Tool
from sparkwright.engine.client.payload import COLOURS, draw_colour
from sparkwright.engine.findings import IMAGES, TOOLS, Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify import corpus
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import CHAT, Check, Values, answered, conclude
from sparkwright.verify.checks.flaws import (
    against_each,
    answers_in,
    broken_characters,
    excerpt,
    forced_flaw,
    misfit,
    reasoning_mark,
    role_mark,
    tool_flaw,
)
from sparkwright.verify.checks.triage import CheckedCells, Reason, all_refused, describe
from sparkwright.verify.corpus import holds

_CHATS = tomllib.loads((resources.files(corpus) / "chats.toml").read_text(encoding="utf-8"))
_TALKS: Mapping[str, Sequence[str]] = _CHATS["talks"]
TURNS = min(map(len, _TALKS.values()))


def first_turn(seed: int) -> tuple[Prompt, ...]:
    """Return the first message of each conversation, with a number that differs by *seed*."""
    return tuple(
        Prompt(name=f"1/{subject}", category="dialogue", text=f"(Conversation {seed}.) {texts[0]}")
        for subject, texts in _TALKS.items()
    )


def next_turn(prompt: Prompt, answer: str) -> Prompt:
    """Return the message that follows the *answer* to *prompt*, with all messages before it."""
    turn, _, subject = prompt.name.partition("/")
    said = (Message(role="user", content=prompt.text), Message(role="assistant", content=answer))
    return msgspec.structs.replace(
        prompt,
        name=f"{int(turn) + 1}/{subject}",
        text=_TALKS[subject][int(turn)],
        history=(*prompt.history, *said),
    )


def _object(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties, all of them required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT = {"type": "string", "minLength": 1, "maxLength": 40}  # small models do not end strings
TOOLS_OFFERED = (
    Tool(
        name="get_weather",
        description="Return the weather forecast for a city.",
        parameters=_object(
            city=_TEXT,
            days={"type": "integer", "minimum": 1, "maximum": 14},
            unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
        ),
    ),
    Tool(
        name="set_reminder",
        description="Store a reminder of the user's.",
        parameters=_object(text=_TEXT, hours={"type": "integer", "minimum": 1}),
    ),
)


def questions(kind: str, category: str, begin: str = "", name: str = "") -> tuple[Prompt, ...]:
    """Return the questions of one *kind*, each with this *begin*; *name* or the kind begins their names."""
    return tuple(
        Prompt(name=f"{name or kind}/{number}", category=category, text=f"{begin}{text}")
        for number, text in enumerate(_CHATS[kind])
    )


SINGLE, PARALLEL, STRUCTURED_PROMPTS = (
    questions(kind, "extraction") for kind in ("single", "parallel", "structured")
)
SCHEMA = _object(
    name=_TEXT,
    age={"type": "integer", "minimum": 0, "maximum": 120},
    colour={"type": "string", "enum": ["red", "green", "blue"]},
    tags={"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 3},
)

LOADED = 4
LONGEST = 256
"""Tokens of an answer at the most; answers that reach it are cut, and their ends are not judged."""
_DEMANDED = TOOLS_OFFERED[0].name
_LONG_TOKEN = 8
"""Characters of a token of JSON on average, at the most: tokenizers in use have 3 to 5."""


def cells(context: Context, seen: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield the first turn of conversations, tools and schemas, and each turn after the one before it."""
    turn = _cell(context, "turn 1", "talk", first_turn(context.profile.seed))
    yield turn
    if TOOLS not in context.lacks:
        for name, prompts in (("single", SINGLE), ("parallel", PARALLEL)):
            yield _cell(context, f"tools {name}", "tools", prompts, tools=TOOLS_OFFERED)
        for name, prompts, choice in (("named", SINGLE, _DEMANDED), (REQUIRED, PARALLEL, REQUIRED)):
            load = {"tools": TOOLS_OFFERED, "tool_choice": choice}
            yield _cell(context, f"tools {name}", "forced", prompts, **load)
    yield _cell(context, "structured", "structured", STRUCTURED_PROMPTS, schema=SCHEMA)
    for number in range(2, TURNS + 1):
        if (observation := seen.get(turn.key)) is None:
            return
        answers = {sample.prompt: sample.answer for sample in observation.counted}
        if not all(answers.get(prompt.name) for prompt in turn.prompts):
            return
        following = tuple(next_turn(prompt, answers[prompt.name]) for prompt in turn.prompts)
        turn = _cell(context, f"turn {number}", "talk", following)
        yield turn


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return findings on template, history, characters, reasoning, tool calls and structured output."""
    talk = seen.tagged(kind="talk")
    ended = sum(sample.finish_reason == "stop" for o in talk.sound for sample in o.counted)
    return [
        conclude(
            talk,
            "traffic.template",
            against=against_each(talk, lambda _, one: role_mark(one.answer), made_up=context.made_up),
            passed=context.judged(f"{answers_in(talk)} answers hold no marker of a role"),
            measured={"answers": answers_in(talk), "ended by themselves": ended},
            warnings=seen.notes,
        ),
        _history(talk),
        conclude(
            seen,
            "traffic.characters",
            against=against_each(
                seen,
                lambda _, one: broken_characters(one.text, cut=one.finish_reason == "length"),
                made_up=context.made_up,
            ),
            passed=context.judged(f"{answers_in(seen)} answers hold none"),
        ),
        conclude(
            seen,
            "traffic.reasoning",
            against=against_each(seen, lambda _, one: reasoning_mark(one.answer), made_up=context.made_up),
            passed=context.judged(f"{answers_in(seen)} answers hold no mark of reasoning"),
        ),
        _tools(context, seen.tagged(kind="tools")),
        _forced(seen.tagged(kind="forced")),
        _structured(seen.tagged(kind="structured")),
    ]


CHECK = Check("traffic", cells, judge)


def _cell(context: Context, name: str, kind: str, prompts: tuple[Prompt, ...], **more: Any) -> Cell:
    return context.cell(
        "traffic",
        name,
        prompts,
        tags={"kind": kind},
        concurrency=min(LOADED, len(prompts)),
        max_tokens=min(LONGEST, context.profile.max_tokens) if kind == "talk" else LONGEST,
        thinking=context.profile.thinking,
        **CHAT,
        **more,
    )


# Judging ------------------------------------------------------------------------------------------------


def _history(seen: CheckedCells) -> Finding:
    against: list[Reason] = []
    measured: Values = {}
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
        seen, "traffic.history", against=against, passed="prompts grow with each turn", measured=measured
    )


def _tools(context: Context, seen: CheckedCells) -> Finding:
    tools = {tool.name: tool for tool in TOOLS_OFFERED}
    calls = sum(len(sample.tool_calls) for o in seen.sound for sample in o.counted)
    several = sum(len(sample.tool_calls) > 1 for o in seen.sound for sample in o.counted)
    against = against_each(seen, lambda _, sample: tool_flaw(sample, tools), made_up=context.made_up)
    if not (calls or against or context.made_up) and seen.sound:
        against = [(Verdict.INCONCLUSIVE, _uncalled(seen))]
    alone = calls and not several
    return conclude(
        seen,
        "traffic.tools",
        against=against,
        passed=context.judged(f"{calls} calls in {answers_in(seen)} answers fit their schemas"),
        measured={"calls": calls, "answers with several calls": several},
        warnings=["no answer holds several calls, so that parallel ones were not seen"] if alone else [],
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
        "traffic.forced",
        against=against,
        passed=f"{calls} calls in {len(samples) - cut} answers fit their schemas",
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
        return misfit(sample.answer, "answer", observation.cell.load.schema)

    cut = sum(sample.finish_reason == "length" for o in seen.sound for sample in o.counted)
    against = against_each(seen, find)
    if not against and seen.sound and cut == answers_in(seen):
        against = [(Verdict.INCONCLUSIVE, f"all {cut} answers were cut at the longest output")]
    return conclude(
        seen,
        "traffic.structured",
        against=against,
        passed=f"{answers_in(seen) - cut} answers fit",
        measured={"answers": answers_in(seen), "cut": cut},
    )


# Pictures ------------------------------------------------------------------------------------------------

LEAST_COLOURS = 5
"""Of six: where red and blue are exchanged, three are right, and who answers one colour always has one."""
_ASKED = "Which colour is this picture? Answer with one of: " + ", ".join(COLOURS) + "."


def _picture_cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield a cell with a picture of each colour, and one of the same questions alone.

    So a lucky guess and a picture that never reaches the prompt are told apart from sight.
    """
    draw = random.Random(f"pictures {context.profile.seed}")  # noqa: S311 - pictures, not secrets
    prompts = [
        Prompt(f"colour/{n}", "extraction", _ASKED, expect=one, images=(draw_colour(one),))
        for n, one in enumerate(draw.sample(sorted(COLOURS), len(COLOURS)))
    ]
    bare = [msgspec.structs.replace(one, name=f"bare {one.name}", images=()) for one in prompts]
    for kind, these, tags in (("with", prompts, {REFUSED: "may"}), ("without", bare, {})):
        yield context.cell(
            "image",
            f"{kind} pictures",
            these,
            tags={"kind": kind, **tags},
            concurrency=LOADED,
            max_tokens=LONGEST,
            **CHAT,
        )


def _judge_pictures(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return a finding on tokens of pictures, and one on sight."""
    for observation in seen.made:
        if observation.cell.tags["kind"] == "with" and (words := all_refused(observation)):
            lacks = {**context.lacks, IMAGES: f"chats with pictures are refused: {words}"}
            seen = CheckedCells(seen.check, (), lacks=lacks)
    return [_sent(seen), _sight(context, seen)]


IMAGE = Check("image", _picture_cells, _judge_pictures)


def _sent(seen: CheckedCells) -> Finding:
    counts = {o.cell.tags["kind"]: {s.prompt: s.prompt_tokens for s in o.counted} for o in seen.sound}
    having, bare = counts.get("with", {}), counts.get("without", {})
    more = {name: count - bare[f"bare {name}"] for name, count in having.items() if f"bare {name}" in bare}
    against: list[Reason] = []
    if lost := [name for name, tokens in more.items() if tokens <= 0]:
        shown = f"{len(lost)} of {len(more)} prompts have no more tokens with their picture, first {lost[0]}"
        against = [(Verdict.FAIL, f"{shown}: pictures are left out of the prompt")]
    least = min(more.values(), default=0)
    return conclude(
        seen,
        "traffic.sent",
        against=against,
        passed=f"a picture takes {least} tokens or more",
        measured={"least tokens of a picture": least},
        warnings=seen.notes,
    )


def _sight(context: Context, seen: CheckedCells) -> Finding:
    kinds = {o.cell.tags["kind"]: _named_right(o) for o in seen.sound}
    found, wrong = kinds.get("with", (0, ""))
    guessed, _ = kinds.get("without", (0, ""))
    against: list[Reason] = []
    if "with" in kinds and found < LEAST_COLOURS and not context.made_up:
        shown = f"{found} of {len(COLOURS)} colours are right with pictures, {guessed} without; {wrong}"
        against = [(Verdict.FAIL, f"pictures are not seen as they are: {shown}")]
    elif guessed >= LEAST_COLOURS:
        shown = f"{guessed} of {len(COLOURS)} colours are right without a picture: they prove nothing"
        against = [(Verdict.INCONCLUSIVE, shown)]
    return conclude(
        seen,
        "traffic.seen",
        told={"colours": len(COLOURS)},
        against=against,
        passed=context.judged(f"{found} of {len(COLOURS)} colours are right, {guessed} without pictures"),
        measured={"colours": found, "colours without pictures": guessed},
    )


def _named_right(observation: Observation) -> tuple[int, str]:
    """Return the number of answers that name the colour and no other, and the first that does not."""
    answers = answered(observation)
    wrong = []
    for sample, expect in answers:
        others = [name for name in COLOURS if name != expect]
        if not holds(expect, sample.answer) or any(holds(name, sample.answer) for name in others):
            wrong.append(f"“{expect}” is called “{excerpt(sample.answer)}”")
    return len(answers) - len(wrong), next(iter(wrong), "")
