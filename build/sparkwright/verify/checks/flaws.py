"""All flaws of answers: of any text, of chats (markers, broken characters), of calls of tools, of JSON."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from sparkwright.engine.cell import REQUIRED, Load, Tool
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import Observation, Sample, ToolCall
from sparkwright.verify.checks.triage import CheckedCells, Reason, describe

LEAST_TOKENS = 32
"""Shorter texts are not judged: “Yes.” is a good answer."""
ONE_TOKEN = 0.8
LONGEST_PERIOD = 100
LEAST_REPEATS = 4
REPEATED = 0.5
STRANGE = 0.02
MIXED_SCRIPTS = 0.2
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
class Flaw:
    """A flaw of an answer, and what of the text shows it."""

    kind: Literal["empty", "one token", "repetition", "garbage"]
    shown: str


def flaw(text: str, token_ids: Sequence[int] = (), tokens: int = 0) -> Flaw | None:
    """Return the flaw of a generated text, the plainest first; `None` if there is none."""
    if tokens and not text.strip():
        return Flaw("empty", f"{tokens} tokens without any text")
    units: Sequence[Hashable] = token_ids or _units(text)
    if len(units) < LEAST_TOKENS:
        return None
    return _one_token(units, text) or _garbage(text) or _repetition(units, text)


def text_flaw(sample: Sample, *, loops: bool = False) -> str:
    """Return the flaw of an answer's text, loops or any other; empty if there is none."""
    if any(chunk.kind == "tool" for chunk in sample.chunks):
        return ""  # arguments are no prose
    found = flaw(sample.text, sample.token_ids, sample.output_tokens)
    return f"{found.kind}: {found.shown}" if found and (found.kind == "repetition") is loops else ""


def prose_flaw(sample: Sample) -> str:
    """Return the flaw of an answer that is text without marks; loops are none. Empty if there is none."""
    return (
        text_flaw(sample)
        or role_mark(sample.answer)
        or reasoning_mark(sample.answer)
        or broken_characters(sample.text, cut=sample.finish_reason == "length")
    )


def _units(text: str) -> list[str]:
    """Return words; in a run of one mark without spaces each mark counts, because ``!!!!`` is no word."""
    units: list[str] = []
    for word in text.split():
        units.extend(word if len(set(word)) == 1 else (word,))
    return units


def _one_token(units: Sequence[Hashable], text: str) -> Flaw | None:
    """Return a flaw if one token or one mark repeats; tokenizers join marks, such as ``!!!`` and ``!``."""
    marks = "".join(text.split())
    for name, items in (("tokens", units), ("characters", marks)):
        if len(items) < LEAST_TOKENS:
            continue
        count = Counter(items).most_common(1)[0][1]
        if count >= ONE_TOKEN * len(items):
            return Flaw("one token", f"{count} of {len(items)} {name} are the same: “{excerpt(text)}”")
    return None


def _garbage(text: str) -> Flaw | None:
    """Return a flaw for characters that no text has, or alphabets that change from word to word."""
    strange = sum(
        char == "\ufffd" or unicodedata.category(char) in {"Cc", "Co", "Cn"}
        for char in text
        if not char.isspace()
    )
    if strange > STRANGE * len(text):
        return Flaw("garbage", f"{strange} of {len(text)} characters are none: “{excerpt(text)}”")
    scripts = [script for word in text.split() if (script := _script(word))]
    changes = sum(a != b for a, b in pairwise(scripts))
    if len(scripts) >= LEAST_TOKENS and changes > MIXED_SCRIPTS * len(scripts):
        return Flaw(
            "garbage", f"the alphabet changes {changes} times in {len(scripts)} words: “{excerpt(text)}”"
        )
    return None


def _script(word: str) -> str:
    """Return the alphabet of a word's first letter, such as ``LATIN``; empty if it has none.

    Chinese and Japanese are written with several, and Greek letters stand in formulas for themselves.
    """
    for char in word:
        if char.isalpha():
            name = unicodedata.name(char, "?").partition(" ")[0]
            name = "CJK" if name in {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "FULLWIDTH"} else name
            return "" if name in {"GREEK", "MATHEMATICAL", "DOUBLE-STRUCK", "SCRIPT"} else name
    return ""


