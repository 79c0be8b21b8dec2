"""A worker lays inputs out for tasks, removes them when they are not used, and refuses tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkwright.cluster import proving
from sparkwright.cluster.messages import (
    PackedTree,
    ProofInputs,
    ProofMade,
    ProofTask,
    TaskFailed,
    WorkerUnfit,
    own_code,
)
from sparkwright.cluster.serving import Serving
from sparkwright.cluster.sharing import share_inputs
from sparkwright.native.model import Cost
from sparkwright.upstream import Access, read_settings

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

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

    def run(self, asked: ProofTask, log: Path) -> ProofMade:
        del log
        assert not self.gone
        self.more()
        assert not self.gone
        return ProofMade(name=asked.name, machine="here", seconds=0.0, proof={})


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> dict[str, Laid]:
    """What was laid out, by the key of its environment."""
    made: dict[str, Laid] = {}
    removed: list[str] = []

    def lay_out(_: Serving, inputs: ProofInputs, stack: contextlib.ExitStack) -> Laid:
        one = made[inputs.environment] = Laid(removed, inputs.environment)
        stack.callback(one.remove)
        return one

    monkeypatch.setattr(proving, "lay_out_proofs", lay_out)
    return made


@pytest.fixture
def serving(store: Store, repository: Repository, tmp_path: Path) -> Serving:
    return Serving(Access(store, repository, read_settings(offline=True)), tmp_path / "worker")


def asked(store: Store, environment: str, *, code: str = "", trees: tuple[PackedTree, ...] = ()) -> ProofTask:
    inputs = ProofInputs(code=code or own_code(), trees=trees, environment=environment)
    digest, size = share_inputs(store, inputs)
    return ProofTask(
        inputs=digest, inputs_size=size, expected=Cost(seconds=1.0, mib=1), name="fix", carry={}, files={},
        pristine="", merged="", version="1", paths=(), absorbed=False,
    )  # fmt: skip


def test_the_newest_inputs_replace_the_older_ones(serving: Serving, store: Store, laid) -> None:
    for environment in ("one", "one", "two", "one"):
        assert isinstance(serving.serve(asked(store, environment)), ProofMade)
    assert laid["one"].removed == ["one", "two"]
    serving.close()
    assert laid["one"].removed == ["one", "two", "one"]


def test_inputs_in_use_stay_while_another_command_has_tasks_here(
    serving: Serving, store: Store, laid: dict[str, Laid]
) -> None:
    serving.serve(asked(store, "one"))
    laid["one"].more = lambda: serving.serve(asked(store, "two"))
    assert isinstance(serving.serve(asked(store, "one")), ProofMade)
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
