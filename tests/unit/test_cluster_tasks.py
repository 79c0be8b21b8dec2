"""Tasks of a cluster: what machines offer, what tasks need, and trees that are given instead of fetched."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dask
import distributed
import pytest
from msgspec import structs
from tiny_release import make_tiny

from sparkwright.base.config import Model
from sparkwright.base.errors import ClusterError, NotInStoreError
from sparkwright.cluster import capabilities
from sparkwright.cluster.capabilities import code_need, look_for_capabilities, machine_need, resources_of
from sparkwright.cluster.kinds import Nothing
from sparkwright.cluster.messages import ClusterTask, TaskDone
from sparkwright.cluster.pool import Pool
from sparkwright.cluster.running import Batch, TaskRequest
from sparkwright.cluster.sharing import packed_tree, packed_trees
from sparkwright.cluster.verifying import needs_of
from sparkwright.git import FileEntry, import_files, open_repository, unpack_tree
from sparkwright.native.model import Cost
from sparkwright.upstream.given import GivenSource, GivenTree
from sparkwright.verify.options import VerifyOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkwright.git import Repository
    from sparkwright.store import Store

SMALL = Cost(seconds=1.0, mib=1)


@dataclass
class Workers:
    """The part of Dask's client that a pool asks for workers, and for tasks."""

    resources: dict[str, dict[str, float]]
    submitted: list[dict[str, Any]] = field(default_factory=list)
    other_program: bool = False

    @property
    def scheduler(self) -> Workers:
        return self

    def sync(self, function: Callable[..., Any], **given: Any) -> Any:
        return function(**given)

    def identity(self, n_workers: int) -> dict[str, Any]:
        assert n_workers == -1
        code = {} if self.other_program else {code_need(): 8}
        return {"workers": {home: {"resources": {**code, **one}} for home, one in self.resources.items()}}

    def submit(self, function: object, data: bytes, **options: Any) -> object:
        assert callable(function)
        assert data
        self.submitted.append(options)
        return object()


def task(*needs: str) -> ClusterTask:
    return ClusterTask(name="one", inputs="0" * 64, inputs_size=1, expected=SMALL, needs=needs)


@pytest.mark.parametrize(
    ("card", "expected"),
    [("12.1", {"gpu", "gb10"}), ("9.0", {"gpu"}), ("", set()), ("[N/A]", set())],
)
def test_a_machine_offers_its_card(monkeypatch: pytest.MonkeyPatch, card: str, expected: set[str]) -> None:
    monkeypatch.setattr(capabilities, "card_capability", lambda: card)
    assert set(look_for_capabilities()) == {code_need(), machine_need(), *expected}


def test_a_machine_offers_a_toolkit_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(capabilities, "card_capability", lambda: "")
    assert "cuda" in look_for_capabilities(tmp_path)
    assert "cuda" not in look_for_capabilities()


def test_a_card_serves_one_task_and_all_else_as_many_as_run() -> None:
    assert resources_of(("gpu", "gb10", "cuda", "machine-aarch64"), 8) == {
        "gpu": 1, "gb10": 1, "cuda": 8, "machine-aarch64": 8,
    }  # fmt: skip


def test_a_task_asks_for_what_it_needs() -> None:
    client = Workers({"a": {"SLOT": 2, "MIB": 100, "gpu": 1}, "b": {"SLOT": 2, "MIB": 900}})
    Pool("here", client).submit(task("gpu"))
    assert client.submitted[0]["resources"] == {"SLOT": 1, "MIB": 1, "gpu": 1, code_need(): 1}


def test_a_need_that_no_machine_has_is_refused_with_what_they_offer() -> None:
    client = Workers(
        {"a": {"SLOT": 2, "MIB": 100, "gpu": 1, "machine-aarch64": 2}, "b": {"SLOT": 1, "MIB": 1}}
    )
    pool = Pool("here", client)
    with pytest.raises(ClusterError, match="no machine of here can do this") as error:
        pool.submit(task("gpu", "gb10"))
    assert error.value.because == "it needs gpu, gb10, and they offer gpu, machine-aarch64"
    assert client.submitted == []
    with pytest.raises(ClusterError, match="is left"):
        Pool("here", Workers({})).submit(task())


def test_workers_with_another_program_get_no_task() -> None:
    client = Workers({"a": {"SLOT": 1, "MIB": 1}}, other_program=True)
    pool = Pool("here", client)
    assert pool.different() == 1
    with pytest.raises(ClusterError, match="another state") as error:
        pool.submit(task())
    assert "install the same commit" in error.value.next_step
    client.resources["b"] = {"SLOT": 1, "MIB": 1, code_need(): 1}
    pool.submit(task())
    assert pool.different() == 1


def test_a_pool_for_another_thread_shares_workers_and_no_tasks() -> None:
    pool = Pool("here", Workers({"a": {"SLOT": 1, "MIB": 1}}))
    pool.submit(task())
    other = pool.alone()
    assert list(other.replies()) == []
    other.submit(task())
    names = [options["key"] for options in pool.client.submitted]
    assert len(set(names)) == len(names) == 2


class Counted(Model, frozen=True):
    """A result."""

    count: int


