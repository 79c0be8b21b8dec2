"""Counters over real HTTP: what may answer at /metrics, and when a server is idle."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import vllm_like
from aiohttp import web
from vllm_like import answering

from sparkwright.base.errors import EndpointError, UndecidedError
from sparkwright.engine.cell import Cell, Deadlines, Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.engine.metrics.counters import CountersResetError
from sparkwright.engine.metrics.scrape import NotQuietError, fetch_snapshot, quiesce
from sparkwright.engine.observations import BootFacts, MetricsSnapshot, Observation
from sparkwright.verify.measure import measure
from sparkwright.verify.profiles import Profile
from sparkwright.verify.servers import StandingServer

DEADLINES = Deadlines(quiesce_s=60)
SPEED = 20.0


def counters(running: float, waiting: float = 0, generated: float = 5) -> str:
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f'vllm:num_requests_running{{engine="0"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="0"}} {waiting}\n'
        f'vllm:generation_tokens_total{{engine="0"}} {generated}\n'
    )


@asynccontextmanager
async def serving(*answers: str | web.Response) -> AsyncIterator[tuple[Endpoint, list[str]]]:
    """Gives *answers* one after another, the last one for good, and notes what each request accepted."""
    accepted: list[str] = []

    async def metrics(request: web.Request) -> web.Response:
        accepted.append(request.headers["Accept"])
        answer = answers[min(len(accepted), len(answers)) - 1]
        return answer if isinstance(answer, web.Response) else web.Response(text=answer)

    async with vllm_like.serving(metrics=metrics) as served:
        yield served.endpoint, accepted


def ask(
    function: Callable[..., Coroutine[Any, Any, MetricsSnapshot]],
    answers: Sequence[str | web.Response],
    *more: Any,
) -> tuple[MetricsSnapshot, list[str]]:
    async def run() -> tuple[MetricsSnapshot, list[str]]:
        async with serving(*answers) as (address, accepted), aiohttp.ClientSession() as session:
            return await function(session, address, *more), accepted

    return asyncio.run(run())


def test_fetches_plain_text() -> None:
    snapshot, accepted = ask(fetch_snapshot, [counters(3, 2, 7)])
    assert (snapshot.running, snapshot.waiting, snapshot.generation_tokens) == (3, 2, 7)
    assert snapshot.at > 0
    assert accepted == ["text/plain"]


@pytest.mark.parametrize(
    ("answer", "because"),
    [
        (web.Response(text="<!doctype html>\n", content_type="text/html"), "line 1 of the metrics"),
        (web.Response(text='{"error": "no"}\n', content_type="application/json"), "line 1 of the metrics"),
        (web.Response(text=counters(0)[:-1]), "line 4 of the metrics is cut"),
        (web.Response(body=b"\xff\xfe\n"), "can't decode"),
        (web.Response(status=401, text="no\n"), "answered 401"),
        (web.Response(status=500), "answered 500"),
    ],
    ids=["html", "json", "cut", "binary", "unauthorised", "broken"],
)
def test_says_what_is_wrong_with_what_answers(answer: web.Response, because: str) -> None:
    with pytest.raises(EndpointError) as caught:
        ask(fetch_snapshot, [answer])
    assert because in str(caught.value)
    assert "/metrics" in str(caught.value)


def test_says_that_nothing_answers() -> None:
    async def fetch() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            async with aiohttp.ClientSession() as session:
                await fetch_snapshot(session, Endpoint(f"http://127.0.0.1:{closed.getsockname()[1]}", "m"))

    with pytest.raises(EndpointError, match="could not be read"):
        asyncio.run(fetch())


def test_idle_is_idle_twice_with_the_same_counters() -> None:
    answers = [counters(2), counters(0, 1), counters(0, 0, 8), counters(0, 0, 9), counters(1, 0, 9)]
    answers += [counters(0, 0, 12), counters(0, 0, 12)]
    snapshot, accepted = ask(quiesce, answers, DEADLINES, SPEED)
    assert snapshot.generation_tokens == 12
    assert len(accepted) == 7


def test_a_server_that_is_never_idle_is_given_up() -> None:
    with pytest.raises(NotQuietError, match=r"3 requests ran and 1 waited after 0\.2 s") as caught:
        ask(quiesce, [counters(3, 1)], Deadlines(quiesce_s=0.2), SPEED)
    assert isinstance(caught.value, UndecidedError)
    assert caught.value.last.running == 3


@pytest.mark.parametrize(
    ("answers", "error", "named"),
    [
        ([counters(0, 0, 9 - number) for number in range(9)], CountersResetError, "generation_tokens"),
        ([counters(0, 0, number) for number in range(900)], NotQuietError, "generation_tokens"),
    ],
    ids=["backwards", "growing"],
)
def test_counters_that_do_not_rest_are_named(answers: list[str], error: type[Exception], named: str) -> None:
    with pytest.raises(error) as caught:
        ask(quiesce, answers, Deadlines(quiesce_s=0.2), 1.0)
    assert named in str(caught.value)
    assert "0 requests ran" not in str(caught.value)


def test_counters_beyond_any_size_are_not_read() -> None:
    with pytest.raises(EndpointError, match="16 MiB"):
        ask(fetch_snapshot, [web.Response(text=counters(0) * 200_000)])


def test_a_server_without_gauges_is_none_of_vllm() -> None:
    with pytest.raises(EndpointError, match="does not expose vLLM's metrics"):
        ask(quiesce, ["up 1\n"], DEADLINES, SPEED)


def test_a_cell_whose_server_never_rests_says_why_it_has_no_counters() -> None:
    """As with an engine that hangs: the rest of the run is not lost with it."""

    async def run() -> Observation:
        metrics = answering(counters(1), kind="text/plain")
        async with vllm_like.serving(metrics=metrics) as served:
            cell = Cell(
                check="c", name="n", load=Load(max_tokens=4), prompts=(Prompt("p", "code", "Say it."),)
            )
            sizes = Profile(name="p", checks=(), deadlines=Deadlines(quiesce_s=0.2))
            return await measure(StandingServer(served.endpoint, BootFacts()), cell, sizes)

    seen = asyncio.run(run())
    assert (seen.before, seen.after, seen.canary) == (None, None, "")
    assert "1 requests ran" in seen.unread
    assert [one.failure for one in seen.samples] == [None]
