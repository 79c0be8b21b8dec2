"""Does a tool's argument survive that contains the tag which closes a parameter?

Both names of upstream's parser (`qwen3_xml` and `qwen3_coder`) read calls as Qwen3's chat template writes
them: whole, in two pieces at every place, character by character, and in random pieces. The JSON that
comes out has to be what was called with.

Controls: values of every type without such a tag, with other markup, and in several calls; and calls that
are not well formed, which give what they give on upstream's own tree.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import re
import sys
import types
from typing import TYPE_CHECKING, Any

from probekit import expect

if importlib.util.find_spec("mistral_common") is None:  # for Mistral's parser, which is loaded beside Qwen's
    sys.modules["vllm.parser.mistral"] = types.ModuleType("vllm.parser.mistral")
    sys.modules["vllm.parser.mistral"].MistralParser = type("MistralParser", (), {})  # type: ignore[attr-defined]
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import qwen3
from vllm.tool_parsers import ToolParserManager

if TYPE_CHECKING:
    from collections.abc import Iterable

    Call = tuple[str, dict[str, Any]]

CLOSE = "</parameter>"
TAG = re.compile(r"<\s*/?\s*parameter\s*[=>]")
SPECIAL = {"<think>": 1, "</think>": 2, "<tool_call>": 3, "</tool_call>": 4}
PARSERS = ("qwen3_xml", "qwen3_coder")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "path": {"type": "string"},
                    "count": {"type": "integer"},
                    "share": {"type": "number"},
                    "flag": {"type": "boolean"},
                    "data": {"type": "object"},
                    "items": {"type": "array"},
                },
            },
        },
    }
    for name in ("write", "other")
]
REQUEST = ChatCompletionRequest(
    model="model", messages=[{"role": "user", "content": "write"}], tools=TOOLS, tool_choice="auto"
)


class Tokenizer:
    """What the parsers read of a tokenizer."""

    all_special_tokens: list[str] = []  # noqa: RUF012
    all_special_ids: list[int] = []  # noqa: RUF012

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of the tokens that the parsers look for."""
        return SPECIAL


def written(calls: Iterable[Call]) -> str:
    """Return calls as Qwen3's chat template writes them."""
    parts = []
    for name, arguments in calls:
        parts.append(f"<tool_call>\n<function={name}>\n")
        for key, value in arguments.items():
            text = value if isinstance(value, str) else json.dumps(value)
            parts.append(f"<parameter={key}>\n{text}\n</parameter>\n")
        parts.append("</function>\n</tool_call>\n")
    return "".join(parts)


def parser(name: str) -> Any:
    """Return a new parser, as the server makes one for a request."""
    return ToolParserManager.get_tool_parser(name)(Tokenizer(), REQUEST.tools)


def whole(name: str, text: str) -> list[tuple[str, str]]:
    """Return name and arguments of the calls in an answer that is complete."""
    found = parser(name).extract_tool_calls(text, REQUEST)
    return [(call.function.name, call.function.arguments) for call in found.tool_calls]


def streamed(name: str, pieces: Iterable[str]) -> list[tuple[str, str]]:
    """Return name and arguments of the calls in an answer that comes in pieces."""
    reader = parser(name)
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    before = ""
    deltas = []
    for piece in pieces:
        deltas.append(reader.extract_tool_calls_streaming(before, before + piece, piece, [], [], [], REQUEST))
        before += piece
    deltas.append(reader.finish_streaming())
    for call in itertools.chain.from_iterable((delta.tool_calls or ()) for delta in deltas if delta):
        if call.function.name:
            names[call.index] = names.get(call.index, "") + call.function.name
        arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    return [(names.get(index, ""), text) for index, text in sorted(arguments.items())]


def read(calls: list[tuple[str, str]]) -> list[Call] | str:
    """Return the calls with their arguments decoded, or what is no JSON."""
    try:
        return [(name, json.loads(text)) for name, text in calls]
    except json.JSONDecodeError:
        return f"no JSON: {calls}"


def splits(text: str, every: int = 1) -> Iterable[list[str]]:
    """Yield the text in two pieces, in characters, and in random pieces."""
    for place in range(1, len(text), every):
        yield [text[:place], text[place:]]
    yield list(text)
    random.seed(len(text))
    for pieces in (3, 5, 8, 13, 21):
        places = sorted(random.sample(range(1, len(text)), pieces))
        yield [text[start:end] for start, end in itertools.pairwise([0, *places, len(text)])]


def check(what: str, text: str, calls: list[Call], every: int = 1) -> None:
    """Read the text in all ways, under both names."""
    for name in PARSERS:
        got = read(whole(name, text))
        expect(got == calls, f"{name}, {what}, whole: {got} for {calls}")
        for pieces in splits(text, every):
            got = read(streamed(name, pieces))
            expect(got == calls, f"{name}, {what}, in pieces {pieces[:3]}: {got} for {calls}")


def generated(count: int, seed: int) -> Iterable[list[Call]]:
    """Yield calls with random arguments that hold no closing or opening tag of a parameter."""
    chance = random.Random(seed)  # noqa: S311
    words = [
        "echo", "'", '"', "\\", "<", ">", "</", "</p>", "</param", "parameter>", "<b>", "{", "}", "\n",
        " ", "é", "中",
    ]  # fmt: skip
    values = {
        "text": lambda: "a" + TAG.sub("", "".join(chance.choices(words, k=chance.randint(0, 12)))) + "z",
        "path": lambda: f"/srv/{chance.randint(0, 99)}.xml",
        "count": lambda: chance.randint(-5, 5000),
        "share": lambda: chance.choice([0.5, -1.25, 3.0e8]),
        "flag": lambda: chance.random() < 0.5,
        "data": lambda: {"a": [1, {"b": "<x>"}], "c": TAG.sub("", "".join(chance.choices(words, k=3)))},
        "items": lambda: [chance.randint(0, 9) for _ in range(chance.randint(0, 4))],
    }
    for _ in range(count):
        yield [
            (
                chance.choice(["write", "other"]),
                {key: values[key]() for key in chance.sample(list(values), chance.randint(0, len(values)))},
            )
            for _ in range(chance.randint(1, 3))
        ]


