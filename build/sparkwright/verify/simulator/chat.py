"""Answers of the simulated model to chats: repeated sentences, calls of tools, structured output.

`script_of` returns the text that an answer begins with; faults of templates and parsers change it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from sparkwright.verify.simulator.language import answer_to, digest, spell, text_of
from sparkwright.verify.simulator.vision import look_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparkwright.verify.simulator.faults import Faults
    from sparkwright.verify.simulator.params import RequestParams
    from sparkwright.verify.simulator.settings import Settings

_REPEATED: Final = re.compile(r"\bRepeat [^:]*: “(?P<text>[^”]+)”")
_COUNTED: Final = re.compile(r"\bnumbers from (\d+) to (\d+)")
_EACH: Final = re.compile(r"\bfor each of [^:]*: (?P<items>[^.?]+)[.?]")
_QUOTED: Final = re.compile(r"“([^”]+)”")
_NUMBER: Final = re.compile(r"-?\d+")
PLAIN: Final = " The river follows the old road."
_THOUGHTS: Final = (" the quiet river follows the old road.", " every narrow bridge crosses this valley.")
_FEWEST_THOUGHTS, _MORE_THOUGHTS = 8, 4  # sentences
_CALLS: Final = "\n"  # between the arguments of calls; JSON without line breaks has none
_CUT: Final = 2  # characters that the fault of truncated arguments takes off


def template(messages: list[Mapping[str, Any]], *, thinking: bool | None = None) -> str:
    """Return messages in a chat template such as Qwen's, which switches *thinking* if that is set."""
    parts = [f"<|im_start|>{each.get('role', 'user')}\n{content_of(each)}<|im_end|>\n" for each in messages]
    return "".join(
        [*parts, "<|im_start|>assistant\n", "<think>\n\n</think>\n\n" if thinking is False else ""]
    )


def content_of(message: Mapping[str, Any]) -> str:
    """Return the text of a *message*, whose content may come in parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def images_of(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the addresses of the pictures in a *message*."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return ()
    return tuple(part["image_url"]["url"] for part in content if part.get("type") == "image_url")


def schema_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema that a request demands; empty if it demands none."""
    wanted = body.get("response_format") or {}
    return dict(wanted["json_schema"]["schema"]) if wanted.get("type") == "json_schema" else {}


def plan_calls(
    tools: Sequence[Mapping[str, Any]], question: str, faults: Faults
) -> tuple[tuple[str, str], ...]:
    """Return names and arguments of the calls that answer *question*, as the tool parser sends them.

    The first tool is called once, or once for each item that the question lists.
    """
    if not tools:
        return ()
    function = tools[0]["function"]
    listed = _EACH.search(question)
    items = re.split(r", (?:and )?| and ", listed["items"]) if listed else [""]
    calls = []
    for item in items:
        values = instance(function.get("parameters") or {"type": "object"}, question, item.strip())
        if "tool-parser-swallows" in faults and isinstance(values, dict) and values:
            values.popitem()
        text = json.dumps(values, ensure_ascii=False)
        calls.append((function["name"], text[:-_CUT] if "tool-json-truncated" in faults else text))
    return tuple(calls)


def instance(schema: Mapping[str, Any], text: str, item: str = "") -> Any:
    """Return a value that fits *schema*, with words and numbers of *text*.

    Args:
        schema: JSON schema of objects, arrays, enumerations, integers and strings.
        text: the question.
        item: the value of strings, if not empty.
    """
    if choices := schema.get("enum"):
        return next((choice for choice in choices if str(choice) in text), choices[0])
    match schema.get("type", "object"):
        case "object":
            properties = schema.get("properties", {})
            return {name: instance(value, text, item) for name, value in properties.items()}
        case "array":
            return [instance(schema.get("items", {"type": "string"}), text, item)]
        case "integer" | "number":
            found = _NUMBER.search(text)
            return int(found[0]) if found else 1
        case _:
            quoted = _QUOTED.search(text)
            return item or (quoted[1] if quoted else "river")


def script_of(params: RequestParams, faults: Faults) -> str:
    """Return the text that the answer to a chat begins with; empty for free text."""
    if params.calls:
        return _CALLS.join(arguments for _, arguments in params.calls)
    if params.schema:
        return json.dumps(instance(params.schema, params.question), ensure_ascii=False)
    repeated, counted = _REPEATED.search(params.question), _COUNTED.search(params.question)
    if params.images and "image-ignored" not in faults:
        answer = f" It is {look_at(params.images[-1])}."
    elif counted:
        answer = " " + ", ".join(map(str, range(int(counted[1]), int(counted[2]) + 1)))
    else:
        answer = f" {repeated['text']}" if repeated else answer_to(params.text)
    if "template-missing" in faults:
        return f"{answer or PLAIN}\nuser: Tell me more.\nassistant: The garden holds a quiet machine."
    if "reasoning-in-answer" in faults:
        return f" The user wants a short answer, so one sentence will do.\n</think>\n\n{answer or PLAIN}"
    return answer


def thoughts_of(params: RequestParams, settings: Settings) -> str:
    """Return the reasoning that a chat's output begins with; empty for none."""
    faults = settings.faults
    wanted = params.thinking or "thinking-not-off" in faults
    if not (settings.reasoning and params.chat and wanted) or params.calls or params.schema:
        return ""
    sentences = _FEWEST_THOUGHTS + digest(params.question.encode()) % _MORE_THOUGHTS
    tokens = spell("".join(_THOUGHTS[number % len(_THOUGHTS)] for number in range(sentences)))
    return text_of(tokens[: params.thinking_budget])


def broken(text: str) -> str:
    """Return *text* as detokenized byte by byte: each byte of a longer character is a U+FFFD."""
    return "".join(char if char.isascii() else "\ufffd" * len(char.encode()) for char in text)


class CallWriter:
    """Splits the generated text of an answer into parts of its *calls*, as a tool parser streams them.

    Args:
        calls: names and arguments.
        identity: beginning of the calls' ids.
    """

    def __init__(self, calls: Sequence[tuple[str, str]], identity: str) -> None:
        self._calls, self._identity = calls, identity
        self._at, self._named = 0, -1

    def parts(self, text: str) -> list[dict[str, Any]]:
        """Return the parts in the next piece of *text*; the name comes with a call's first one."""
        found: list[dict[str, Any]] = []
        for number, piece in enumerate(text.split(_CALLS)):
            self._at += number > 0
            if self._at >= len(self._calls):
                break
            function = {"arguments": piece}
            call: dict[str, Any] = {"index": self._at, "function": function}
            if self._at > self._named:
                self._named = self._at
                call |= {"id": f"{self._identity}-{self._at}", "type": "function"}
                function["name"] = self._calls[self._at][0]
            elif not piece:
                continue
            found.append(call)
        return found
