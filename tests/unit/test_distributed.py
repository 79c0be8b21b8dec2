"""Addresses of clusters, what tasks need and machines offer, and tasks that fail."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tiny_release import make_tiny

from sparkwright.base.errors import ClusterError, CompileError, ConfigError, NotInStoreError, StorageError
from sparkwright.base.ssh import SshHost, parse_host
from sparkwright.cli import worker as worker_command
from sparkwright.cli.main import main
from sparkwright.distributed import Done, Task, TaskLostError, bring_files, parse_cluster, share_json
from sparkwright.distributed.cluster import ThisMachine, Workers
from sparkwright.distributed.tasks import Failed, StoredFile
from sparkwright.distributed.worker import TaskRunner
from sparkwright.git import FileEntry, Repository, import_files, open_repository, unpack_tree
from sparkwright.native.model import Cost, Unit
from sparkwright.pipeline.packs import packed
from sparkwright.pipeline.remote_units import _batches
from sparkwright.store import Store
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.remote import run_task

# Addresses ----------------------------------------------------------------------------------------------


def test_machines_by_ssh():
    found = parse_cluster("ssh://spark-1,builder@spark-2:2222")
    assert found.hosts == (SshHost("spark-1"), SshHost("spark-2", "builder", 2222))
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


@pytest.mark.parametrize(("kind", "why"), [("kill", "status -9"), ("silent", "no document")])
def test_a_program_that_gives_no_document_says_nothing_of_the_task(
    runner: TaskRunner, store: Store, kind: str, why: str
) -> None:
    failed = runner.run(made(store, kind))
    assert isinstance(failed, Failed)
    assert failed.fault == ""
    assert why in failed.because


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


def test_a_full_disk_is_named(runner: TaskRunner, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    asked = made(store, "do")
    monkeypatch.setattr("sparkwright.distributed.worker.share_file", full)
    failed = runner.run(asked)
    assert isinstance(failed, Failed)
    assert (failed.fault, failed.kind) == ("task", "StorageError")
    assert "space" in failed.because


def test_a_task_that_is_given_up_ends_at_once(runner: TaskRunner, store: Store) -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(KeyboardInterrupt):
        runner.run(made(store, "sleep"), stop)


@pytest.mark.parametrize("kind", [CompileError, StorageError, ClusterError])
def test_a_failure_on_this_machine_is_the_error_of_its_kind(store: Store, monkeypatch, kind) -> None:
    name = "Nonsense" if kind is ClusterError else kind.__name__
    monkeypatch.setattr(TaskRunner, "run", lambda *_: Failed("one", "here", "task", name, "it"))
    with pytest.raises(kind, match="it"):
        ThisMachine(store=store).run([Task("one", ())], lambda _: True)


@pytest.mark.parametrize("value", [{"count": 3}, {"count": 4}, {"count": "3"}, {"other": 3}, None, [], 3])
def test_a_result_of_another_form_or_content_is_not_taken(store: Store, monkeypatch, value: Any) -> None:
    monkeypatch.setattr(TaskRunner, "run", lambda *_: Done("one", "here", 0.0, value))
    with nullcontext() if value == {"count": 3} else pytest.raises(TaskLostError):
        ThisMachine(store=store).run([Task("one", ())], lambda done: done.value["count"] == 3)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", ".", "a\0b"])
def test_a_result_writes_nothing_outside_its_folder(store: Store, tmp_path: Path, path: str) -> None:
    file = share_json(store, 1)
    assert not bring_files(store, [file, structs.replace(file, path=path)], tmp_path / "back")
    assert not (tmp_path / "back").exists()


# Workers ------------------------------------------------------------------------------------------------


@dataclass
class Client:
    """The part of Dask's client that is asked for workers, and for tasks."""

    resources: dict[str, dict[str, float]]
    submitted: list[dict[str, Any]] = field(default_factory=list)
    status: str = "running"
    readings: int = 0

    @property
    def scheduler(self) -> Client:
        return self

    def sync(self, function: Callable[..., Any], **given: Any) -> Any:
        return function(**given)

    def identity(self, n_workers: int) -> dict[str, Any]:
        assert n_workers == -1
        self.readings += 1
        return {
            "workers": {home: {"resources": one, "name": f"{home} 7"} for home, one in self.resources.items()}
        }

    def submit(self, function: object, data: bytes, **options: Any) -> object:
        assert callable(function)
        assert json.loads(data)
        self.submitted.append(options)
        return NeverDone()


