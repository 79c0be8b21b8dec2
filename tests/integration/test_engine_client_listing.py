"""Requests for the list of models: they are timed, and leave connections that a batch is sent on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from sparkwright.engine.client import Endpoint, open_session
from sparkwright.engine.client.listing import open_connections, time_listing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiohttp


def on_server(
    act: Callable[[aiohttp.ClientSession, Endpoint], Awaitable[None]], *, status: int = 200
) -> list[int]:
    """Return the ports that requests came from, in order, while *act* used a server."""
    ports: list[int] = []

    async def models(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername")[1])
        await asyncio.sleep(0.05)  # all of a batch are in flight
        return web.json_response({"data": []}, status=status)

    async def run() -> None:
        application = web.Application()
        application.router.add_get("/v1/models", models)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint = Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}", "m")
        async with open_session(endpoint) as session:
            await act(session, endpoint)
        await runner.cleanup()

    asyncio.run(run())
    return ports


async def batch(session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
    async def one() -> None:
        async with session.get(f"{endpoint.url}/v1/models") as response:
            await response.read()

    await asyncio.gather(*(one() for _ in range(4)))


def test_a_batch_is_sent_on_connections_that_are_open() -> None:
    async def act(session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        await open_connections(session, endpoint, 4)
        await batch(session, endpoint)

    ports = on_server(act)
    assert len(set(ports[:4])) == 4
    assert set(ports[4:]) == set(ports[:4])


def test_without_them_a_batch_opens_its_own() -> None:
    async def act(session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        await open_connections(session, endpoint, 1)
        await batch(session, endpoint)

    ports = on_server(act)
    assert len(set(ports[1:]) - {ports[0]}) == 3


def test_the_list_is_timed_three_times() -> None:
    found: list[float] = []

    async def act(session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        found.extend(await time_listing(session, endpoint))

    assert len(on_server(act)) == 3
    assert len(found) == 3
    assert min(found) > 0


def test_a_server_that_is_not_there_is_not_timed() -> None:
    async def run() -> tuple[float, ...]:
        endpoint = Endpoint("http://127.0.0.1:9", "m")
        async with open_session(endpoint) as session:
            await open_connections(session, endpoint, 2)
            return await time_listing(session, endpoint)

    assert asyncio.run(run()) == ()
