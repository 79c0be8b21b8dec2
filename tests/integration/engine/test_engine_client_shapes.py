"""Each shape of load is really held: the server counts."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from vllm_like import MODEL, Served, Stream, healthy, lasting, serving, until

from sparkwright.engine.cell import REFUSED, Cell, Deadlines, Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint, open_session
from sparkwright.engine.client.load import arrivals, run_load
from sparkwright.engine.observations import FailureKind, Sample

PROMPTS = tuple(Prompt(name=f"p{i}", category="code", text=f"Say {i}.") for i in range(3))


def cell(**load: Any) -> Cell:
    return Cell(check="test", name="a cell", load=Load(max_tokens=4, **load), prompts=PROMPTS)


def run(
    wanted: Cell, play: Callable[[Stream], Awaitable[None]] = healthy, *, speed: float = 1.0
) -> tuple[list[Sample], Served]:
    async def measure() -> tuple[list[Sample], Served]:
        async with serving(play) as served, open_session(served.endpoint) as session:
            return await run_load(session, served.endpoint, wanted, Deadlines(), speed=speed), served

    return asyncio.run(measure())


def asked(served: Served) -> list[str]:
    return [body["prompt"] for body in served.asked]


def together(size: int) -> Callable[[Stream], Awaitable[None]]:
    """Streams that end only when *size* of them are under way: with fewer they would wait for ever."""
    waiting: list[asyncio.Event] = []

    async def play(stream: Stream) -> None:
        here = asyncio.Event()
        waiting.append(here)
        if len(waiting) == size:
            for event in waiting:
                event.set()
            waiting.clear()
        await here.wait()
        await healthy(stream)

    return play


# Closed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 5, 16])
def test_a_closed_loop_keeps_so_many_running(clients: int) -> None:
    samples, served = run(cell(concurrency=clients, requests=3 * clients), together(clients))
    assert len(samples) == 3 * clients
    assert served.most == clients
    assert all(sample.failure is None and sample.counted for sample in samples)


def test_prompts_are_sent_as_they_are_and_salted_when_they_come_again() -> None:
    samples, served = run(cell(requests=5))
    assert asked(served) == ["Say 0.", "Say 1.", "Say 2.", "[3]\nSay 0.", "[4]\nSay 1."]
    assert [sample.prompt for sample in samples] == ["p0", "p1", "p2", "p0", "p1"]


def test_a_warm_up_is_not_counted_and_leaves_the_prompts_cold() -> None:
    samples, served = run(cell(requests=3, warm_up=2, concurrency=2))
    assert [sample.counted for sample in samples] == [False, False, True, True, True]
    before, after = asked(served)[:2], asked(served)[2:]
    assert all(text.startswith("[warm-up ") for text in before)
    assert len(set(before)) == 2
    assert sorted(after) == ["Say 0.", "Say 1.", "Say 2."]


def test_a_loop_over_time_salts_each_request_with_its_number() -> None:
    samples, served = run(cell(concurrency=2, seconds=1.5), lasting(0.2))
    assert len(samples) > 4
    assert asked(served) == [f"[{i}]\nSay {i % 3}." for i in range(len(samples))]
    assert max(sample.started for sample in samples) - samples[0].started < 1.5e9
    assert served.most == 2


def test_time_is_the_servers() -> None:
    begun = time.perf_counter()
    samples, _ = run(cell(concurrency=2, seconds=60.0), lasting(0.2), speed=60.0)
    assert len(samples) > 2
    assert time.perf_counter() - begun < 30


def test_clients_start_one_after_another() -> None:
    samples, _ = run(cell(concurrency=4, requests=4, stagger_s=1.2), together(4))
    starts = [sample.started / 1e9 for sample in samples]
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert len(gaps) == 3
    # Each start is due at a fixed time, so that one which is late makes the next gap only smaller.
    assert all(at - starts[0] > 0.3 * i - 0.25 for i, at in enumerate(starts))
    at_once, _ = run(cell(concurrency=4, requests=4), together(4))
    assert at_once[-1].started - at_once[0].started < samples[-1].started - samples[0].started


# Burst, drain, open -------------------------------------------------------------------------------------


def test_a_burst_sends_all_at_once() -> None:
    samples, served = run(cell(shape="burst", concurrency=40, requests=40), together(40))
    assert (len(samples), served.most) == (40, 40)


def test_a_drain_ends_one_after_another() -> None:
    wanted = Cell(
        check="test",
        name="drain",
        load=Load(shape="drain", concurrency=8, requests=8, max_tokens=30, min_tokens=2),
        prompts=PROMPTS,
    )
    samples, served = run(wanted, together(8))
    assert served.most == 8
    assert sorted(body["max_tokens"] for body in served.asked) == [2, 6, 10, 14, 18, 22, 26, 30]
    assert sorted(sample.output_tokens for sample in samples) == [2, 6, 10, 14, 18, 22, 26, 30]
    assert all(sample.failure is None for sample in samples)


# Ends ---------------------------------------------------------------------------------------------------


def test_a_server_that_is_gone_is_given_up() -> None:
    async def die(stream: Stream) -> None:
        stream.reset()

    for wanted in (cell(concurrency=2, requests=500), cell(concurrency=2, seconds=3600.0)):
        samples, _ = run(wanted, die, speed=60.0)
        assert 8 <= len(samples) <= 10
        assert all(sample.failure is not None for sample in samples)


@pytest.mark.parametrize(("clients", "sent"), [(1, 2), (4, 4)])
def test_a_server_that_hangs_costs_one_deadline_a_client(clients: int, sent: int) -> None:
    """And a second one where there is one client; of requests that fail at once there are eight at least."""

    async def hang(_: Stream) -> None:
        await asyncio.sleep(30)

    hasty = Deadlines(first_token_s=0.3)

    async def measure() -> list[Sample]:
        async with serving(hang) as served, open_session(served.endpoint) as session:
            wanted = cell(concurrency=clients, requests=40)
            return await run_load(session, served.endpoint, wanted, hasty, speed=1.0)

    samples = asyncio.run(measure())
    assert sent <= len(samples) < 2 * sent
    assert {sample.failure.kind for sample in samples if sample.failure} == {FailureKind.FIRST_TOKEN}


def test_failures_between_successes_are_not() -> None:
    turn = itertools.count()

    async def every_other(stream: Stream) -> None:
        if next(turn) % 2:
            stream.reset()
        else:
            await healthy(stream)

    samples, _ = run(cell(requests=40), every_other)
    assert len(samples) == 40
    assert sum(sample.failure is not None for sample in samples) == 20


@pytest.mark.parametrize("shape", ["closed", "burst"])
def test_cancelling_a_load_leaves_nothing_behind(shape: str) -> None:
    async def measure() -> None:
        wanted = cell(shape=shape, concurrency=6, requests=6)
        async with serving(lasting(60)) as served, open_session(served.endpoint) as session:
            task = asyncio.create_task(run_load(session, served.endpoint, wanted, Deadlines(), speed=1.0))
            await until(lambda: served.running == 6)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: served.running == 0 and served.connections == 0)

    asyncio.run(measure())


def test_requests_that_may_be_refused_have_connections_of_their_own() -> None:
    """A server that closes the connection of a refused request breaks no other one."""
    connections: list[asyncio.Task[Any] | None] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        fields = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(fields.partition("content-length: ")[2].partition("\r\n")[0]))
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await asyncio.sleep(0.005)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def measure() -> list[Sample]:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint(f"http://127.0.0.1:{port}", MODEL)
        wanted = Cell(
            check="test", name="a cell", load=Load(concurrency=2, requests=3), prompts=PROMPTS,
            tags={REFUSED: "must"},
        )  # fmt: skip
        async with server, open_session(endpoint) as session:
            samples = await run_load(session, endpoint, wanted, Deadlines(), speed=1.0)
            await asyncio.gather(*filter(None, connections))
            return samples

    samples = asyncio.run(measure())
    assert [sample.failure.kind for sample in samples if sample.failure] == [FailureKind.STATUS] * 3
    assert len(connections) == 3


def test_an_open_loop_sends_at_its_times_whatever_the_others_do() -> None:
    load = {"shape": "open", "concurrency": 0, "rate": 200.0, "requests": 40, "warm_up": 10, "seed": 3}
    samples, served = run(cell(**load))
    counted = [sample for sample in samples if sample.counted]
    assert len(counted) == 40
    assert 50 <= len(samples) <= 60
    due = sorted(
        sample.due for sample in samples
    )  # a busy machine may send two that are overdue the other way round
    schedule = [at for at, _ in zip(arrivals(200.0, 3), due, strict=False)]
    assert [(at - due[0]) / 1e9 for at in due] == pytest.approx(
        [at - schedule[0] for at in schedule], abs=1e-6
    )
    assert all(sample.started >= sample.due and sample.late >= 0 for sample in samples)
    assert len({body["prompt"] for body in served.asked}) == len(samples)