class NeverDone:
    """A future of Dask's whose task waits for a worker."""

    def done(self) -> bool:
        return False


def workers(client: Client, patience_s: float = 60.0) -> Workers:
    return Workers("here", client, patience_s)


def task(*needs: str, mib: int = 1) -> Task:
    return Task("one", ("do",), needs=needs, seconds=1.0, mib=mib)


@pytest.mark.parametrize(
    ("card", "expected"),
    [("12.1", {"gpu", "gb10"}), ("9.0", {"gpu"}), ("", set()), ("[N/A]", set())],
)
def test_a_machine_offers_its_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: str, expected: set[str]
) -> None:
    monkeypatch.setattr("sparkwright.base.card.card_capability", lambda: card)
    kind, *offers = worker_command._offers(None)
    assert kind.startswith("machine-")
    assert set(offers) == expected
    assert "cuda" in worker_command._offers(tmp_path)


def test_a_need_that_no_machine_has_is_refused_with_what_they_offer() -> None:
    client = Client(
        {"a": {"SLOT": 2, "MIB": 100, "gpu": 1, "machine-aarch64": 2}, "b": {"SLOT": 1, "MIB": 1}}
    )
    with pytest.raises(ClusterError, match="no machine of here can do this") as error:
        workers(client).submit(task("gpu", "gb10"))
    assert error.value.because == "it needs gpu, gb10, and they offer gpu, machine-aarch64"
    assert client.submitted == []
    with pytest.raises(ClusterError, match="is left"):
        workers(Client({})).submit(task())


def test_a_machine_of_which_several_results_are_refused_is_left_out(heard) -> None:
    """If others deliver; and a task is not tried without end."""
    client = Client({"a": {"SLOT": 1, "MIB": 1}, "b": {"SLOT": 1, "MIB": 1}})
    found = workers(client)
    for name in "xyz":
        found.refuse(structs.replace(task(), name=name), "a")
    assert [one["workers"] for one in client.submitted] == [["b"]] * 3
    assert len(heard.warnings) == 1
    found.submit(task())
    assert client.submitted[-1]["workers"] == ["b"]
    found.refuse(structs.replace(task(), name="x"), "b")
    with pytest.raises(TaskLostError, match="did not arrive"):
        found.refuse(structs.replace(task(), name="x"), "b")


def test_units_are_sent_in_batches_of_similar_memory() -> None:
    units = [
        Unit(target="_C", source=f"source/{n}", output=str(n), language="CXX", argv=()) for n in range(9)
    ]
    expected = {one.name: Cost(seconds=40.0, mib=1000 * (number % 3)) for number, one in enumerate(units)}
    batches = list(_batches(units, expected))
    assert sorted(one.output for batch in batches for one in batch) == [str(n) for n in range(9)]
    assert [len(batch) for batch in batches] == [3, 3, 3]
    assert [{expected[one.name].mib for one in batch} for batch in batches] == [{2000}, {1000}, {0}]


def test_verify_needs_a_gb10_unless_it_is_smaller(store: Store) -> None:
    def needs(**options: Any) -> tuple[str, ...]:
        return run_task(store, VerifyOptions(**options), "run").needs

    assert needs(wheel="vllm.whl", recipe="qwen") == ("gpu", "gb10")
    assert needs(wheel="vllm.whl", recipe="smoke", profile="smoke") == ("gpu",)
    assert needs(simulator=True) == ()


def test_a_pack_holds_its_tree(store: Store, repository: Repository, tmp_path: Path) -> None:
    big = {f"file {number}": FileEntry("100644", bytes([number]) * 5000) for number in range(30)}
    tree = import_files(repository, big.items())
    pack = packed(store, repository, tree)
    assert pack == packed(store, repository, tree)
    assert pack.path == f"packs/{tree}"
    other = open_repository(tmp_path / "other")
    unpack_tree(other, store.file_path(pack.sha256), tree)
    assert other.files(tree).keys() == big.keys()
    other.close()


