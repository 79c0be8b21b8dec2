"""The token count of a text, by the server's own tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import EndpointError
from sparkwright.engine.client.body import read_body
from sparkwright.engine.client.endpoint import ABSENT, Endpoint, open_session
from sparkwright.engine.client.request import is_closed, patience
from sparkwright.engine.deadlines import Deadlines

if TYPE_CHECKING:
    import aiohttp


_OK = 200
_EXCERPT = 200


class _Counted(msgspec.Struct):
    """The needed fields of the response to ``POST /tokenize``."""

    count: int
    tokens: list[int] = []


async def count_tokens(
    session: aiohttp.ClientSession, endpoint: Endpoint, text: str, deadlines: Deadlines, speed: float
) -> int:
    """Return the tokens of a chat with *text* as its only message, the template's included.

    Raises:
        EndpointError: the server has no ``POST /tokenize`` (vLLM has, a proxy before it may not), or it
            did not respond with a count.
    """
    asked = {"messages": [{"role": "user", "content": text}]}
    return (await _tokenize(session, endpoint, asked, deadlines, speed)).count


async def token_ids(
    session: aiohttp.ClientSession, endpoint: Endpoint, text: str, deadlines: Deadlines
) -> tuple[int, ...]:
    """Return the tokens of *text* without any template.

    Raises:
        EndpointError: as `count_tokens`.
    """
    return tuple((await _tokenize(session, endpoint, {"prompt": text}, deadlines, 1.0)).tokens)


async def _tokenize(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    asked: Mapping[str, Any],
    deadlines: Deadlines,
    speed: float,
) -> _Counted:
    """Return the answer to ``POST /tokenize`` with the fields *asked*; see `count_tokens`."""
    import aiohttp

    url = f"{endpoint.url}/tokenize"
    body = msgspec.json.encode({"model": endpoint.model, **asked})
    timeout = aiohttp.ClientTimeout(total=patience(deadlines.canary_s, speed))

    async def post(by: aiohttp.ClientSession) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        async with by.post(url, data=body, headers=headers, timeout=timeout) as response:
            return response.status, await read_body(response)

    try:
        try:
            status, data = await post(session)
        except (aiohttp.ClientError, OSError) as error:
            if not is_closed(error):
                raise
            async with open_session(endpoint) as own:  # the connection may have been kept open for too long
                status, data = await post(own)
    except (aiohttp.ClientError, OSError) as error:
        raise EndpointError(f"{url} did not answer", because=str(error) or type(error).__name__) from error
    if status in ABSENT:
        raise EndpointError(f"{endpoint.url} has no POST /tokenize (status {status})")
    if status != _OK:
        because = data[:_EXCERPT].decode(errors="replace")
        raise EndpointError(f"{url} answers with status {status}", because=because)
    try:
        counted = decode_json(data, _Counted)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EndpointError(f"{url} does not answer as vLLM does", because=str(error)) from error
    if counted.count <= 0:
        raise EndpointError(
            f"{url} does not answer as vLLM does", because=f"it counts {counted.count} tokens"
        )
    return counted
