"""Addresses of clusters, what tasks need and machines offer, and tasks that fail."""

import io
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from world import wait_until

from sparkwright.base.config import decode_json
from sparkwright.base.errors import ClusterError, CompileError, ConfigError, StorageError
from sparkwright.base.ssh import SshHost, parse_host
from sparkwright.cli import worker as worker_command
from sparkwright.distributed import cluster
from sparkwright.distributed.cluster import Machine, Work
from sparkwright.distributed.tasks import (
    Done,
    Failed,
    Offer,
    StoredFile,
    Task,
    TaskLostError,
    WorkerMessage,
    WorkerSettings,
    bring_files,
    own_code,
    parse_cluster,
    share_json,
)
from sparkwright.distributed.worker import TaskRunner, serve
from sparkwright.store.paths import Store

# Addresses ----------------------------------------------------------------------------------------------


def test_machines_by_ssh():
    found = parse_cluster("ssh://spark-1,builder@spark-2:2222")
    assert found == (SshHost("spark-1"), SshHost("spark-2", "builder", 2222))
    assert parse_host("Spark-1") == SshHost("Spark-1"), "an alias keeps its case"
    assert parse_host("me@[fe80::1%eth0]:22") == SshHost("fe80::1%eth0", "me", 22)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("spark-1", "not reached by ssh"),
        ("tcp://scheduler:8786", "not reached by ssh"),
        ("ssh://", "no name of a machine"),
        ("ssh://spark-1,,spark-2", "no name of a machine"),
        ("ssh://spark-1,spark-1", "twice"),
        ("ssh://-oProxyCommand=sh", "no name of a machine"),
        ("ssh://-l@spark", "no name of a user"),
        ("ssh://a;b@spark", "no name of a user"),
        ("ssh://sp$(id)ark", "no name of a machine"),
        ("ssh://%2doption@spark", "no name of a user"),
        ("ssh://spark-1/folder", "no name of a machine"),
        ("ssh://spark-1:port", "no name of a machine"),
        ("ssh://spark-1:0", "no port"),
        ("ssh://spark-1:65536", "no port"),
        ("ssh://spark-1\n", "no name of a machine"),
        ("ssh://spark 1", "no name of a machine"),
        ("ssh://me\n@spark-1", "no name of a user"),
        ("ssh://@spark-1", "no name of a user"),
        ("ssh://[::1", "no name of a machine"),
        ("ssh://me@spark-1,you@spark-1", "twice"),
        ("ssh://me:secret@spark-1", ""),
        ("ssh://me:secret,2@spark-1", ""),
        ("tcp://me:secret@scheduler:8786", "not reached by ssh"),
    ],
)
def test_what_is_no_cluster(address, why):
    with pytest.raises(ConfigError) as error:
        parse_cluster(address)
    assert why in error.value.because
    assert "secret" not in f"{error.value} {error.value.next_step}"


def test_a_host_is_no_option_and_an_argument_no_script():
    argv = parse_host("builder@spark-1:22").argv('echo "$1"', "a; rm -rf /")
    assert argv[argv.index("--") + 1] == "spark-1"
    assert argv[-1] == "exec sh -c 'echo \"$1\"' sparkwright 'a; rm -rf /'"


# One task -----------------------------------------------------------------------------------------------

_PROGRAM = """
import json, os, pathlib, signal, sys, time
kind = sys.argv[1]
request = json.loads(pathlib.Path("request.json").read_text())
if kind == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "sleep":
    time.sleep(60)
if kind == "silent":
    sys.exit("no document")
if kind == "fail":
    error = {"kind": request, "what": "it", "because": "so", "next-step": "then", "exit-code": 1}
    print(json.dumps({"error": error}))
    sys.exit(1)
print("said on the side", file=sys.stderr)
pathlib.Path("out/sub").mkdir()
pathlib.Path("out/sub/file").write_text("left")
pathlib.Path("out/link").symlink_to("/etc/passwd")
print(json.dumps({"got": request, "cluster": os.environ.get("SPARKWRIGHT_CLUSTER")}))
"""


@pytest.fixture
def runner(store: Store) -> TaskRunner:
    return TaskRunner(store, (sys.executable, "-c", _PROGRAM), "there", {})


def made(store: Store, kind: str, request: object = "it") -> Task:
    return Task("one", (kind,), (share_json(store, request),))


