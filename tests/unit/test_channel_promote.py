"""Channels as their publisher changes them: promote, roll back, renew, set a status."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import wheelkit
from channel_kit import POLICY, ChannelWorld, now, small_wheel

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.errors import (
    LostRaceError,
    PublishError,
    ReplayedChannelError,
    TamperedError,
    UnknownNameError,
    UntrustedKeyError,
)
from sparkwright.publish import lease
from sparkwright.publish.evidence import require_evidence
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.mirror import FolderMirror
from sparkwright.publish.promote import Deposits


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    return ChannelWorld(tmp_path)


def files_at(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


# Promotion -----------------------------------------------------------------------------------------


def test_a_promoted_wheel_is_listed_with_everything_that_a_reader_verifies(world: ChannelWorld) -> None:
    first, second = world.promote("1"), world.promote("2")
    assert (first.generation, second.generation) == (1, 2)
    assert second.previous == first.digest
    assert second.origin == first.origin
    assert world.listed() == {"1": None, "2": None}
    verified = world.verify()
    assert verified.state == second
    assert [file.version for file in verified.wheels] == ["1", "2"]


def test_promoting_again_writes_nothing(world: ChannelWorld) -> None:
    state = world.promote("1")
    before = files_at(world.published)
    assert world.promote_file(world.dist / "vllm-1-py3-none-any.whl") == state
    assert files_at(world.published) == before


def test_what_was_published_never_changes(world: ChannelWorld) -> None:
    world.promote("1")
    before = files_at(world.published)
    world.promote("2")
    world.publisher().rollback("nightly", POLICY, now(), to=None, reason="slow")
    after = files_at(world.published)
    pointers = {name for name in before if after[name] != before[name]}
    assert pointers == {
        "channels/nightly/timestamp.json",
        "channels/nightly/simple/vllm/index.html",
        "channels/nightly/simple/vllm/index.json",
    }


def test_one_wheel_in_two_channels_is_stored_once(world: ChannelWorld) -> None:
    world.promote("1", "nightly")
    world.promote_file(world.dist / "vllm-1-py3-none-any.whl", "stable")
    assert len(list(world.published.rglob("*.whl"))) == 1
    assert world.verify("nightly").state.files[0].sha256 == world.verify("stable").state.files[0].sha256


def test_the_promotion_statement_names_wheel_channel_generation_and_runs(world: ChannelWorld) -> None:
    state = world.promote("1")
    (file,) = state.files
    data = (world.published / file.promotion_path).read_bytes()
    statement = json.loads(data)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": file.filename, "digest": {"sha256": file.sha256}}]
    predicate = statement["predicate"]
    assert (predicate["channel"], predicate["generation"]) == ("nightly", 1)
    (run,) = predicate["evidence"]
    evidence = world.published / file.folder / "evidence" / f"{run['digest']['sha256']}.json"
    assert evidence.read_bytes() == next((world.dist / "evidence" / file.sha256).iterdir()).read_bytes()


def test_provenance_is_bound_to_its_wheel(world: ChannelWorld) -> None:
    path = world.wheel("1")
    state = world.promote_file(path)
    subject = {"name": path.name, "digest": {"sha256": state.files[0].sha256}}
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": [subject], "predicateType": "x"}
    publisher = world.publisher()
    promoted = publisher.promote("stable", path, (), POLICY, now(), provenance=json.dumps(statement).encode())
    assert promoted.files[0].provenance
    world.verify("stable")
    subject["digest"] = {"sha256": "0" * 64}
    publisher.promote("other", path, (), POLICY, now(), provenance=json.dumps(statement).encode())
    with pytest.raises(TamperedError, match=r"provenance .* is of another wheel"):
        world.verify("other")


def test_other_bytes_under_a_listed_name_are_refused(world: ChannelWorld) -> None:
    world.promote("1")
    small_wheel(world.dist, "1", record={"x.json": 1})
    with pytest.raises(PublishError, match="other bytes"):
        world.publisher().promote("nightly", world.dist / "vllm-1-py3-none-any.whl", (), POLICY, now())
    world.verify()


def test_evidence_about_other_bytes_promotes_nothing(world: ChannelWorld) -> None:
    path, other = world.wheel("1"), world.wheel("2")
    folder = world.dist / "evidence"
    found = require_evidence(path, wheelkit.sha256(path), "nightly", POLICY, folder)
    with pytest.raises(PublishError, match="the evidence is about other bytes"):
        world.publisher().promote("nightly", other, found, POLICY, now())
    assert not world.published.exists()


@pytest.mark.parametrize("name", ["", "..", "Stable", "a/b", "-x", "simple", "a" * 64])
def test_an_odd_name_of_a_channel_is_refused(world: ChannelWorld, name: str) -> None:
    with pytest.raises(Exception, match="no name of a channel"):
        world.promote("1", name)
    assert not world.published.exists()


# Rollback ------------------------------------------------------------------------------------------


def test_a_rollback_is_a_new_generation_that_yanks(world: ChannelWorld) -> None:
    world.promote("1")
    world.promote("2")
    state = world.publisher().rollback("nightly", POLICY, now(), to=None, reason="it crashes")
    assert (state.generation, state.action.kind, state.action.to) == (3, "rollback", 1)
    assert world.listed() == {"1": None, "2": "it crashes"}
    world.verify()


def test_rollbacks_go_further_back_each_time_and_yanked_wheels_stay_yanked(world: ChannelWorld) -> None:
    for version in ("1", "2", "3"):
        world.promote(version)
    publisher = world.publisher()
    publisher.rollback("nightly", POLICY, now(), to=None, reason="a")
    assert world.listed() == {"1": None, "2": None, "3": "a"}
    publisher.renew("nightly", POLICY, now())
    publisher.rollback("nightly", POLICY, now(), to=None, reason="b")
    assert world.listed() == {"1": None, "2": "b", "3": "a"}
    with pytest.raises(UnknownNameError, match="cannot go back to generation 0"):
        publisher.rollback("nightly", POLICY, now(), to=None, reason="c")
    world.promote("4")
    publisher.rollback("nightly", POLICY, now(), to=None, reason="d")
    assert world.listed() == {"1": None, "2": "b", "3": "a", "4": "d"}
    publisher.rollback("nightly", POLICY, now(), to=3, reason="e")
    assert world.listed() == {"1": None, "2": None, "3": None, "4": "d"}
    assert [state.generation for state in publisher.history(world.verify().state)] == list(range(9, 0, -1))


def test_a_yanked_wheel_can_be_promoted_again(world: ChannelWorld) -> None:
    world.promote("1")
    second = world.promote("2")
    world.publisher().rollback("nightly", POLICY, now(), to=1, reason="x")
    state = world.promote_file(world.dist / "vllm-2-py3-none-any.whl")
    assert world.listed() == {"1": None, "2": None}
    assert state.files[1].uploaded == second.files[1].uploaded


def test_a_history_that_was_changed_is_noticed(world: ChannelWorld) -> None:
    first = world.promote("1")
    world.promote("2")
    path = world.published / first.path
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(TamperedError, match="generation 1 of nightly was changed"):
        world.publisher().rollback("nightly", POLICY, now(), to=None, reason="x")


# Renewal and status --------------------------------------------------------------------------------


def test_a_renewal_changes_the_expiry_alone(world: ChannelWorld) -> None:
    state = world.promote("1")
    longer = POLICY.__class__(requires=(), expires_days=60)
    renewed = world.publisher().renew("nightly", longer, now())
    assert (renewed.files, renewed.pages) == (state.files, state.pages)
    assert renewed.expires > state.expires


def test_a_quarantined_channel_lists_no_file(world: ChannelWorld) -> None:
    world.promote("1")
    publisher = world.publisher()
    publisher.set_status("nightly", "quarantined", "under attack", POLICY, now())
    page = json.loads((world.published / "channels/nightly/simple/vllm/index.json").read_bytes())
    assert page["project-status"] == {"status": "quarantined", "reason": "under attack"}
    assert page["files"] == []
    world.verify()
    publisher.set_status("nightly", "active", "", POLICY, now())
    assert world.listed() == {"1": None}


# Two publishers ------------------------------------------------------------------------------------


class LateTarget(FolderTarget):
    """A folder in which something happens just before a publisher takes the lease."""

    def replace(self, path, data, *, expected):
        if path == lease.PATH:
            self.__dict__.pop("before", lambda: None)()
        return super().replace(path, data, expected=expected)


def test_of_two_publishers_one_wins_and_the_other_is_told(world: ChannelWorld) -> None:
    world.promote("1")
    target = LateTarget(world.published)
    target.__dict__["before"] = lambda: world.promote("2")
    slow = world.publisher(target)
    with pytest.raises(LostRaceError, match="another publisher") as caught:
        world.promote("3", publisher=slow)
    assert caught.value.exit_code == 62
    assert world.listed() == {"1": None, "2": None}
    world.verify()
    assert world.promote("3", publisher=slow).generation == 3
    assert world.listed() == {"1": None, "2": None, "3": None}
    world.verify()


def held(world: ChannelWorld, holder: str, seconds: float) -> None:
    """Let *holder* have the lease for so long."""
    target = FolderTarget(world.published)
    record = lease.LeaseRecord(holder=holder, until=time.time() + seconds)
    found = target.read(lease.PATH)
    target.replace(lease.PATH, to_json(to_builtins(record)), expected=found.tag if found else None)


@pytest.mark.parametrize("holder", ["elsewhere:1:ab", f"{lease._host()}:1:ab"])
def test_another_writer_is_waited_for_and_then_named(world: ChannelWorld, holder: str) -> None:
    world.promote("1")
    held(world, holder, 60)
    hasty = replace(world.publisher(), patience_s=0.0)
    with pytest.raises(LostRaceError, match=f"because {holder} writes there"):
        world.promote("2", publisher=hasty)
    held(world, holder, 0.5)
    world.promote("2")
    assert world.verify().state.generation == 2


def test_a_writer_of_this_machine_that_died_holds_up_nobody(world: ChannelWorld) -> None:
    world.promote("1")
    child = subprocess.Popen(["true"])
    child.wait()
    held(world, f"{lease._host()}:{child.pid}:ab", 600)
    world.promote("2", publisher=replace(world.publisher(), patience_s=0.0))


def test_the_end_of_a_lease_is_named_as_it_is(world: ChannelWorld) -> None:
    """The clock of the machine that was killed was a day ahead."""
    world.promote("1")
    held(world, "elsewhere:1:ab", 86_400)
    with pytest.raises(LostRaceError) as caught:
        world.promote("2", publisher=replace(world.publisher(), patience_s=0.0))
    assert "another 86" in str(caught.value.next_step)
    assert "a clock is wrong" in str(caught.value.next_step)


def test_a_process_of_another_container_of_this_machine_is_not_taken_for_dead(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.promote("1")
    child = subprocess.Popen(["true"])
    child.wait()
    held(world, f"{lease._host()}:{child.pid}:ab", 600)
    monkeypatch.setattr(lease, "_host", lambda: "the same name/another namespace")
    with pytest.raises(LostRaceError):
        world.promote("2", publisher=replace(world.publisher(), patience_s=0.0))


def test_a_damaged_lease_is_one_clear_error(world: ChannelWorld) -> None:
    world.promote("1")
    (world.published / lease.PATH).write_bytes(b"{")
    with pytest.raises(PublishError, match=r"lease\.json cannot be read"):
        world.promote("2")


def test_a_writer_that_was_stopped_for_too_long_moves_no_pointer(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.promote("1")
    target = FolderTarget(world.published)
    real = Deposits.settle

    def stalled(self: Deposits) -> None:
        """Be stopped with the lease, until it is another one's."""
        real(self)
        held(world, "elsewhere:1:ab", 0.0)
        later = time.time() + lease.LASTS_S
        monkeypatch.setattr(lease.time, "time", lambda: later)

    monkeypatch.setattr(Deposits, "settle", stalled)
    with pytest.raises(LostRaceError):
        world.promote("2")
    monkeypatch.undo()
    assert target.read("channels/nightly/2.targets.json") is not None  # its number is taken
    assert world.promote("3").generation == 2
    assert world.listed() == {"1": None, "3": None}
    world.verify()


