"""Counting tokens by servers that do, that do not, and that say something else."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sparkwright.base.errors import EndpointError
from sparkwright.engine.cell import Deadlines
from sparkwright.engine.client.endpoint import Endpoint, open_session
from sparkwright.engine.client.request import count_tokens

QUICK = Deadlines(canary_s=0.5)


def counted(*routes: web.RouteDef, asked: list[Any] | None = None) -> int:
    """Count tokens by a server with these *routes*; keys and bodies of its requests are added to *asked*."""

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        if asked is not None:
            asked.append((request.headers.get("Authorization"), json.loads(await request.read())))
        response: web.StreamResponse = await handler(request)
        return response

    async def run() -> int:
        application = web.Application(middlewares=[note])
        application.add_routes(routes)
        async with TestServer(application) as server:
            endpoint = Endpoint(str(server.make_url("/")), "tiny", "key")
            async with open_session(endpoint) as session:
                return await count_tokens(session, endpoint, "two words", QUICK, 1.0)

    return asyncio.run(run())


def answering(text: str, status: int = 200) -> web.RouteDef:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    return web.post("/tokenize", answer)


def test_a_chat_of_one_message_is_counted() -> None:
    asked: list[Any] = []
    assert counted(answering('{"count": 7, "max_model_len": 100, "tokens": [1]}'), asked=asked) == 7
    messages = [{"role": "user", "content": "two words"}]
    assert asked == [("Bearer key", {"model": "tiny", "messages": messages})]


async def _read_only(_: web.Request) -> web.Response:
    return web.Response()


async def _silent(_: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


@pytest.mark.parametrize(
    ("route", "message"),
    [
        (web.post("/other", _read_only), r"has no POST /tokenize \(status 404\)"),
        (web.get("/tokenize", _read_only), r"has no POST /tokenize \(status 405\)"),
        (answering("no chat template", 400), "status 400, because no chat template"),
        (answering("<html>"), "does not answer as vLLM does"),
        (answering('{"tokens": []}'), "does not answer as vLLM does"),
        (answering('{"count": 0}'), "it counts 0 tokens"),
        (web.post("/tokenize", _silent), "did not answer"),
    ],
    ids=["absent", "other method", "refused", "page", "no count", "none", "silent"],
)
def test_what_does_not_count_is_said(route: web.RouteDef, message: str) -> None:
    with pytest.raises(EndpointError, match=message):
        counted(route)
