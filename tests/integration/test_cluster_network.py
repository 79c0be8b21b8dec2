"""Networks and processes that stall under a cluster: the build ends with the same bytes, and says it once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import pytest
from cluster_kit import Home, Host, make_home
from kit import Recorder
from small_extension import build
from test_cluster import _SLOW, here, scheduling, shown, use_scheduler, working
from world import wait_until

from sparkwright.base.events import subscribe
from sparkwright.base.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkwright.base.events import Event

pytest_plugins = "cluster_fixtures"
pytestmark = pytest.mark.slow
_HASTY = """\
format = 1
connect-s = 1.0
stall-s = 1.0
flush-s = 2.0
patience-s = 5.0
"""


@dataclass
class StallingProxy:
    """Forwards TCP connections to *upstream*; once *stalled*, it holds them and what comes over them.

    Attributes:
        upstream: host and port.
        stalled: hold everything.
        held: pieces of data that came while it was stalled.
    """

    upstream: tuple[str, int]
    stalled: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    held: int = 0
    port: int = 0
    _connections: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._listening.close()
        for one in self._connections:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for one in self._connections:
            one.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.ended.is_set():
                client, _ = self._listening.accept()
                server = socket.create_connection(self.upstream)
                self._connections += [client, server]
                self._start(self._pump, client, server)
                self._start(self._pump, server, client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.held += self.stalled.is_set()
                while self.stalled.is_set() and not self.ended.is_set():
                    time.sleep(0.05)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def behind(host: Host, proxy: StallingProxy) -> None:
    """Let *host* reach the shared store through *proxy*, and give up on it soon."""
    host.url = f"http://127.0.0.1:{proxy.port}"
    host.install(extra=_SLOW)
    config = host.folder / "config" / "sparkwright"
    config.mkdir(parents=True)
    (config / "store.toml").write_text(_HASTY)


@pytest.mark.parametrize("stalls", [True, False])
def test_a_stalled_connection_to_the_store_costs_the_units_of_its_machine(tmp_path, url, hosts, stalls):
    """Sources have arrived when it stalls; what that machine compiles afterwards does not."""
    place = urlsplit(url)
    heard = Recorder()
    with StallingProxy((place.hostname, place.port)) as proxy:
        behind(hosts[0], proxy)
        hosts[1].install(extra=_SLOW)
        home: Home = make_home(tmp_path / "home", url, hosts)

        def stall(event: Event) -> None:
            if shown(hosts[0]) in [part["machine"] for part in event.data.get("running", ())] and stalls:
                proxy.stalled.set()

        with subscribe(heard), subscribe(stall):
            built, started = build(home.builder, home.inputs)
    assert (built.sha256, started) == (here(tmp_path), [])
    refused = [event["machine"] for event in heard.of("cluster.result-refused")]
    told = [message for message in heard.warnings if "did not arrive" in message]
    if stalls:
        assert proxy.held > 0
        assert set(refused) == {shown(hosts[0])}
        assert len(told) == 1
        assert shown(hosts[0]) in told[0]
    else:
        assert (refused, told) == ([], [])
        machines = {event["machine"] for event in heard.of("compile.finished")}
        assert machines == {shown(host) for host in hosts}


@pytest.mark.parametrize("stops", [True, False])
def test_a_scheduler_that_is_stopped_and_continued_costs_nothing(tmp_path, url, hosts, stops):
    port = free_port()
    hosts[0].install(extra=_SLOW, slots=1)
    home = use_scheduler(make_home(tmp_path / "home", url, hosts), port)
    timers: list[threading.Timer] = []
    heard = Recorder()
    with scheduling(tmp_path, port) as scheduler, working(hosts[0], port):

        def stop(event: Event) -> None:
            """Stop it once, and let it go on some seconds later."""
            if stops and event.kind == "compile.finished" and not timers:
                os.kill(scheduler.pid, signal.SIGSTOP)
                timers.append(threading.Timer(8, os.kill, (scheduler.pid, signal.SIGCONT)))
                timers[0].start()

        with subscribe(heard), subscribe(stop):
            built, started = build(home.builder, home.inputs)
    assert len(timers) == stops
    assert (built.sha256, started) == (here(tmp_path), [])
    assert heard.warnings == []
    units = [event["unit"] for event in heard.of("compile.finished")]
    assert len(units) == len(set(units)), "no unit was compiled twice"


def test_a_worker_removes_folders_of_killed_ones_and_no_others(tmp_path, url, hosts):
    """Three workers of one machine: one is killed, one lives on while the third starts."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    hosts[0].install(extra=f"import tempfile; tempfile.tempdir = {str(temporary)!r}")
    port = free_port()

    def folders() -> set[str]:
        return {path.name for path in temporary.glob("sparkwright-worker-*")}

    with scheduling(tmp_path, port), contextlib.ExitStack() as living:
        with working(hosts[0], port):
            wait_until(lambda: len(folders()) == 1)
            (killed,) = folders()
            wait_until((temporary / killed / "dask").exists)
        for process in hosts[0].workers():
            process.kill()
        assert killed in folders(), "it was killed and removed nothing"
        living.enter_context(working(hosts[0], port))
        wait_until(lambda: killed not in folders() and len(folders()) == 1)
        (alive,) = folders()
        living.enter_context(working(hosts[0], port))
        wait_until(lambda: len(folders()) == 2)
        assert alive in folders()
        assert (temporary / alive).is_dir()