class OvertakenTarget(FolderTarget):
    """A folder in which something happens just after a file was read for the first time."""

    def read(self, path):
        found = super().read(path)
        self.__dict__.pop("after", lambda: None)()
        return found


def test_a_pointer_read_before_another_publisher_wrote_is_late_and_no_replay(world: ChannelWorld) -> None:
    world.promote("1")
    target = OvertakenTarget(world.published)
    target.__dict__["after"] = lambda: world.promote("2")
    with pytest.raises(LostRaceError):
        world.promote("3", publisher=world.publisher(target))
    assert world.listed() == {"1": None, "2": None}
    assert world.promote("3", publisher=world.publisher(target)).generation == 3


def test_a_pointer_that_a_reader_took_before_another_saw_the_next_is_no_replay(world: ChannelWorld) -> None:
    world.promote("1")

    class Overtaken(FolderMirror):
        def read(self, path, *words, **options):
            found = super().read(path, *words, **options)
            self.__dict__.pop("after", lambda: None)()
            return found

    def next_one() -> None:
        world.promote("2")
        world.verify()

    mirror = Overtaken(world.published)
    mirror.__dict__["after"] = next_one
    assert world.verify(mirror=mirror).state.generation == 2


def test_many_publishers_at_once_lose_nothing(world: ChannelWorld) -> None:
    world.promote("0")
    wheels = [world.wheel(str(number)) for number in range(1, 5)]
    failures: list[BaseException] = []

    def run(path: Path) -> None:
        while True:
            try:
                world.promote_file(path)
            except LostRaceError:
                continue
            except BaseException as error:  # noqa: BLE001
                failures.append(error)
            return

    threads = [threading.Thread(target=run, args=(path,)) for path in wheels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert world.listed() == dict.fromkeys("01234")
    assert world.verify().state.generation == 5


# What a publisher does not build upon --------------------------------------------------------------


def test_a_forged_pointer_is_not_signed_by_the_next_promotion(world: ChannelWorld, tmp_path: Path) -> None:
    world.promote("1")
    attacker = ChannelWorld(tmp_path / "attacker")
    attacker.promote("6.6.6")
    pointer = world.published / "channels/nightly/timestamp.json"
    pointer.write_bytes((attacker.published / "channels/nightly/timestamp.json").read_bytes())
    with pytest.raises(UntrustedKeyError, match="unknown key"):
        world.promote("2")


def test_an_old_pointer_is_not_built_upon(world: ChannelWorld) -> None:
    world.promote("1")
    pointer = world.published / "channels/nightly/timestamp.json"
    old = pointer.read_bytes()
    world.promote("2")
    pointer.write_bytes(old)
    with pytest.raises(ReplayedChannelError, match="went back"):
        world.promote("3")


def test_a_strangers_channel_is_built_upon_by_an_explicit_word_alone(
    world: ChannelWorld, tmp_path: Path
) -> None:
    attacker = ChannelWorld(tmp_path / "attacker")
    attacker.promote("1")
    shutil.copytree(attacker.published, world.published)
    with pytest.raises(UntrustedKeyError):
        world.promote("2")
    world.promote("2", publisher=world.publisher(adopt=True))
    assert world.verify().state.generation == 2


def test_pages_that_a_killed_publisher_left_behind_are_brought_up(world: ChannelWorld) -> None:
    world.promote("1")
    page = world.published / "channels/nightly/simple/vllm/index.html"
    old = page.read_bytes()
    world.promote("2")
    new = page.read_bytes()
    page.write_bytes(old)
    with pytest.raises(ReplayedChannelError, match="pages of channel nightly are behind"):
        world.verify()
    world.promote_file(world.dist / "vllm-2-py3-none-any.whl")
    assert page.read_bytes() == new
    world.verify(mirror=FolderMirror(world.published))
