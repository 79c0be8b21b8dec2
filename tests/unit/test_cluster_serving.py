"""A worker lays inputs out for tasks, removes them when they are not used, and refuses tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from sparkwright.base.config import to_builtins
from sparkwright.cluster import proving
from sparkwright.cluster.kinds import PROOF
from sparkwright.cluster.messages import (
    ClusterTask,
    PackedTree,
    TaskDone,
    TaskFailed,
    TaskInputs,
    WorkerUnfit,
    own_code,
)
from sparkwright.cluster.proving import ProofInputs, ProofMade, ProofTask
from sparkwright.cluster.serving import Serving
from sparkwright.cluster.sharing import bring_files, share_inputs
from sparkwright.native.model import Cost
from sparkwright.upstream import Access, read_settings

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

    from sparkwright.cluster.kinds import Place
    from sparkwright.git import Repository
    from sparkwright.store import Store


class Laid:
    """Says which tasks ran; one does something more."""

    def __init__(self, removed: list[str], name: str) -> None:
        self.removed, self.name = removed, name
        self.gone = False
        self.more: Callable[[], object] = lambda: None

    def remove(self) -> None:
        self.gone = True
        self.removed.append(self.name)

    def run(self, asked: ProofTask, place: Place) -> ProofMade:
        assert asked.name == "fix"
        (place.out / "below").mkdir()
        (place.out / "below" / "file").write_text(self.name)
        assert not self.gone
        self.more()
        assert not self.gone
        return ProofMade(proof={"of": self.name})


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> dict[str, Laid]:
    """What was laid out, by the key of its environment."""
    made: dict[str, Laid] = {}
    removed: list[str] = []

    def lay_out(_: Serving, inputs: ProofInputs, given: TaskInputs, stack: contextlib.ExitStack) -> Laid:
        assert given.kind == PROOF
        one = made[inputs.environment] = Laid(removed, inputs.environment)
        stack.callback(one.remove)
        return one

    monkeypatch.setattr(proving, "lay_out_proofs", lay_out)
    return made


@pytest.fixture
def serving(store: Store, repository: Repository, tmp_path: Path) -> Serving:
    return Serving(Access(store, repository, read_settings(offline=True)), tmp_path / "worker")


def asked(
    store: Store, environment: str, *, code: str = "", trees: tuple[PackedTree, ...] = ()
) -> ClusterTask:
    shared = to_builtins(ProofInputs(environment=environment))
    inputs = TaskInputs(kind=PROOF, code=code or own_code(), trees=trees, shared=shared)
    digest, size = share_inputs(store, inputs)
    proof = ProofTask(
        name="fix", carry={}, files={"probe.py": b"\xff"}, pristine="", merged="", version="1", paths=(),
        absorbed=False,
    )  # fmt: skip
    return ClusterTask(
        name="fix", inputs=digest, inputs_size=size, expected=Cost(seconds=1.0, mib=1),
        asked=to_builtins(proof),
    )  # fmt: skip


def test_the_newest_inputs_replace_the_older_ones(serving: Serving, store: Store, laid) -> None:
    for environment in ("one", "one", "two", "one"):
        reply = serving.serve(asked(store, environment))
        assert isinstance(reply, TaskDone)
        assert reply.made == {"proof": {"of": environment}}
    assert laid["one"].removed == ["one", "two"]
    serving.close()
    assert laid["one"].removed == ["one", "two", "one"]


def test_inputs_in_use_stay_while_another_command_has_tasks_here(
    serving: Serving, store: Store, laid: dict[str, Laid]
) -> None:
    serving.serve(asked(store, "one"))
    laid["one"].more = lambda: serving.serve(asked(store, "two"))
    assert isinstance(serving.serve(asked(store, "one")), TaskDone)
    serving.serve(asked(store, "three"))
    assert sorted(laid["one"].removed) == ["one", "two"]


def test_a_machine_with_other_code_or_without_the_files_is_unfit(
    serving: Serving, store: Store, laid: dict[str, Laid]
) -> None:
    other = serving.serve(asked(store, "one", code="f" * 64))
    assert isinstance(other, WorkerUnfit)
    assert "is another one" in other.because
    lost = serving.serve(asked(store, "one", trees=(PackedTree(tree="1" * 40, sha256="0" * 64, size=1),)))
    assert isinstance(lost, WorkerUnfit)
    assert "no access" in lost.because
    assert laid == {}


def test_a_disk_that_fails_is_a_reply(serving: Serving, store: Store, laid: dict[str, Laid]) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    serving.serve(asked(store, "one"))
    laid["one"].more = fail
    reply = serving.serve(asked(store, "one"))
    assert isinstance(reply, TaskFailed)
    assert (reply.error, reply.machine) == ("StorageError", serving.machine)


def test_the_files_of_a_result_come_back_through_the_store(
    serving: Serving, store: Store, laid: dict[str, Laid], tmp_path: Path
) -> None:
    reply = serving.serve(asked(store, "one"))
    assert isinstance(reply, TaskDone)
    assert [one.path for one in reply.files] == ["below/file"]
    assert bring_files(store, reply.files, tmp_path / "here")
    assert (tmp_path / "here" / "below" / "file").read_text() == "one"


@pytest.mark.parametrize("path", ["../file", "/tmp/file", "a/../../file"])
def test_a_file_is_written_nowhere_else(
    serving: Serving, store: Store, laid, tmp_path: Path, path: str
) -> None:
    reply = serving.serve(asked(store, "one"))
    assert isinstance(reply, TaskDone)
    outside = msgspec.structs.replace(reply.files[0], path=path)
    assert not bring_files(store, [outside], tmp_path / "here")
    lost = msgspec.structs.replace(reply.files[0], sha256="0" * 64)
    assert not bring_files(store, [reply.files[0], lost], tmp_path / "here")
    assert not (tmp_path / "here").exists()