@pytest.mark.parametrize("made", [{"count": 3}, {"count": 4}, {"count": "3"}, {"other": 3}, {}])
def test_a_result_of_another_form_or_content_is_not_taken(made: dict[str, Any]) -> None:
    request = TaskRequest("one", Nothing(), SMALL)
    batch = Batch("count", [request], Counted, lambda _, found, __: found.count == 3)
    assert batch.taken(request, TaskDone(name="one", machine="there", seconds=0.0, made=made)) is (
        made == {"count": 3}
    )


def test_verify_needs_a_gb10_unless_it_is_smaller() -> None:
    assert needs_of(VerifyOptions(wheel="vllm.whl", recipe="qwen")) == ("gpu", "gb10")
    assert needs_of(VerifyOptions(wheel="vllm.whl", recipe="smoke", profile="smoke")) == ("gpu",)
    assert needs_of(VerifyOptions(simulator=True)) == ()


def test_packs_beside_another_tree_hold_what_is_new(
    store: Store, repository: Repository, tmp_path: Path
) -> None:
    big = {f"file {number}": FileEntry("100644", bytes([number]) * 5000) for number in range(30)}
    first = import_files(repository, big.items())
    second = import_files(repository, {**big, "new": FileEntry("100644", b"new")}.items())
    packs = packed_trees(store, repository, [first, second, first])
    assert [pack.tree for pack in packs] == [first, second]
    assert packs[1].size < packed_tree(store, repository, second).size / 2
    other = open_repository(tmp_path / "other")
    for pack in packs:
        unpack_tree(other, store.file_path(pack.sha256), pack.tree)
    assert other.files(second).keys() == {*big, "new"}
    other.close()


class NoWheels:
    """A source that has nothing."""


@pytest.fixture
def given() -> GivenSource:
    trees = (
        GivenTree(version="1.2.0", tree="1" * 40, pinned=True, origin="here", verified=False),
        GivenTree(version="1.2.0", tree="2" * 40),
        GivenTree(version="1.2.0", tree="3" * 40, sha256="f" * 64),
    )
    return GivenSource(trees, NoWheels())  # type: ignore[arg-type]


def test_given_trees_are_those_of_their_release_and_digest(given: GivenSource) -> None:
    pinned = given.pristine(make_tiny("1.2.0").lock)
    assert (pinned.tree, pinned.verified, pinned.origin) == ("1" * 40, False, "here")
    assert given.known(make_tiny("1.3.0").lock) is None
    assert given.release("1.2.0").tree == "2" * 40
    assert given.release("1.2.0", sha256="f" * 64).tree == "3" * 40


def test_what_was_not_given_is_not_fetched(given: GivenSource) -> None:
    for ask in (
        lambda: given.release("1.3.0"),
        lambda: given.release("1.2.0", sha256="e" * 64),
        lambda: given.commit("1" * 40, "https://example.org/vllm"),
    ):
        with pytest.raises(NotInStoreError, match="is not here"):
            ask()


def test_a_machine_whose_card_is_lost_leaves_its_task_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one machine with a card goes, and another without one is still there: no wait without end."""
    client = Workers({"a": {"SLOT": 1, "MIB": 1, "gpu": 1}, "b": {"SLOT": 1, "MIB": 1}})
    monkeypatch.setattr(Workers, "status", "running", raising=False)
    monkeypatch.setattr(Workers, "submit", lambda *_, **__: NeverDone())
    pool = Pool("here", client, patience_s=0.2)
    pool.submit(task("gpu"))
    replies = pool.replies()
    assert next(replies) is None
    del client.resources["a"]
    with pytest.raises(ClusterError, match="is left"):
        list(replies)


def test_workers_are_read_while_a_timer_of_the_client_replaces_its_summary() -> None:
    """The client's timer fetches a summary without workers, here every millisecond."""
    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1 ms"}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
        ThreadPoolExecutor(4) as threads,
    ):
        pool = Pool("here", client)
        seen = [threads.submit(lambda: len(pool.workers)) for _ in range(400)]
        assert {one.result() for one in seen} == {1}


class NeverDone:
    """A future of Dask's whose task waits for a worker."""

    def done(self) -> bool:
        return False


@pytest.mark.parametrize(("left", "again"), [(3, [3]), (9, [])])
def test_a_task_for_the_memory_of_a_lost_machine_is_taken_by_one_with_less(
    monkeypatch: pytest.MonkeyPatch, left: int, again: list[int]
) -> None:
    """It demanded as much as the larger machine had, and a worker that has less never gets it."""
    client = Workers({"a": {"SLOT": 1, "MIB": 8}, "b": {"SLOT": 1, "MIB": left}})
    cancelled: list[object] = []
    made: list[NeverDone] = []

    def submit(self: Workers, *_: object, **options: object) -> NeverDone:
        self.submitted.append(options)
        made.append(NeverDone())
        return made[-1]

    monkeypatch.setattr(Workers, "status", "running", raising=False)
    monkeypatch.setattr(Workers, "submit", submit)
    monkeypatch.setattr(Workers, "cancel", lambda _, futures: cancelled.extend(futures), raising=False)
    pool = Pool("here", client)
    pool.submit(structs.replace(task(), expected=Cost(seconds=1.0, mib=8)))
    replies = pool.replies()
    assert next(replies) is None
    assert next(replies) is None
    assert (len(client.submitted), cancelled) == (1, [])
    del client.resources["a"]
    assert next(replies) is None
    assert [one["resources"]["MIB"] for one in client.submitted] == [8, *again]
    assert cancelled == made[: len(again)]
    assert next(replies) is None
    assert len(client.submitted) == 1 + len(again)