def _repetition(units: Sequence[Hashable], text: str) -> Flaw | None:
    """Return a flaw if the end of the text repeats the same few tokens."""
    longest = min(LONGEST_PERIOD, len(units) // LEAST_REPEATS)
    for period in range(1, longest + 1):
        length = _periodic_end(units, period)
        if length >= max(REPEATED * len(units), LEAST_REPEATS * period, LEAST_TOKENS):
            shown = f"the last {length} of {len(units)} tokens repeat {period}: “{excerpt(text[-400:])}”"
            return Flaw("repetition", shown)
    return None


def _periodic_end(units: Sequence[Hashable], period: int) -> int:
    """Return the number of last tokens that repeat with this period."""
    same = 0
    for at in range(len(units) - 1, period - 1, -1):
        if units[at] != units[at - period]:
            break
        same += 1
    return same + period if same else 0


def excerpt(text: str, most: int = 40) -> str:
    """Return the beginning of *text* in one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[:most] + "…"


# Chats -----------------------------------------------------------------------------------------------------


def against_each(
    seen: CheckedCells, find: Callable[[Observation, Sample], str], *, made_up: bool = False
) -> list[Reason]:
    """Return a reason for each cell in which *find* finds something, with the first answer that has it.

    Words of a model whose weights are *made_up* are not judged.
    """
    against = []
    for observation in () if made_up else seen.sound:
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
    """Return the flaw of calls of the offered *tools* in *sample*; empty if none is broken."""
    if found := _CALL.search(sample.answer):
        return f"a call was left in the text, {_shown(sample.answer, found)}"
    if sample.finish_reason == "length":
        return ""  # the last call is cut where the output was
    if not sample.tool_calls and not sample.text.strip() and sample.output_tokens > _FEW:
        return f"{sample.output_tokens} tokens without any text or call"
    if flaw := _calls_flaw(sample.tool_calls, tools):
        return flaw
    if sample.tool_calls and sample.finish_reason != "tool_calls":
        return f"calls of tools with the finish reason {sample.finish_reason!r}"
    return ""


def forced_flaw(sample: Sample, tools: Mapping[str, Tool], load: Load) -> str:
    """Return the flaw of calls that *load* demanded; empty if they are whole, or the answer was cut."""
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
    return _calls_flaw(sample.tool_calls, tools)


def _calls_flaw(calls: Iterable[ToolCall], tools: Mapping[str, Tool]) -> str:
    return next(filter(None, (_call_flaw(call, tools) for call in calls)), "")


def _call_flaw(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    if call.name not in tools:
        return f"a call of “{excerpt(call.name)}”, which was not offered"
    return misfit(call.arguments, f"arguments of {call.name}", tools[call.name].parameters)


def misfit(text: str, name: str, schema: Mapping[str, Any]) -> str:
    """Return the reason for which *text*, called *name*, is no JSON that fits *schema*; empty if it is."""
    from jsonschema.exceptions import best_match
    from jsonschema.validators import Draft202012Validator

    try:
        value = json.loads(text)
    except ValueError as error:
        # Cut, if the parser failed at its end, or in a string that has none.
        cut = isinstance(error, json.JSONDecodeError) and (
            error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        )
        return f"{name}: {'truncated' if cut else 'broken'} JSON ({error}): “…{text[-2 * _AROUND :]}”"
    worst = best_match(Draft202012Validator(schema).iter_errors(value))
    return "" if worst is None else f"{name} do not fit the schema: {worst.message}"


def _shown(text: str, found: re.Match[str]) -> str:
    return f"{found[0].strip()!r} in {_near(text, found.start())}"


def _near(text: str, at: int) -> str:
    return f"“{excerpt(text[max(0, at - _AROUND) : at + _AROUND], 2 * _AROUND)}”"
