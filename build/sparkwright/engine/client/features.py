"""Trial requests for what a server may do in chats: tools, output by a schema, pictures, seeds.

Only a server that refuses every one of several requests lacks a feature, or one whose prompts are as long
without tools as with them: its chat template leaves them out. vLLM that answers is otherwise taken at its
word, so that a broken parser is found by the check; of another server, a field that it ignores is lacking.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from sparkwright.engine.capabilities import FORCED_TOOLS, IMAGES, SEEDS, STRUCTURED, TOOLS
from sparkwright.engine.cell import Load, Prompt, Tool
from sparkwright.engine.client.endpoint import ABSENT, ATTEMPTS
from sparkwright.engine.client.pictures import draw_colour
from sparkwright.engine.client.request import Exchange
from sparkwright.engine.observations import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    import aiohttp

    from sparkwright.engine.client.endpoint import Endpoint
    from sparkwright.engine.deadlines import Deadlines
    from sparkwright.engine.observations import Sample

_TOKENS = 64
_REFUSED = ABSENT | {400, 422}
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_TOOLS = (Tool(name="get_time", description="", parameters=_SCHEMA),)
_CALL = Prompt(name="trial", category="trial", text="Call get_time for the city “Oslo”.")
_TRIALS = {
    TOOLS: (Load(chat=True, natural_stop=True, tools=_TOOLS), _CALL),
    FORCED_TOOLS: (Load(chat=True, natural_stop=True, tools=_TOOLS, tool_choice=_TOOLS[0].name), _CALL),
    STRUCTURED: (
        Load(chat=True, natural_stop=True, schema=_SCHEMA),
        Prompt(name="trial", category="trial", text="Name a city as JSON."),
    ),
    IMAGES: (
        Load(chat=True, natural_stop=True),
        Prompt(name="trial", category="trial", text="Say yes.", images=(draw_colour("white"),)),
    ),
    SEEDS: (
        Load(chat=True, natural_stop=True, temperature=1.0, seed=1),
        Prompt(name="trial", category="trial", text="Invent a short story about a bird and a clock."),
    ),
}


async def try_features(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    deadlines: Deadlines,
    asked: Iterable[str],
    *,
    foreign: bool,
) -> dict[str, str]:
    """Return reasons by the capability that the server at *endpoint* lacks.

    Args:
        session: from `endpoint.open_session`.
        endpoint: the server, with what it lacks so far.
        deadlines: deadlines of a request.
        asked: names of capabilities; others than those tried here are left out.
        foreign: it is another server than vLLM.
    """
    lacks = {}
    for name in set(asked).intersection(_TRIALS):
        why = ""
        for _ in range(ATTEMPTS):
            why = await _try(session, endpoint, deadlines, name, foreign=foreign)
            if not why:
                break
        if why:
            lacks[name] = why
    return lacks


async def _try(
    session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines, name: str, *, foreign: bool
) -> str:
    """Return the reason for which one request shows no such feature; empty if it may have it."""
    load, prompt = _TRIALS[name]
    if name == SEEDS and not foreign:
        return ""  # vLLM promises it

    async def send(load: Load = load) -> Sample:
        exchange = Exchange(
            endpoint, prompt, load, max_tokens=_TOKENS, deadlines=deadlines, speed=1.0, refusable=True
        )
        return await exchange.run(session)

    sample = await send()
    if name == SEEDS and sample.failure is None and (await send()).text != sample.text:
        return "two requests with the same seed are answered otherwise"
    if name == TOOLS and sample.failure is None and not sample.tool_calls:
        without = (await send(msgspec.structs.replace(load, tools=()))).prompt_tokens
        if sample.prompt_tokens == without > 0:
            return f"the chat template leaves tools out: a prompt has {without} tokens with and without them"
    if sample.failure is not None and sample.failure.kind in {FailureKind.STATUS, FailureKind.IN_BAND}:
        refused = sample.failure.status in _REFUSED
        return f"requests for {name} are refused: {sample.failure.detail}" if refused else ""
    if foreign and sample.failure is None and not _shown(name, sample):
        return f"requests for {name} are answered as if they did not ask for it"
    return ""


def _shown(name: str, sample: Sample) -> bool:
    if name in {TOOLS, FORCED_TOOLS}:
        return bool(sample.tool_calls)
    if name != STRUCTURED:
        return True
    try:
        return isinstance(json.loads(sample.answer), dict)
    except ValueError:
        return False
