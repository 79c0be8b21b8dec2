"""Units compiled on other machines over a real sshd: the same bytes, whatever happens to the machines."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cluster_kit import SUPPORT, Home, Host, make_home
from kit import Recorder, small_disk
from native_kit import HERE
from small_extension import build, compiled
from world import SOURCE_ROOT, wait_until

from sparkwright.base.errors import ClusterError, CompileError, StorageError, ToolError
from sparkwright.base.events import subscribe
from sparkwright.base.ports import free_port
from sparkwright.cluster import parse_cluster, starting
from sparkwright.cluster.opening import open_pool
from sparkwright.git import FileEntry, patch_tree
from sparkwright.native.build import build_extension
from sparkwright.native.model import Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psutil

    from sparkwright.base.events import Event

pytest_plugins = "cluster_fixtures"
pytestmark = pytest.mark.slow


def shown(host: Host) -> str:
    """The machine as it is named here."""
    return f"127.0.0.1:{host.sshd.port}"


def here(tmp_path) -> str:
    """The SHA-256 of the extension that this machine compiles by itself."""
    alone = make_home(tmp_path / "alone", "", [])
    return build(alone.builder, alone.inputs)[0].sha256


def test_two_machines_give_the_same_file_as_one(tmp_path, url, hosts):
    home: Home = make_home(tmp_path / "home", url, hosts)
    heard = Recorder()
    with subscribe(heard):
        built, started = build(home.builder, home.inputs)
    assert built.sha256 == here(tmp_path)
    assert started == [], "no compiler ran here"
    assert {event["machine"] for event in heard.of("compile.finished")} == {shown(host) for host in hosts}
    assert compiled(home.builder, home.inputs) == (12, [])
    assert not [process for host in hosts for process in host.workers()]


def test_a_worker_whose_ports_others_have_is_started_with_others(tmp_path, url, hosts, monkeypatch):
    """At first the port of the scheduler there is taken, then that of the worker there, then the one here."""
    address = parse_cluster(f"ssh://{hosts[0].sshd.host}")
    with socket.create_server(("127.0.0.1", free_port())) as other:
        taken, chosen = other.getsockname()[1], []

        def choose(free: int) -> tuple[int, ...]:
            ports = [free_port() for _ in range(3)]
            if len(chosen) != free:
                ports[len(chosen) % 3] = taken
            chosen.append(ports)
            return tuple(ports)

        monkeypatch.setattr(starting, "_choose_ports", lambda: choose(3))
        with open_pool(address, tmp_path, store_url=url) as pool:
            assert len(pool.workers) == 1
        assert len(chosen) == 4
        chosen.clear()
        monkeypatch.setattr(starting, "_choose_ports", lambda: choose(99))
        with pytest.raises(ClusterError), open_pool(address, tmp_path, store_url=url):
            pass
        assert len(chosen) == 4


def test_a_machine_that_is_killed_costs_what_it_was_compiling(tmp_path, url, hosts):
    """The first one is killed by its own unit, as the kernel does when memory runs out."""
    suicide = "serving.Serving.serve = lambda *_: os.kill(os.getpid(), 9)"
    hosts[0].install(extra=suicide)
    home = make_home(tmp_path / "home", url, hosts)
    assert build(home.builder, home.inputs)[0].sha256 == here(tmp_path)


def test_no_machine_is_left(tmp_path, url, hosts):
    for host in hosts:
        host.install(extra="serving.Serving.serve = lambda *_: os.kill(os.getpid(), 9)")
    home = make_home(tmp_path / "home", url, hosts)
    elsewhere = replace(home.builder.elsewhere, patience_s=5)
    with pytest.raises(ClusterError, match="lost"):
        build(replace(home.builder, elsewhere=elsewhere), home.inputs)
    healthy = make_home(tmp_path / "again", "", [])
    assert build(healthy.builder, healthy.inputs)[0].sha256 == here(tmp_path)


def test_a_machine_with_another_toolchain_compiles_nothing(tmp_path, url, hosts, recwarn):
    hosts[0].install(key="another")
    home = make_home(tmp_path / "home", url, hosts)
    heard = Recorder()
    with subscribe(heard):
        built, _ = build(home.builder, home.inputs)
    assert built.sha256 == here(tmp_path)
    hosts[1].install(key="another")
    alone = make_home(tmp_path / "other", url + "/elsewhere", hosts)
    with pytest.raises(ClusterError, match="toolchain is another one") as error:
        build(alone.builder, alone.inputs)
    assert "install the compiler" in error.value.next_step


def test_a_machine_with_another_program_is_refused_before_it_compiles(tmp_path, url, hosts):
    """Its version is the same, and a file of it is not."""
    for host in hosts:
        host.install(extra="import sparkwright.cluster.worker as w; w.own_code = lambda: 'f' * 64")
    home = make_home(tmp_path / "home", url, hosts)
    with pytest.raises(ToolError, match="another state of the same version"):
        build(home.builder, home.inputs)


def test_an_object_that_is_not_there_is_compiled_again_elsewhere_and_then_is_an_error(tmp_path, url, hosts):
    lying = """
