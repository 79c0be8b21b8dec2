"""One request against real servers that go wrong in every way; each way has a healthy twin."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from kit import Recorder
from vllm_like import (
    MODEL,
    Served,
    Stream,
    answering,
    data,
    delta,
    healthy,
    lasting,
    serving,
    token,
    until,
    usage,
)

from sparkwright.engine.arrival import ArrivalSocket
from sparkwright.engine.cell import Deadlines, Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint, open_session
from sparkwright.engine.client.load import LagProbe
from sparkwright.engine.client.request import Exchange, canary
from sparkwright.engine.observations import FailureKind, Sample

PROMPT = Prompt(name="p", category="code", text="Say it.")
PATIENT = Deadlines()
HASTY = Deadlines(first_token_s=0.4, canary_s=0.4)
STALLED = Deadlines(stall_s=0.4)
HTML = "<html><title>502 Bad Gateway</title></html>"


def exchange(
    endpoint: Endpoint, deadlines: Deadlines = PATIENT, *, speed: float = 1.0, salt: str = "", **load: Any
) -> Exchange:
    return Exchange(endpoint, PROMPT, Load(**load), max_tokens=4, deadlines=deadlines, speed=speed, salt=salt)


async def ask(endpoint: Endpoint, deadlines: Deadlines = PATIENT, **load: Any) -> Sample:
    async with open_session(endpoint) as session:
        return await exchange(endpoint, deadlines, salt="s", **load).run(session)


def sample(
    play: Callable[[Stream], Awaitable[None]] = healthy,
    *,
    deadlines: Deadlines = PATIENT,
    server: dict[str, Any] | None = None,
    **load: Any,
) -> Sample:
    """Send one request for four tokens; returns its sample."""

    async def run() -> Sample:
        async with serving(play, **(server or {})) as served:
            return await ask(served.endpoint, deadlines, **load)

    return asyncio.run(run())


def failure(*arguments: Any, **options: Any) -> tuple[FailureKind | None, str]:
    found = sample(*arguments, **options).failure
    return (None, "") if found is None else (found.kind, found.detail)


# Healthy twins ------------------------------------------------------------------------------------------


def test_a_healthy_stream_counts() -> None:
    begun = time.perf_counter_ns()
    got = sample()
    assert got.failure is None
    assert (got.output_tokens, got.counted_by, got.finish_reason, got.text) == (
        4, "usage", "length", "t0 t1 t2 t3 "
    )  # fmt: skip
    assert begun < got.started <= got.headers <= got.first <= got.last <= got.ended < time.perf_counter_ns()
    assert [chunk.tokens for chunk in got.chunks] == [1, 1, 1, 1]
    assert got.request == "cmpl-7"


def test_what_is_asked_for() -> None:
    async def run() -> list[dict[str, Any]]:
        async with serving() as served:
            await ask(served.endpoint)
            await ask(served.endpoint, chat=True, logprobs=5, natural_stop=True, temperature=0.5, seed=3)
            await ask(served.endpoint, logprobs=2)
            return served.asked

    plain, chat, scored = asyncio.run(run())
    shared = {"model": MODEL, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    shared |= {"return_token_ids": True}
    assert plain == shared | {"prompt": "[s]\nSay it.", "temperature": 0, "seed": 0, "ignore_eos": True}
    assert chat == shared | {
        "messages": [{"role": "user", "content": "[s]\nSay it."}],
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 0.5,
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 5,
        "return_tokens_as_token_ids": True,
    }
    assert (scored["logprobs"], scored["return_tokens_as_token_ids"]) == (2, True)


def test_a_slow_stream_counts() -> None:
    """Each chunk begins the wait for the next one anew."""
    got = sample(lasting(3.2), deadlines=Deadlines(first_token_s=2.5, stall_s=2.5))
    assert got.failure is None
    assert got.tpot_ms > 700


def test_a_connection_is_used_again() -> None:
    async def run() -> tuple[int, int]:
        async with serving() as served, open_session(served.endpoint) as session:
            for _ in range(5):
                await exchange(served.endpoint).run(session)
            return served.connections, len(served.asked)

    assert asyncio.run(run()) == (1, 5)


# Every way to fail --------------------------------------------------------------------------------------


def test_connect() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        found = asyncio.run(ask(Endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}", MODEL)))
    assert found.failure is not None
    assert found.failure.kind is FailureKind.CONNECT
    assert found.ended >= found.started > 0


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_status(status: int) -> None:
    page = answering('{"error": {"message": "no blocks left"}}', status)
    found = sample(server={"generate": page}).failure
    assert found is not None
    assert (found.kind, found.status) == (FailureKind.STATUS, status)
    assert "no blocks left" in found.detail


def test_a_web_page_instead_of_a_stream() -> None:
    kind, detail = failure(server={"generate": answering(HTML, kind="text/html")})
    assert kind is FailureKind.NOT_JSON
    assert "502 Bad Gateway" in detail
    assert failure(server={"generate": answering(HTML, 502, "text/html")})[0] is FailureKind.STATUS


def test_a_redirect_is_not_followed() -> None:
    async def away(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/v1/models")

    assert failure(server={"generate": away})[0] is FailureKind.STATUS


# What a stream says after two tokens, and what that is; chunks are read in test_engine_client_reply.py.
ODD_ENDS = {
    "a web page": ((HTML.encode(), b"[DONE]"), FailureKind.NOT_JSON, ""),
    "an error": (
        ({"error": {"message": "EngineDeadError", "code": 500}},),
        FailureKind.IN_BAND,
        "EngineDead",
    ),
    "an end in order": ((), FailureKind.TRUNCATED, "after 2 chunks"),
    "no finish reason": ((token(2, 3), usage(4), b"[DONE]"), FailureKind.NO_FINISH, ""),
    "another count": ((token(2, 3, finish="length"), usage(5), b"[DONE]"), FailureKind.COUNT, ""),
    "another length": ((token(2, finish="stop"), usage(3), b"[DONE]"), FailureKind.LENGTH, ""),
}


@pytest.mark.parametrize(("messages", "kind", "says"), ODD_ENDS.values(), ids=ODD_ENDS)
def test_a_stream_that_goes_wrong(messages: tuple[Any, ...], kind: FailureKind, says: str) -> None:
    async def play(stream: Stream) -> None:
        await stream.tokens(2)
        await stream.say(*messages)

    found, detail = failure(play)
    assert (found, says in detail) == (kind, True), detail
    assert (failure(play, natural_stop=True) == (None, "")) is (kind is FailureKind.LENGTH)


@pytest.mark.parametrize(
    ("end", "kind"), [(Stream.cut, FailureKind.TRUNCATED), (Stream.reset, FailureKind.RESET)]
)
def test_a_connection_that_ends_too_soon(end: Callable[[Stream], None], kind: FailureKind) -> None:
    async def play(stream: Stream) -> None:
        await stream.tokens(2)
        await asyncio.sleep(0.1)
        end(stream)

    got = sample(play)
    assert got.failure is not None
    assert (got.failure.kind, len(got.chunks)) == (kind, 2)


def test_a_connection_that_ends_without_an_answer() -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    assert failure(server={"generate": hang_up})[0] is FailureKind.RESET


@pytest.mark.parametrize("first", [None, delta(role="assistant", content="")], ids=["silent", "role alone"])
def test_no_first_token(first: dict[str, Any] | None) -> None:
    async def play(stream: Stream) -> None:
        if first is not None:
            await stream.say(first)
        await asyncio.sleep(30)

    kind, detail = failure(play, deadlines=HASTY)
    assert kind is FailureKind.FIRST_TOKEN
    assert "within 0.4 s" in detail


def test_not_even_headers() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    kind, detail = failure(server={"generate": hang}, deadlines=HASTY)
    assert kind is FailureKind.FIRST_TOKEN
    assert "not even headers" in detail


def test_a_stall_is_not_hidden_by_comments() -> None:
    async def play(stream: Stream) -> None:
        await stream.tokens(2)
        while True:
            await stream.response.write(b": still here\n\n")
            await asyncio.sleep(0.05)

    kind, detail = failure(play, deadlines=STALLED)
    assert kind is FailureKind.STALL
    assert "after 2 chunks" in detail


def test_messages_without_a_floor_are_a_failure() -> None:
    for deep in (b"[" * 5000 + b"]" * 5000, b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}"):

        async def play(stream: Stream, deep: bytes = deep) -> None:
            await stream.say(deep, b"[DONE]")

        assert failure(play)[0] in {FailureKind.NOT_JSON, FailureKind.IN_BAND}


# Streams without an end ---------------------------------------------------------------------------------


async def endless(stream: Stream, pause_s: float, event: bytes) -> None:
    while True:
        await stream.response.write(event)
        await asyncio.sleep(pause_s)


@pytest.mark.parametrize(
    "event",
    [
        data(token(1, text="x")),
        data({"choices": [{"text": "x"}]}),
        b": " + b"x" * 65_000 + b"\n\n",
        b"x" * 65_000,
    ],
    ids=["ids", "words", "comments", "no line"],
)
def test_a_stream_without_end_is_given_up_by_what_came(event: bytes) -> None:
    """However much and however fast, and long before any deadline."""
    begun = time.monotonic()
    got = sample(lambda stream: endless(stream, 0, event))
    assert got.failure is not None
    assert got.failure.kind is FailureKind.RUNAWAY
    assert len(got.chunks) <= 4 + 64 + 1
    assert time.monotonic() - begun < 20


def test_chunks_do_not_put_the_end_off() -> None:
    """Each comes in time, none is too many, and so the whole is given up; the twin of a slow stream."""
    hasty = Deadlines(first_token_s=30, stall_s=30)
    assert hasty.whole_s(4) == 72

    async def run() -> Sample:
        async with (
            serving(lambda stream: endless(stream, 0.1, data(token(1)))) as served,
            open_session(served.endpoint) as session,
        ):
            return await exchange(served.endpoint, hasty, speed=60.0).run(session)

    got = asyncio.run(run())
    assert got.failure is not None
    assert got.failure.kind is FailureKind.OVERDUE
    assert 4 < len(got.chunks) < 4 + 64


# Deadlines and cancelling -------------------------------------------------------------------------------


def test_deadlines_are_in_the_servers_seconds() -> None:
    """Ten minutes of a server whose clock runs 600 times as fast are two seconds, our own one included."""

    async def play(stream: Stream) -> None:
        await asyncio.sleep(30)

    async def run() -> tuple[Sample, float]:
        async with serving(play) as served, open_session(served.endpoint) as session:
            begun = time.perf_counter()
            limits = msgspec.structs.replace(PATIENT, first_token_s=600.0)
            got = await exchange(served.endpoint, limits, speed=600.0).run(session)
            return got, time.perf_counter() - begun

    got, seconds = asyncio.run(run())
    assert got.failure is not None
    assert got.failure.kind is FailureKind.FIRST_TOKEN
    assert 1.9 < seconds < 25


def test_cancelling_leaves_no_connection_open() -> None:
    async def run() -> None:
        async with serving(lasting(60)) as served, open_session(served.endpoint) as session:
            tasks = [asyncio.create_task(exchange(served.endpoint).run(session)) for _ in range(8)]
            await until(lambda: served.running == 8 and served.connections == 8)
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(one) for one in done} == {asyncio.CancelledError}
            await until(lambda: served.running == 0 and served.connections == 0)

    asyncio.run(run())


def test_a_failed_stream_is_hung_up_on() -> None:
    """A server that stalls must not go on with a request that nobody waits for."""

    async def play(stream: Stream) -> None:
        await stream.tokens(1)
        await asyncio.sleep(60)

    async def run() -> None:
        async with serving(play) as served, open_session(served.endpoint) as session:
            await exchange(served.endpoint, STALLED).run(session)
            await until(lambda: served.running == 0 and served.connections == 0)

    asyncio.run(run())


# Canary and lag -----------------------------------------------------------------------------------------


def test_the_canary() -> None:
    async def hang(stream: Stream) -> None:
        await asyncio.sleep(30)

    async def sing(play: Callable[[Stream], Awaitable[None]], deadlines: Deadlines) -> str:
        async with serving(play) as served, open_session(served.endpoint) as session:
            return await canary(session, served.endpoint, deadlines, 1.0)

    assert asyncio.run(sing(healthy, PATIENT)) == ""
    assert asyncio.run(sing(hang, HASTY)).startswith("first-token: no token within 0.4 s")


def test_the_probe_sees_a_loop_that_is_held_up() -> None:
    async def run(held_s: float) -> LagProbe:
        async with LagProbe() as probe:
            await asyncio.sleep(0.06)
            time.sleep(held_s)  # noqa: ASYNC251 - that is the fault
            await asyncio.sleep(0.06)
        return probe

    held = asyncio.run(run(2.0))
    assert held.worst_ms == held.p99_ms > 1900
    free = asyncio.run(run(0.0))
    assert 0 <= free.p99_ms <= free.worst_ms < 1900


def test_times_are_those_of_the_arrival_at_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes count from their arrival, not from the turn of the task that waits for them."""
    receive = ArrivalSocket.recv

    def slow(connection: ArrivalSocket, size: int) -> bytes:
        """Read, then hold up the loop."""
        received = receive(connection, size)
        time.sleep(0.5 if b"[DONE]" in received else 0)
        return received

    async def in_two_reads(stream: Stream) -> None:
        await stream.tokens(2)
        await asyncio.sleep(0.2)
        await stream.say(token(3, 4, finish="length"), usage(4), b"[DONE]")

    monkeypatch.setattr(ArrivalSocket, "recv", slow)
    got = sample(in_two_reads)
    done = time.perf_counter_ns()
    assert got.failure is None
    assert got.first < got.last == got.ended < done - 0.45e9


# Gateways before a server ---------------------------------------------------------------------------------


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
        return [await exchange(served.endpoint, salt=str(number)).run(session) for number in range(count)]


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
