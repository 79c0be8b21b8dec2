"""Flaws of chat answers: markers of roles and of reasoning, broken characters, calls that fit no schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engine.cell import REQUIRED, Load, Tool
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import Observation, Sample, ToolCall
from sparkwright.verify.checks.common import CheckedCells, Reason, describe
from sparkwright.verify.checks.text import excerpt

_ROLES = re.compile(
    r"<\|(?:im_start|im_end|start_header_id|end_header_id|eot_id|user|assistant|system|endoftext)\|>"
    r"|</?(?:start|end)_of_turn>|\[/?INST\]|<<SYS>>"
    r"|^[ \t]*(?:assistant|user|system|human)[ \t]*(?::|$)",
    re.IGNORECASE | re.MULTILINE,
)
"""Markers of the templates in use; and lines that begin with a role, all that is left of a marker where the
server skips special tokens."""
_REASONING = re.compile(
    r"</?(?:think|thinking|thought|reasoning)>|<\|channel\|>|\[/?THINK\]|<\|(?:begin|end)_of_thought\|>",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"</?tool_calls?>|<\|tool_calls?(?:_begin|_section_begin)?\|>|\[TOOL_CALLS\]|<function=|<\|python_tag\|>"
)
# UTF-8 of two and three bytes, read as Latin-1 or Windows-1252.
_MOJIBAKE = re.compile("[\u00c2\u00c3][\u0080-\u00bf]|\u00e2\u20ac[\u0080-\u00bf\u2013-\u2122]")
_AROUND = 24
_FEW = 4  # tokens of an answer that is empty by itself: marks of its end


@dataclass(frozen=True)
class Described:
    """A schema with a name for causes."""

    name: str
    schema: Mapping[str, Any]


def against_each(seen: CheckedCells, find: Callable[[Observation, Sample], str]) -> list[Reason]:
    """Return a reason for each cell in which *find* finds something, with the first answer that has it."""
    against = []
    for observation in seen.sound:
        found = [(s, what) for s in observation.counted if (what := find(observation, s))]
        if found:
            sample, what = found[0]
            count = f"{len(found)} of {len(observation.counted)} answers"
            against.append(
                (Verdict.FAIL, f"{describe(observation.cell)}: {count}, first to {sample.prompt}: {what}")
            )
    return against


def answers_in(seen: CheckedCells) -> int:
    """Return the number of answers in the sound cells."""
    return sum(len(observation.counted) for observation in seen.sound)


def role_mark(answer: str) -> str:
    """Return the first marker of a role in *answer* with the text around it; empty if there is none."""
    found = _ROLES.search(answer)
    return f"the marker of a role, {_shown(answer, found)}" if found else ""


def reasoning_mark(answer: str) -> str:
    """Return the first mark of reasoning in *answer* with the text around it; empty if there is none."""
    found = _REASONING.search(answer)
    return f"reasoning in the answer, {_shown(answer, found)}" if found else ""


def broken_characters(text: str, *, cut: bool) -> str:
    """Return the first broken character of *text*; an answer that was *cut* may end within one."""
    text = text.rstrip("\ufffd") if cut else text
    if "\ufffd" in text:
        at = text.index("\ufffd")
        return f"{text.count(chr(0xFFFD))} replacement characters (U+FFFD), such as in {_near(text, at)}"
    found = _MOJIBAKE.search(text)
    return f"UTF-8 read as Latin-1, {_shown(text, found)}" if found else ""


def tool_flaw(sample: Sample, tools: Mapping[str, Tool]) -> str:
    """Return the flaw of the tool calls in *sample*; empty if they are whole, or there are none.

    Args:
        sample: the answer.
        tools: those that were offered, by name.
    """
    if found := _CALL.search(sample.answer):
        return f"a call was left in the text, {_shown(sample.answer, found)}"
    if sample.finish_reason == "length":
        return ""  # the last call is cut where the output was
    if not sample.tool_calls and not sample.text.strip() and sample.output_tokens > _FEW:
        return f"{sample.output_tokens} tokens without any text or call"
    if flaw := next(filter(None, (_call_flaw(call, tools) for call in sample.tool_calls)), ""):
        return flaw
    if sample.tool_calls and sample.finish_reason != "tool_calls":
        return f"calls of tools with the finish reason {sample.finish_reason!r}"
    return ""


def forced_flaw(sample: Sample, tools: Mapping[str, Tool], load: Load) -> str:
    """Return the flaw of calls that a request demanded; empty if they are whole, or the answer was cut.

    Args:
        sample: the answer.
        tools: those that were offered, by name.
        load: of the request, with the tool that it demanded.
    """
    # vLLM gives an answer that was cut within a call the finish reason of a whole one.
    cut = sample.finish_reason == "length" or sample.output_tokens >= load.max_tokens
    wanted = "a call" if load.tool_choice == REQUIRED else f"a call of {load.tool_choice}"
    if cut and (sample.tool_calls or not sample.answer.strip()):
        return ""
    if not sample.tool_calls:
        return f"no call, though the request demands {wanted}: “{excerpt(sample.answer)}”"
    if load.tool_choice != REQUIRED:
        other = [call.name for call in sample.tool_calls if call.name != load.tool_choice]
        if other or len(sample.tool_calls) > 1:
            named = ", ".join(call.name for call in sample.tool_calls)
            return f"calls of {excerpt(named)}, though the request demands {wanted}"
    return next(filter(None, (_call_flaw(call, tools) for call in sample.tool_calls)), "")


def _call_flaw(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    if call.name not in tools:
        return f"a call of “{excerpt(call.name)}”, which was not offered"
    return misfit(call.arguments, Described(f"arguments of {call.name}", tools[call.name].parameters))


def misfit(text: str, described: Described) -> str:
    """Return the reason for which *text* is no JSON that fits the schema; empty if it is."""
    from jsonschema.exceptions import best_match
    from jsonschema.validators import Draft202012Validator

    try:
        value = json.loads(text)
    except ValueError as error:
        where = "truncated" if _is_truncated(text, error) else "broken"
        return f"{described.name}: {where} JSON ({error}): “…{text[-2 * _AROUND :]}”"
    worst = best_match(Draft202012Validator(described.schema).iter_errors(value))
    return "" if worst is None else f"{described.name} do not fit the schema: {worst.message}"


def _is_truncated(text: str, error: ValueError) -> bool:
    """Tell if the parser failed at the end of *text*, or in a string that has no end."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")


def _shown(text: str, found: re.Match[str]) -> str:
    return f"{found[0].strip()!r} in {_near(text, found.start())}"


def _near(text: str, at: int) -> str:
    return f"“{excerpt(text[max(0, at - _AROUND) : at + _AROUND], 2 * _AROUND)}”"