from msgspec.structs import replace as other
honest = compiling.LaidBuild._kept
compiling.LaidBuild._kept = lambda *given: other(honest(*given), sha256="0" * 64)
"""
    for host in hosts:
        host.install(extra=lying)
    home = make_home(tmp_path / "home", url, hosts)
    with pytest.raises(ClusterError, match="did not arrive"):
        build(home.builder, home.inputs)


def test_a_record_of_other_files_is_not_taken(tmp_path, url, hosts):
    """The object is there, and the worker says that it read other files than those here."""
    lying = """
from msgspec.structs import replace as other
honest = compiling.LaidBuild._kept
def lie(*given):
    reply = honest(*given)
    for manifest in reply.record["manifests"]:
        for state in manifest["states"]:
            state["state"] = "0" * 64
    return reply
compiling.LaidBuild._kept = lie
"""
    for host in hosts:
        host.install(extra=lying)
    home = make_home(tmp_path / "home", url, hosts)
    with pytest.raises(ClusterError, match="did not arrive"):
        build(home.builder, home.inputs)


def test_what_a_compiler_says_elsewhere_is_in_the_log_here(tmp_path, url, hosts):
    home = make_home(tmp_path / "home", url, hosts)
    wrong = {"csrc/ops.c": FileEntry("100644", b"int ops(void) { return lib() }\n")}
    inputs = replace(home.inputs, tree=patch_tree(home.repository, home.inputs.tree, wrong))
    with pytest.raises(CompileError, match=r"ops\.c was not compiled") as error:
        build(home.builder, inputs)
    assert any(f"on {shown(host)}:" in error.value.because for host in hosts)
    (log,) = (tmp_path / "home" / "logs").glob("*ops.c.log")
    assert "expected" in log.read_text()


def test_a_machine_that_cannot_be_reached_is_left_out(tmp_path, url, hosts):
    hosts[0].sshd.install_on_path("exit 127\n")
    home = make_home(tmp_path / "home", url, hosts)
    heard = Recorder()
    with subscribe(heard):
        built = build_extension(home.builder, home.inputs, "_C")
    assert built.sha256 == here(tmp_path)
    assert any("has no sparkwright" in event["message"] for event in heard.of("warning"))
    hosts[1].sshd.install_on_path("exit 1\n")
    gone = make_home(tmp_path / "gone", url, hosts)
    with pytest.raises(ToolError, match="has no sparkwright"):
        build(gone.builder, replace(gone.inputs, target=Target(HERE, "12.0")))


_BUILD = """
import sys
from pathlib import Path
from types import SimpleNamespace
from cluster_kit import make_home
from small_extension import build
hosts = [SimpleNamespace(sshd=SimpleNamespace(host=name)) for name in sys.argv[3:]]
home = make_home(Path(sys.argv[1]), sys.argv[2], hosts)
build(home.builder, home.inputs)
"""


@pytest.mark.parametrize("after_s", [0, 3], ids=["while they start", "while they compile"])
def test_workers_end_with_the_build_that_is_killed(tmp_path, url, hosts, after_s):
    for host in hosts:
        host.install(extra="import time; serving.Serving.serve = lambda *_: time.sleep(600)")
    # A process of its own: forks of this one, which has threads of Dask, may stand still.
    search = os.pathsep.join([str(SUPPORT), str(SOURCE_ROOT)])
    words = [sys.executable, "-c", _BUILD, tmp_path / "home", url, *(host.sshd.host for host in hosts)]
    with subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": search}, stderr=subprocess.DEVNULL
    ) as child:
        wait_until(lambda: all(host.workers() for host in hosts))
        time.sleep(after_s)
        child.kill()
    wait_until(lambda: not any(host.workers() for host in hosts))


_SLOW = """
import time
honest = compiling.LaidBuild.run
def slow(*given):
    time.sleep(1)
    return honest(*given)
compiling.LaidBuild.run = slow
"""
_FULL = """
honest = compiling.LaidBuild._kept
def full(*given):
    with contextlib.suppress(OSError), open(os.environ["SPARKWRIGHT_HOME"] + "/fill", "ab", 0) as fill:
        while fill.write(bytes(4096)):
            pass
    return honest(*given)