def test_a_task_prints_its_result_and_leaves_files(
    runner: TaskRunner, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKWRIGHT_CLUSTER", "ssh://other")
    done = runner.run(made(store, "do", [1, 2]))
    assert isinstance(done, Done)
    assert (done.value, done.machine) == ({"got": [1, 2], "cluster": None}, "there")
    assert [one.path for one in done.files] == ["sub/file"], "and no link"
    assert bring_files(store, done.files, tmp_path / "back")
    assert (tmp_path / "back/sub/file").read_text() == "left"
    assert list(store.scratch_root.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("CompileError", "task"), ("StorageError", "task"), ("ServerError", "task"), ("NoError", "task"),
        ("ClusterError", "machine"), ("ToolError", "machine"), ("EnvironmentSetupError", "machine"),
        ("FetchError", "machine"), ("NotInStoreError", "machine"),
    ],
)  # fmt: skip
def test_a_failure_is_the_tasks_or_the_machines(
    runner: TaskRunner, store: Store, kind: str, fault: str
) -> None:
    failed = runner.run(made(store, "fail", kind))
    assert failed == Failed("one", "there", fault, kind, "it", "so", "then")


def test_a_machine_without_the_files_is_unfit(runner: TaskRunner, store: Store) -> None:
    lacking = StoredFile(path="request.json", sha256="0" * 64, size=1)
    failed = runner.run(Task("one", ("do",), (lacking,)))
    assert isinstance(failed, Failed)
    assert failed.fault == "machine"
    assert "shared store" in failed.next_step


def test_a_damaged_file_is_no_input_of_a_task(runner: TaskRunner, store: Store) -> None:
    """Its size is right, and so a look-up finds it."""
    asked = made(store, "do", "it")
    path = store.file_path(asked.files[0].sha256)
    path.chmod(0o644)
    path.write_text('"ti"')
    failed = runner.run(asked)
    assert isinstance(failed, Failed)
    assert "no access" in failed.because
    assert not path.exists(), "it was dropped, and can be brought again"


def test_a_task_that_is_given_up_ends_at_once(runner: TaskRunner, store: Store) -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(KeyboardInterrupt):
        runner.run(made(store, "sleep"), stop)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", ".", "a\0b"])
def test_a_result_writes_nothing_outside_its_folder(store: Store, tmp_path: Path, path: str) -> None:
    file = share_json(store, 1)
    assert not bring_files(store, [file, structs.replace(file, path=path)], tmp_path / "back")
    assert not (tmp_path / "back").exists()


# Workers ------------------------------------------------------------------------------------------------


