"""A small server that streams as vLLM does, or as a test tells it to, and counts what is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from sparkwright.engine.client.endpoint import Endpoint

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

MODEL = "tiny"
METRICS = '# HELP x y\nvllm:num_requests_running{engine="0",model_name="tiny"} 0.0\n'
SSE = "text/event-stream; charset=utf-8"


def token(*ids: int, text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a chunk of the completions endpoint."""
    choice = {"index": 0, "text": text, "token_ids": list(ids), "finish_reason": finish, **more}
    return {"id": "cmpl-7", "object": "text_completion", "choices": [choice]}


def delta(*ids: int, finish: str | None = None, logprobs: Any = None, **said: Any) -> dict[str, Any]:
    """Return a chunk of the chat endpoint; without token ids where none are given."""
    choice = {"index": 0, "delta": said, "logprobs": logprobs, "finish_reason": finish}
    if ids:
        choice["token_ids"] = list(ids)
    return {"id": "chatcmpl-7", "object": "chat.completion.chunk", "choices": [choice]}


def usage(completion: int, prompt: int = 5, cached: int | None = None) -> dict[str, Any]:
    """Return the chunk that ends a stream."""
    said: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        said["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"id": "cmpl-7", "choices": [], "usage": said}


def data(message: Any) -> bytes:
    return b"data: " + (message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n\n"


@dataclass
class Stream:
    """One request to the server, and the response to it."""

    request: web.Request
    response: web.StreamResponse
    asked: dict[str, Any]

    async def say(self, *messages: Any) -> None:
        """Write each message as an event, all of them at once."""
        await self.response.write(b"".join(map(data, messages)))

    async def finish(self) -> None:
        """Send the end of a healthy stream of as many tokens as were asked for."""
        await self.say(usage(self.asked["max_tokens"]), b"[DONE]")

    async def tokens(self, count: int, pause_s: float = 0.0) -> None:
        for i in range(count):
            last = i == self.asked["max_tokens"] - 1
            await self.say(token(i, text=f"t{i} ", finish="length" if last else None))
            await asyncio.sleep(pause_s)

    def cut(self) -> None:
        """End the connection in order, in the middle of the response."""
        assert self.request.transport is not None
        self.request.transport.close()

    def reset(self) -> None:
        """Break the connection."""
        assert self.request.transport is not None
        raw = self.request.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.request.transport.abort()


async def healthy(stream: Stream) -> None:
    await stream.tokens(stream.asked["max_tokens"])
    await stream.finish()


def lasting(seconds: float) -> Callable[[Stream], Awaitable[None]]:
    """Return a healthy stream that takes so long."""

    async def play(stream: Stream) -> None:
        count = stream.asked["max_tokens"]
        await stream.tokens(count, pause_s=seconds / count)
        await stream.finish()

    return play


@dataclass
class Served:
    """The server, and what it has seen."""

    endpoint: Endpoint
    asked: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most: int = 0
    runner: web.AppRunner | None = None

    @property
    def connections(self) -> int:
        assert self.runner is not None
        assert self.runner.server is not None
        return len(self.runner.server.connections)


def _generate(served: Served, play: Callable[[Stream], Awaitable[None]], kind: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        served.asked.append(asked)
        served.running += 1
        served.most = max(served.most, served.running)
        try:
            response = web.StreamResponse(headers={"Content-Type": kind})
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                await play(Stream(request, response, asked))
        finally:
            served.running -= 1
        return response

    return handle


def answering(body: str, status: int = 200, kind: str = "application/json") -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text=body, status=status, content_type=kind)

    return handle


@contextlib.asynccontextmanager
async def serving(
    play: Callable[[Stream], Awaitable[None]] = healthy, *, kind: str = SSE, **pages: Handler
) -> AsyncIterator[Served]:
    """Serve: generation is *play*; *pages* replace ``models``, ``version``, ``metrics`` or ``generate``."""
    served = Served(Endpoint("", MODEL))
    generate = pages.get("generate", _generate(served, play, kind))
    models = json.dumps({"object": "list", "data": [{"id": MODEL, "max_model_len": 4096}]})
    app = web.Application()
    app.router.add_get("/v1/models", pages.get("models", answering(models)))
    app.router.add_get("/version", pages.get("version", answering('{"version": "0.24.0"}')))
    app.router.add_get("/metrics", pages.get("metrics", answering(METRICS, kind="text/plain")))
    app.router.add_post("/v1/completions", generate)
    app.router.add_post("/v1/chat/completions", generate)
    served.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await served.runner.setup()
    try:
        site = web.TCPSite(served.runner, "127.0.0.1", 0)
        await site.start()
        host, port = served.runner.addresses[0][:2]
        served.endpoint = Endpoint(f"http://{host}:{port}", MODEL)
        yield served
    finally:
        await served.runner.cleanup()


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is so; twenty seconds at the most."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - what is waited for happens in a server
            await asyncio.sleep(0.01)