import contextlib
compiling.LaidBuild._kept = full
"""


def test_a_machine_whose_disk_is_full_is_named(tmp_path, url, hosts):
    hosts[0].install(extra=_FULL, prefix=small_disk(hosts[0].folder / "store", "1m"))
    home = make_home(tmp_path / "home", url, hosts)
    with pytest.raises(StorageError, match="no space left") as error:
        build(home.builder, home.inputs)
    assert f"on {shown(hosts[0])}: " in error.value.because
    again = make_home(tmp_path / "again", url, hosts[1:])
    assert build(again.builder, again.inputs)[0].sha256 == here(tmp_path)


def test_a_machine_whose_network_stalls_costs_what_it_was_compiling(tmp_path, url, hosts):
    """Its connection of ssh is neither closed nor does anything come over it."""
    for host in hosts:
        host.install(extra=_SLOW)
    home = make_home(tmp_path / "home", url, hosts)
    elsewhere = replace(home.builder.elsewhere, silent_s=5)
    stopped: list[psutil.Process] = []

    def stall(event: Event) -> None:
        running = [part["machine"] for part in event.data.get("running", ())]
        if shown(hosts[0]) in running and not stopped:
            stopped.extend(hosts[0].sshd.sessions())
            for process in stopped:
                process.suspend()

    try:
        with subscribe(stall):
            built, _ = build(replace(home.builder, elsewhere=elsewhere), home.inputs)
    finally:
        for process in stopped:
            process.resume()
    assert stopped, "progress named the machine"
    assert built.sha256 == here(tmp_path)
    wait_until(lambda: not hosts[0].workers())


@contextlib.contextmanager
def scheduling(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Dask's own scheduler, as one starts it by hand."""
    program = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
    words = [*program, "--port", str(port), "--no-dashboard"]
    environment = {**os.environ, "DASK_TEMPORARY_DIRECTORY": str(folder)}
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, env=environment) as scheduler:
        try:
            yield scheduler
        finally:
            scheduler.kill()


@contextlib.contextmanager
def working(host: Host, port: int) -> Iterator[None]:
    """A worker of *host* for that scheduler, as SLURM or Kubernetes start it."""
    program = host.sshd.folder / "programs" / "sparkwright"
    with subprocess.Popen([program, "worker", f"tcp://127.0.0.1:{port}"]) as worker:
        try:
            yield
        finally:
            worker.kill()


def use_scheduler(home: Home, port: int) -> Home:
    address = parse_cluster(f"tcp://127.0.0.1:{port}")
    elsewhere = replace(home.builder.elsewhere, address=address, patience_s=30)
    return replace(home, builder=replace(home.builder, elsewhere=elsewhere))


def test_a_scheduler_with_workers_of_its_owner(tmp_path, url, hosts):
    port = free_port()
    home = use_scheduler(make_home(tmp_path / "home", url, hosts), port)
    with scheduling(tmp_path, port), working(hosts[0], port):
        built, started = build(home.builder, home.inputs)
    assert (built.sha256, started) == (here(tmp_path), [])


def test_a_scheduler_whose_workers_have_another_program_is_refused(tmp_path, url, hosts):
    port = free_port()
    hosts[0].install(extra="import sparkwright.cluster.capabilities as c; c.own_code = lambda: 'f' * 64")
    home = use_scheduler(make_home(tmp_path / "home", url, hosts), port)
    with (
        scheduling(tmp_path, port),
        working(hosts[0], port),
        pytest.raises(ClusterError, match="sparkwright is another state"),
    ):
        build(home.builder, home.inputs)


def test_a_scheduler_that_is_restarted_ends_the_build_and_the_next_one_goes_on(tmp_path, url, hosts):
    port = free_port()
    hosts[0].install(extra=_SLOW, slots=1)
    home = use_scheduler(make_home(tmp_path / "home", url, hosts), port)
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        scheduler = first.enter_context(scheduling(tmp_path, port))
        first.enter_context(working(hosts[0], port))

        def restart(event: Event) -> None:
            if event.kind == "compile.finished" and scheduler.poll() is None:
                scheduler.kill()
                scheduler.wait()
                second.enter_context(scheduling(tmp_path, port))

        heard = Recorder()
        with subscribe(heard), subscribe(restart), pytest.raises(ClusterError, match=r"scheduler of .* lost"):
            build(home.builder, home.inputs)
        before = {event["unit"] for event in heard.of("compile.finished")}
        hosts[0].install()
        second.enter_context(working(hosts[0], port))
        again = Recorder()
        with subscribe(again):
            built, started = build(home.builder, home.inputs)
    after = {event["unit"] for event in again.of("compile.finished")}
    assert before, "a unit was finished before"
    assert after, "and another one was not"
    assert not before & after
    assert (built.sha256, started) == (here(tmp_path), [])


def test_nothing_is_left_in_the_folder_for_temporary_files(tmp_path, url, hosts, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for host in hosts:
        host.install(extra=f"import tempfile; tempfile.tempdir = {str(folder)!r}")
    home = make_home(tmp_path / "home", url, hosts)
    build(home.builder, home.inputs)
    assert list(folder.iterdir()) == []