def test_a_machine_whose_card_is_lost_leaves_its_task_to_no_other() -> None:
    """The one machine with a card goes, and another without one is still there: no wait without end."""
    client = Client({"a": {"SLOT": 1, "MIB": 1, "gpu": 1}, "b": {"SLOT": 1, "MIB": 1}})
    found = workers(client, patience_s=0.2)
    found.submit(task("gpu"))
    assert client.submitted[0]["resources"] == {"SLOT": 1, "MIB": 1, "gpu": 1}
    replies = found.results()
    assert next(replies) is None
    del client.resources["a"]
    with pytest.raises(ClusterError, match="is left"):
        list(replies)


def test_many_tasks_look_at_one_reading_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client({"a": {"SLOT": 1}})
    found = workers(client)
    for period, readings in ((3600.0, 1), (0.0, 51)):
        monkeypatch.setattr("sparkwright.distributed.cluster._POLL_S", period)
        assert {found.machines() for _ in range(50)} == {frozenset({"a"})}
        assert client.readings == readings


def test_workers_are_read_while_a_timer_of_the_client_replaces_its_summary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client's timer fetches a summary without workers, here every millisecond."""
    monkeypatch.setattr("sparkwright.distributed.cluster._POLL_S", 0.0)  # each look is a reading
    # Here, as importing them takes a second of every worker that collects this file.
    import dask
    import distributed

    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1 ms"}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
        ThreadPoolExecutor(4) as threads,
    ):
        found = Workers("here", client, 60.0)
        seen = [threads.submit(lambda: len(found.machines())) for _ in range(400)]
        assert {one.result() for one in seen} == {1}


@pytest.mark.parametrize(("left", "again"), [(3, [3]), (9, [])])
def test_a_task_for_the_memory_of_a_lost_machine_is_taken_by_one_with_less(
    monkeypatch: pytest.MonkeyPatch, left: int, again: list[int]
) -> None:
    """It demanded as much as the larger machine had, and a worker that has less never gets it."""
    client = Client({"a": {"SLOT": 1, "MIB": 8}, "b": {"SLOT": 1, "MIB": left}})
    cancelled: list[object] = []
    made: list[NeverDone] = []

    def submit(self: Client, *_: object, **options: object) -> NeverDone:
        self.submitted.append(options)
        made.append(NeverDone())
        return made[-1]

    monkeypatch.setattr(Client, "submit", submit)
    monkeypatch.setattr(Client, "cancel", lambda _, futures: cancelled.extend(futures), raising=False)
    found = workers(client)
    found.submit(task(mib=8))
    replies = found.results()
    assert next(replies) is None
    assert next(replies) is None
    assert (len(client.submitted), cancelled) == (1, [])
    del client.resources["a"]
    assert next(replies) is None
    assert [one["resources"]["MIB"] for one in client.submitted] == [8, *again]
    assert cancelled == made[: len(again)]
    assert next(replies) is None
    assert len(client.submitted) == 1 + len(again)


_TREE = "3" * 40
_RUN = b'{"options":{},"run":"one"}'


@pytest.mark.parametrize(
    ("kind", "request_json", "pack", "why"),
    [
        ("units", None, "", "No such file"),
        ("units", b"{", "", "truncated"),
        ("run", b'{"run":"\xff"}', "", "utf-8"),
        ("run", b'{"options":{"checks":' + b"[" * 100_000, "", "recursion"),
        ("run", _RUN, "--help", "40 lower-case hex digits"),
        ("run", _RUN, _TREE, "early EOF"),
        ("run", _RUN, f"{_TREE}/folder", "Is a directory"),
    ],
)
def test_an_odd_folder_of_a_task_is_one_clear_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    request_json: bytes | None,
    pack: str,
    why: str,
) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPARKWRIGHT_HOME", str(tmp_path / "home"))
    if request_json is not None:
        (folder / "request.json").write_bytes(request_json)
    if pack:
        (folder / "packs" / pack).parent.mkdir(parents=True)
        (folder / "packs" / pack).write_bytes(b"junk")
    main(["task", kind])
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert why in error["because"]
    assert error["kind"] in {"ConfigError", "ClusterError", "RefError"}
    assert "Traceback" not in err
