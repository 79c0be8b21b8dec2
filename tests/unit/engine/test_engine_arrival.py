"""Bytes are dated by their coming, not by their being read."""

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest
from world import wait_until

from sparkwright.engine.arrival import ArrivalSocket, arrivals_of, listen, make_socket

PAUSE_S = 0.3


@pytest.fixture
def pair() -> Iterator[tuple[ArrivalSocket, ArrivalSocket]]:
    """A client's socket and the server's, connected."""
    with listen("127.0.0.1", 0, 5) as server:
        name = server.getsockname()
        with make_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", name)) as client:
            client.connect(name)
            accepted, _ = server.accept()
            with accepted:
                for sender, reader in ((client, accepted), (accepted, client)):
                    wait_until(lambda sender=sender, reader=reader: noted(sender, reader))
                yield client, accepted


def noted(sender: ArrivalSocket, reader: ArrivalSocket) -> bool:
    """Return whether the kernel notes arrivals yet: it begins a while after the first socket asks for it."""
    sender.sendall(b"x")
    time.sleep(0.01)
    read = time.perf_counter_ns()
    return reader.recv(1) == b"x" and reader.arrived_ns < read


def test_bytes_that_wait_are_dated_by_their_coming(pair: tuple[ArrivalSocket, ArrivalSocket]) -> None:
    for sender, reader in (pair, pair[::-1]):
        before = time.perf_counter_ns()
        sender.sendall(b"abc")
        sent = time.perf_counter_ns()
        time.sleep(PAUSE_S)
        assert reader.recv(100) == b"abc"
        assert before <= reader.arrived_ns + 1e6  # two clocks are read one after the other
        assert reader.arrived_ns < sent + PAUSE_S * 1e9 / 2


def test_moments_never_go_back(pair, monkeypatch):
    sender, reader = pair
    sender.sendall(b"a")
    reader.recv(1)
    first = reader.arrived_ns
    sender.sendall(b"b")
    with monkeypatch.context() as changed:
        today = time.time_ns
        changed.setattr(time, "time_ns", lambda: today() + 3600 * 10**9)  # the day's clock was put forward
        reader.recv(1)
    assert reader.arrived_ns == first
    sender.sendall(b"c")
    with monkeypatch.context() as changed:
        changed.setattr(time, "time_ns", lambda: today() - 3600 * 10**9)  # and back: not in the future
        reader.recv(1)
    assert first < reader.arrived_ns <= time.perf_counter_ns()


def test_a_kernel_that_notes_nothing_leaves_the_moment_of_the_read(pair, monkeypatch):
    sender, reader = pair
    monkeypatch.setattr("sparkwright.engine.arrival._SO_TIMESTAMPNS", -1)
    sender.sendall(b"a")
    time.sleep(PAUSE_S)
    before = time.perf_counter_ns()
    reader.recv(1)
    assert before < reader.arrived_ns


def test_a_transport_finds_its_socket() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        with listen("127.0.0.1", 0, 5) as server:
            server.settimeout(0)
            reader, writer = await asyncio.open_connection(*server.getsockname())
            assert arrivals_of(writer.transport) is None  # an ordinary one
            accepted, _ = await loop.sock_accept(server)
            other_reader, other = await asyncio.open_connection(sock=accepted)
            assert arrivals_of(other.transport) is accepted
            writer.write(b"x")
            assert await other_reader.read(1) == b"x"
            assert accepted.arrived_ns > 0
            for each in (writer, other):
                each.close()
                await each.wait_closed()
        assert not await reader.read()

    asyncio.run(run())
    assert arrivals_of(None) is None
