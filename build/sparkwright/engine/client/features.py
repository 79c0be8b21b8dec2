"""Trial requests for what a vLLM may do in chats, by its options and its checkpoint: tools and pictures.

Only a server that refuses every one of several requests lacks a feature, or one whose prompts are as long
without tools as with them: its chat template leaves them out. Else one that answers is taken at its word,
so that a broken parser is found by the check.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from sparkwright.engine.capabilities import IMAGES, TOOLS
from sparkwright.engine.cell import Load, Prompt, Tool
from sparkwright.engine.client.endpoint import ABSENT, ATTEMPTS, Endpoint
from sparkwright.engine.client.pictures import draw_colour
from sparkwright.engine.client.request import Exchange
from sparkwright.engine.deadlines import Deadlines
from sparkwright.engine.observations import FailureKind, Sample

if TYPE_CHECKING:
    import aiohttp


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
    IMAGES: (
        Load(chat=True, natural_stop=True),
        Prompt(name="trial", category="trial", text="Say yes.", images=(draw_colour("white"),)),
    ),
}


async def try_features(
    session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines, asked: Iterable[str]
) -> dict[str, str]:
    """Return reasons by the capability that the server at *endpoint* lacks.

    Args:
        session: from `endpoint.open_session`.
        endpoint: the server, with what it lacks so far.
        deadlines: deadlines of a request.
        asked: names of capabilities; others than those tried here are left out.
    """
    lacks = {}
    for name in set(asked).intersection(_TRIALS):
        why = ""
        for _ in range(ATTEMPTS):
            why = await _try(session, endpoint, deadlines, name)
            if not why:
                break
        if why:
            lacks[name] = why
    return lacks


async def _try(session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines, name: str) -> str:
    """Return the reason for which one request shows no such feature; empty if it may have it."""
    load, prompt = _TRIALS[name]

    async def send(load: Load = load) -> Sample:
        exchange = Exchange(
            endpoint, prompt, load, max_tokens=_TOKENS, deadlines=deadlines, speed=1.0, refusable=True
        )
        return await exchange.run(session)

    sample = await send()
    if name == TOOLS and sample.failure is None and not sample.tool_calls:
        without = (await send(msgspec.structs.replace(load, tools=()))).prompt_tokens
        if sample.prompt_tokens == without > 0:
            return f"the chat template leaves tools out: a prompt has {without} tokens with and without them"
    if sample.failure is not None and sample.failure.kind in {FailureKind.STATUS, FailureKind.IN_BAND}:
        refused = sample.failure.status in _REFUSED
        return f"requests for {name} are refused: {sample.failure.detail}" if refused else ""
    return ""
