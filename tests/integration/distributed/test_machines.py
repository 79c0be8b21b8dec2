"""Units compiled on other machines over real sshds: the same bytes, whatever happens to the machines."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import pytest
from cluster_kit import SUPPORT, Home, make_home
from killed import stopped
from kit import Recorder
from native_kit import HERE
from small_extension import build, compiled
from world import SOURCE_ROOT, wait_until

from sparkwright.base.errors import ClusterError, CompileError, ToolError
from sparkwright.base.events import subscribe
from sparkwright.distributed.tasks import TaskLostError
from sparkwright.git.trees import FileEntry, patch_tree
from sparkwright.native.build import build_extension
from sparkwright.native.model import Target

pytest_plugins = "cluster_fixtures"
pytestmark = pytest.mark.slow


KILL = "worker.TaskRunner.run = lambda *_: os.kill(os.getpid(), 9)"


@pytest.fixture(autouse=True)
def one_unit_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every unit be a task of its own."""
    monkeypatch.setattr("sparkwright.pipeline.remote_units._BATCH_S", 0.0)


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> str:
    """The SHA-256 of the extension that this machine compiles by itself."""
    alone = make_home(tmp_path_factory.mktemp("alone") / "home", "", [])
    return build(alone.builder, alone.inputs)[0].sha256


def test_two_machines_give_the_same_file_as_one_and_leave_nothing(tmp_path, url, hosts, here, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for host in hosts:
        host.install(extra=f"import tempfile; tempfile.tempdir = {str(folder)!r}")
    home: Home = make_home(tmp_path / "home", url, hosts)
    heard = Recorder()
    with subscribe(heard):
        built, started = build(home.builder, home.inputs)
    assert built.sha256 == here
    assert started == [], "no compiler ran here"
    assert {event["machine"] for event in heard.of("compile.finished")} == {host.shown for host in hosts}
    assert compiled(home.builder, home.inputs) == (12, [])
    assert not [process for host in hosts for process in host.workers()]
    assert list(folder.iterdir()) == []


def test_a_machine_that_is_killed_costs_what_it_was_compiling(tmp_path, url, hosts, here):
    """The first one is killed by its own unit, as the kernel does when memory runs out."""
    hosts[0].install(extra=KILL)
    home = make_home(tmp_path / "home", url, hosts)
    heard = Recorder()
    with subscribe(heard):
        built, _ = build(home.builder, home.inputs)
    assert built.sha256 == here
    assert [event["machine"] for event in heard.of("cluster.lost")] == [hosts[0].shown]


def test_a_program_that_is_killed_is_run_again_on_another_machine(tmp_path, url, hosts, here):
    """The worker lives on: it is the task's own process that is killed."""
    hosts[0].install(compiling="task.compile_units = lambda *_: os.kill(os.getpid(), 9)")
    home = make_home(tmp_path / "home", url, hosts)
    assert build(home.builder, home.inputs)[0].sha256 == here
    hosts[1].install(compiling="task.compile_units = lambda *_: os.kill(os.getpid(), 9)")
    again = make_home(tmp_path / "again", url, hosts)
    with pytest.raises(TaskLostError, match="did not arrive") as error:
        build(again.builder, again.inputs)
    assert "status -9" in error.value.because


def test_a_machine_with_another_toolchain_compiles_nothing(tmp_path, url, hosts, here, recwarn):
    hosts[0].install(key="another")
    home = make_home(tmp_path / "home", url, hosts)
    heard = Recorder()
    with subscribe(heard):
        built, _ = build(home.builder, home.inputs)
    assert built.sha256 == here
    hosts[1].install(key="another")
    alone = make_home(tmp_path / "other", url + "/elsewhere", hosts)
    with pytest.raises(ClusterError, match="toolchain is another one") as error:
        build(alone.builder, alone.inputs)
    assert "install the compiler" in error.value.next_step


def test_a_machine_with_another_program_is_refused_before_it_compiles(tmp_path, url, hosts):
    """Its version is the same, and a file of it is not."""
    for host in hosts:
        host.install(extra="worker.own_code = lambda: 'f' * 64")
    home = make_home(tmp_path / "home", url, hosts)
    with pytest.raises(ToolError, match="cannot be used") as error:
        build(home.builder, home.inputs)
    assert "another state" in error.value.because


_LYING = """
from msgspec.structs import replace as other
honest = remote_units._compiled
def states(manifest):
    return tuple(other(state, state="0" * 64) for state in manifest.states)
def lie(*given):
    made = honest(*given)
    manifests = tuple(other(one, states=states(one)) for one in made.record.manifests)
    return other(made, {lie})
remote_units._compiled = lie
"""


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param('sha256="0" * 64', id="an object that is not there"),
        pytest.param(
            "record=other(made.record, manifests=manifests)",
            id="a record of other files",
            marks=pytest.mark.walk,
        ),
    ],
)
def test_what_a_lying_machine_sends_is_compiled_again_elsewhere_and_then_is_an_error(
    tmp_path, url, hosts, lie
):
    for host in hosts:
        host.install(compiling=_LYING.format(lie=lie))
    home = make_home(tmp_path / "home", url, hosts)
    with pytest.raises(TaskLostError) as error:
        build(home.builder, home.inputs)
    assert "not what was asked for" in error.value.because


def test_what_a_compiler_says_elsewhere_is_in_the_log_here(tmp_path, url, hosts):
    home = make_home(tmp_path / "home", url, hosts)
    wrong = {"csrc/ops.c": FileEntry("100644", b"int ops(void) { return lib() }\n")}
    inputs = replace(home.inputs, tree=patch_tree(home.repository, home.inputs.tree, wrong))
    with pytest.raises(CompileError, match=r"ops\.c was not compiled") as error:
        build(home.builder, inputs)
    assert any(f"on {host.shown}:" in error.value.because for host in hosts)
    (log,) = (tmp_path / "home" / "logs").glob("*ops.c.log")
    assert "expected" in log.read_text()


def test_a_machine_that_cannot_be_reached_is_left_out(tmp_path, url, hosts, here):
    hosts[0].sshd.install_on_path("exit 127\n")
    home = make_home(tmp_path / "home", url, hosts)
    heard = Recorder()
    with subscribe(heard):
        built = build_extension(home.builder, home.inputs, "_C")
    assert built.sha256 == here
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


@pytest.mark.parametrize(
    "after_s",
    [
        pytest.param(0, id="while they start", marks=pytest.mark.walk),
        pytest.param(3, id="while they compile"),
    ],
)
def test_workers_end_with_the_build_that_is_killed(tmp_path, url, hosts, after_s):
    for host in hosts:
        host.install(compiling="import time; task.compile_units = lambda *_: time.sleep(600)")
    search = os.pathsep.join([str(SUPPORT), str(SOURCE_ROOT)])
    words = [sys.executable, "-c", _BUILD, tmp_path / "home", url, *(host.sshd.host for host in hosts)]
    child = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": search}, stderr=subprocess.DEVNULL, text=True
    )
    wait_until(lambda: all(host.workers() for host in hosts))
    time.sleep(after_s)
    stopped(child, signal.SIGKILL)
    wait_until(lambda: not any(host.workers() for host in hosts))