# Calls that are not well formed, and what upstream's own tree makes of them.
MALFORMED: tuple[tuple[str, str, list[Call]], ...] = (
    (
        "a closing tag is missing",
        "<tool_call>\n<function=write>\n<parameter=path>\n/x\n<parameter=count>\n3\n</parameter>\n</function>\n</tool_call>",
        [("write", {"path": "/x", "count": 3})],
    ),
    (
        "values without line ends",
        "<tool_call><function=write><parameter=path>/x</parameter><parameter=count>3</parameter></function></tool_call>",
        [("write", {"path": "/x", "count": 3})],
    ),
    (
        "words between parameters",
        "<tool_call>\n<function=write>\n<parameter=path>\n/x\n</parameter>\nand\n<parameter=count>\n3\n</parameter>\nso\n</function>\n</tool_call>",
        [("write", {"path": "/x", "count": 3})],
    ),
    (
        "the function is not closed",
        "<tool_call>\n<function=write>\n<parameter=path>\n/x\n</parameter>\n</tool_call>",
        [("write", {"path": "/x"})],
    ),
    (
        "the answer ends behind a parameter",
        "<tool_call>\n<function=write>\n<parameter=path>\n/x\n</parameter>\n",
        [("write", {"path": "/x"})],
    ),
    ("no parameters", "<tool_call>\n<function=write>\n</function>\n</tool_call>", [("write", {})]),
)  # fmt: skip
# What upstream's own tree makes of them in pieces is no JSON (0.24.0), or breaks off: read whole only.
HEAD, TAIL = "<tool_call>\n<function=write>\n", "\n</function>\n</tool_call>"
THREE = "<parameter=count>\n3\n</parameter>"
SPACES = HEAD + "< parameter = path>\n/x{}\n</ parameter >\n" + THREE + TAIL
OPEN = (
    HEAD + THREE + "\n<parameter=path>\n/x" + TAIL,
    HEAD + THREE + "\n<parameter=path>\n/x",
    HEAD + THREE + "\n<parameter=path>\necho '</function>'\n</parameter>" + TAIL,
)
DEFECTS: tuple[tuple[str, list[Call]], ...] = (
    ("quoted", [("write", {"text": f"echo '{CLOSE}' > x.txt"})]),
    ("at the beginning", [("write", {"text": f"{CLOSE} is a tag"})]),
    ("at the end", [("write", {"text": f"it ends with {CLOSE}"})]),
    ("alone", [("write", {"text": CLOSE})]),
    ("on a line of its own", [("write", {"text": f"<x>\n  {CLOSE}\n</x>"})]),
    ("three times", [("write", {"text": f"a{CLOSE}b\n{CLOSE}{CLOSE}c"})]),
    ("in the first of several", [("write", {"text": f"a{CLOSE}b", "count": 3, "path": "/x"})]),
    ("in the last of several", [("write", {"count": 3, "path": "/x", "text": f"a{CLOSE}b"})]),
    ("in two of several", [("write", {"path": f"{CLOSE}x", "count": 3, "text": f"a{CLOSE}b"})]),
    ("within JSON", [("write", {"data": {"a": f"b{CLOSE}c", "d": [1, f"{CLOSE}"]}, "count": 3})]),
    ("within a list", [("write", {"items": [f"{CLOSE}", 2]})]),
    ("in one of two calls", [("write", {"text": f"a{CLOSE}b"}), ("other", {"text": "plain", "count": 1})]),
    ("beside other markup", [("write", {"text": f'</tool_call> <b>{CLOSE}</b> <parameter> \\" é'})]),
)  # fmt: skip


def probe() -> None:
    """Check the controls first."""
    expect(qwen3.PARAM_END == CLOSE, "a parameter is closed by another tag")
    for number, calls in enumerate(generated(60, seed=3)):
        check(f"healthy call {number}", written(calls), calls, every=23)
    check(
        "other markup",
        written(other := [("write", {"text": "</tool_call> <tool_call> </param </p> parameter>"})]),
        other,
    )
    for what, text, calls in MALFORMED:
        check(what, text, calls)
    for name in PARSERS:
        for text in OPEN:
            got = read(whole(name, text))
            expect(got == [("write", {"count": 3})], f"{name}: of {text!r}, whole: {got}")
        text = SPACES.format("")
        got = read(whole(name, text))
        expect(got == [("write", {"path": "/x", "count": 3})], f"{name}: of {text!r}, whole: {got}")
    for what, calls in DEFECTS:
        check(what, written(calls), calls)
    for number, calls in enumerate(generated(20, seed=4)):
        calls[0][1]["text"] = f"a{CLOSE}{calls[0][1].get('text', '')}\n{CLOSE}b"
        check(f"call {number} with closing tags", written(calls), calls, every=23)
    for name in PARSERS:
        got = read(whole(name, SPACES.format(" < /parameter> y")))
        expect(
            got == [("write", {"path": "/x < /parameter> y", "count": 3})],
            f"{name}, a tag with spaces: {got}",
        )