class There:
    """A connection that takes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.killed = False

    def send(self, data: bytes) -> bool:
        self.sent.append(data)
        return True

    def kill(self) -> None:
        self.killed = True


def machine(name: str, *has: str, slots: int = 1, mib: int = 1) -> Machine:
    connection: Any = There()
    return Machine(SshHost(name), connection, Offer(slots, mib, has))


def work(machines: list[Machine], *tasks: Task) -> Work:
    return Work("here", machines, tasks)


def given(machines: list[Machine]) -> dict[str, list[str]]:
    """The tasks that each machine runs."""
    return {one.name: list(one.running) for one in machines}


def task(*needs: str, mib: int = 1) -> Task:
    return Task("one", ("do",), needs=needs, seconds=1.0, mib=mib)


@pytest.mark.parametrize(
    ("card", "expected"), [("12.1", {"gpu", "gb10"}), ("9.0", {"gpu"}), ("", set()), ("[N/A]", set())]
)
def test_a_machine_offers_its_card(monkeypatch: pytest.MonkeyPatch, card: str, expected: set[str]) -> None:
    monkeypatch.setattr(worker_command, "card_capability", lambda: card)
    assert set(worker_command._offers()) == expected


@pytest.mark.parametrize("kind", [CompileError, StorageError, ClusterError])
def test_a_failure_on_every_machine_is_the_error_of_its_kind(kind) -> None:
    machines, name = [machine("a")], "Nonsense" if kind is ClusterError else kind.__name__
    doing = work(machines, task())
    doing.hand_out()
    with pytest.raises(kind, match="it"):
        doing.fail(machines[0], Failed("one", "a", "task", name, "it"))


@pytest.mark.parametrize("value", [{"count": 3}, {"count": 4}, {"count": "3"}, {"other": 3}, None, [], 3])
def test_a_result_of_another_form_or_content_is_not_taken(value: Any) -> None:
    done = Done("one", "a", 0.0, value)
    assert cluster._taken(lambda done: done.value["count"] == 3, done) is (value == {"count": 3})


def test_a_need_that_no_machine_has_is_refused_with_what_they_offer() -> None:
    machines = [machine("a", "gpu"), machine("b")]
    with pytest.raises(ClusterError, match="no machine of here can do this") as error:
        work(machines, task("gpu", "gb10"))
    assert error.value.because == "it needs gpu, gb10, and they offer gpu"


def test_tasks_go_to_machines_with_room_the_longest_first() -> None:
    machines = [machine("a", slots=2, mib=9), machine("b", slots=1, mib=4)]
    sizes = {"long": (9.0, 6), "small": (5.0, 4), "large": (3.0, 6), "huge": (1.0, 99)}
    tasks = [Task(name, ("do",), seconds=seconds, mib=mib) for name, (seconds, mib) in sizes.items()]
    doing = work(machines, *reversed(tasks))
    doing.hand_out()
    assert given(machines) == {"a": ["long"], "b": ["small"]}, "six and four are more than nine"
    doing.end(Done("long", "a", 1.0, None), taken=True)
    doing.hand_out()
    assert given(machines) == {"a": ["large"], "b": ["small"]}
    doing.end(Done("small", "b", 1.0, None), taken=True)
    doing.hand_out()
    assert given(machines) == {"a": ["large"], "b": ["huge"]}, "one that is too large runs alone"
    assert set(doing.left) == {"large", "huge"}


def test_a_card_serves_one_task_at_a_time() -> None:
    machines = [machine("a", "gpu", "gb10", slots=4, mib=99)]
    names = {"one": ("gpu",), "two": ("gpu", "gb10"), "plain": ()}
    doing = work(machines, *(structs.replace(task(*needs), name=name) for name, needs in names.items()))
    doing.hand_out()
    assert given(machines) == {"a": ["one", "plain"]}
    doing.end(Done("one", "a", 1.0, None), taken=True)
    doing.hand_out()
    assert given(machines) == {"a": ["plain", "two"]}


def test_the_tasks_of_a_lost_machine_go_to_others_and_are_not_tried_without_end() -> None:
    machines = [machine(name, "gpu", slots=9 - place) for place, name in enumerate("abc")]
    doing = work(machines, task("gpu"))
    for number in range(3):
        doing.hand_out()
        (has,) = [one for one in machines if one.running]
        with nullcontext() if number < 2 else pytest.raises(TaskLostError, match="was not finished"):
            doing.lose(has)
    assert all(one.there.killed for one in machines)


def test_a_machine_whose_card_is_lost_leaves_its_task_to_no_other() -> None:
    machines = [machine("a", "gpu"), machine("b")]
    doing = work(machines, task("gpu"))
    doing.hand_out()
    doing.lose(machines[0])
    with pytest.raises(ClusterError, match="can do this"):
        doing.hand_out()
    doing.lose(machines[1])
    with pytest.raises(ClusterError, match="is left"):
        doing.hand_out()


# A worker -----------------------------------------------------------------------------------------------


def spoken(store: Store, lines: Iterable[bytes], output: io.BytesIO) -> list[Any]:
    """What a worker says on *output* that reads *lines*."""
    runner = TaskRunner(store, (sys.executable, "-c", _PROGRAM), "there", {})
    settings = WorkerSettings(code=own_code(), store_url="", name="there")
    serve(runner, settings, Offer(2, 100, ("gpu",)), lines, output)
    return [decode_json(line, WorkerMessage) for line in output.getvalue().splitlines()]


def test_a_worker_offers_itself_and_answers_each_task(store: Store) -> None:
    asked = [structs.replace(made(store, kind), name=kind) for kind in ("do", "kill")]
    output = io.BytesIO()

    def lines() -> Iterator[bytes]:
        for one in asked:
            yield msgspec.json.encode(one) + b"\n"
            yield b"\n"
        wait_until(lambda: output.getvalue().count(b"\n") == 3)  # its input ends when both are done

    offer, *replies = spoken(store, lines(), output)
    assert offer == Offer(2, 100, ("gpu",))
    assert {type(one).__name__: one.name for one in replies} == {"Done": "do", "Failed": "kill"}


@pytest.mark.parametrize(
    "ends", [b'{"name": "cut off', KeyboardInterrupt()], ids=["a line is cut off", "Ctrl-C"]
)
def test_whatever_ends_the_input_of_a_worker_ends_its_tasks(
    store: Store, ends: bytes | BaseException
) -> None:
    def lines() -> Iterator[bytes]:
        yield msgspec.json.encode(made(store, "sleep")) + b"\n"
        time.sleep(0.5)
        if isinstance(ends, BaseException):
            raise ends
        yield ends

    begun, others = time.monotonic(), threading.enumerate()
    with pytest.raises((ConfigError, KeyboardInterrupt)):
        spoken(store, lines(), io.BytesIO())
    assert time.monotonic() - begun < 20  # of the 60 s that the task sleeps
    for thread in set(threading.enumerate()) - set(others):  # the one that would end this process
        thread.join(1)
        assert not thread.is_alive()
    assert list(store.scratch_root.iterdir()) == []
