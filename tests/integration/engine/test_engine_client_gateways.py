"""Gateways before a server: connections that they close, and chunks that they rewrite."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from kit import Recorder
from vllm_like import Served, Stream, healthy, serving, token, usage

from sparkwright.engine.cell import Deadlines, Load, Prompt
from sparkwright.engine.client.endpoint import open_session
from sparkwright.engine.client.request import Exchange
from sparkwright.engine.observations import FailureKind, Sample

PROMPT = Prompt(name="p", category="code", text="Say it.")


def closing(
    first: int = 2, *, half: bool = False, after_s: float = 0.0
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return a handler that closes a connection in place of an answer from its *first* request on."""
    seen: dict[int, int] = {}
    alive = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        transport = request.transport
        assert transport is not None
        alive.append(transport)  # so that no other has its id
        seen[id(transport)] = seen.get(id(transport), 0) + 1
        if seen[id(transport)] >= first:
            await asyncio.sleep(after_s)
            if half:
                transport.write(b"HTTP/1.1 200 OK\r\nContent-")
                await asyncio.sleep(0.05)
            transport.close()
            return web.Response()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await healthy(Stream(request, response, asked))
        await response.write_eof()
        return response

    return handle


async def requests(served: Served, count: int = 3) -> list[Sample]:
    async with open_session(served.endpoint) as session:
        return [
            await Exchange(
                served.endpoint,
                PROMPT,
                Load(),
                max_tokens=4,
                deadlines=Deadlines(),
                speed=1.0,
                salt=str(number),
            ).run(session)
            for number in range(count)
        ]


def many(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> list[Sample]:
    async def run() -> list[Sample]:
        async with serving(generate=handler) as served:
            return await requests(served)

    return asyncio.run(run())


def test_a_request_that_a_kept_connection_lost_is_sent_once_more(heard: Recorder) -> None:
    samples = many(closing())
    assert [sample.failure for sample in samples] == [None] * 3
    assert all(sample.started <= sample.headers <= sample.first for sample in samples)
    (told,) = heard.warnings
    assert "sent once more" in told


def test_a_new_connection_that_breaks_is_the_servers_failure(heard: Recorder) -> None:
    for samples in (many(closing(1)), many(closing(2, half=True)), many(closing(2, after_s=1.2))):
        failures = [sample.failure.kind for sample in samples if sample.failure is not None]
        assert FailureKind.RESET in failures
    assert heard.warnings == []


def test_odd_chunks_count_with_one_warning_for_each_kind(heard: Recorder) -> None:
    async def odd(stream: Stream) -> None:
        for i in range(4):
            await stream.say(token(i, text="t", finish="length" if i == 3 else None) | {"id": None})
        await stream.say(usage(4) | {"choices": None}, b"[DONE]")

    async def run() -> list[Sample]:
        async with serving(odd) as served:
            return await requests(served)

    assert [sample.failure for sample in asyncio.run(run())] == [None] * 3
    assert [told.partition("too: ")[2] for told in heard.warnings] == ["`choices` is null", "`id` is null"]
