"""Channels as their publisher changes them: promote, roll back, renew."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from channel_kit import POLICY, ChannelWorld, now, small_wheel
from kit import Recorder

from sparkwright.base.errors import (
    LostRaceError,
    PublishError,
    ReplayedChannelError,
    TamperedError,
    UnknownNameError,
    UntrustedKeyError,
)
from sparkwright.publish import target as targets
from sparkwright.publish.evidence import Candidate
from sparkwright.publish.index import describe
from sparkwright.publish.target import FolderTarget


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
    assert pointers == {"channels/nightly/timestamp.json"}


def test_other_bytes_under_a_listed_name_are_refused(world: ChannelWorld) -> None:
    world.promote("1")
    small_wheel(world.dist, "1", record={"x.json": 1})
    path = world.dist / "vllm-1-py3-none-any.whl"
    with pytest.raises(PublishError, match="other bytes"):
        world.publisher().promote("nightly", Candidate(path, describe(path)[0]), POLICY, now())
    world.verify()


def test_a_wheel_that_was_changed_since_it_was_looked_at_is_not_published(world: ChannelWorld) -> None:
    path, other = world.wheel("1"), world.wheel("2")
    file, _ = describe(path)
    shutil.copy(other, path)
    with pytest.raises(TamperedError, match="never change"):
        world.publisher().promote("nightly", Candidate(path, file), POLICY, now())
    assert not (world.published / "channels").exists()


@pytest.mark.parametrize("name", ["", "..", "Stable", "a/b", "-x", "a" * 64])
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
    path = world.published / f"channels/nightly/states/{first.digest}.json"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(TamperedError, match="generation 1 of nightly was changed"):
        world.publisher().rollback("nightly", POLICY, now(), to=None, reason="x")


# Renewal -------------------------------------------------------------------------------------------


def test_a_renewal_changes_the_expiry_alone(world: ChannelWorld) -> None:
    state = world.promote("1")
    longer = POLICY.__class__(requires=(), expires_days=60)
    renewed = world.publisher().renew("nightly", longer, now())
    assert renewed.files == state.files
    assert renewed.expires > state.expires


# Two publishers ------------------------------------------------------------------------------------


class LateTarget(FolderTarget):
    """A folder in which something happens just before a publisher takes the lease."""

    def replace(self, path, data, *, expected):
        if path == targets.LEASE:
            self.__dict__.pop("before", lambda: None)()
        return super().replace(path, data, expected=expected)


def test_of_two_publishers_one_wins_and_the_other_is_told(world: ChannelWorld) -> None:
    world.promote("1")
    target = LateTarget(world.published)
    target.__dict__["before"] = lambda: world.promote("2")
    slow = world.publisher(target)
    with pytest.raises(LostRaceError, match="another publisher") as caught:
        world.promote("3", publisher=slow)
    assert caught.value.exit_code == 50
    assert world.listed() == {"1": None, "2": None}
    world.verify()
    assert world.promote("3", publisher=slow).generation == 3
    assert world.listed() == {"1": None, "2": None, "3": None}
    world.verify()


def held(world: ChannelWorld, holder: str = "elsewhere:1:ab") -> None:
    """Let *holder* have the lease."""
    target = FolderTarget(world.published)
    found = target.read(targets.LEASE)
    target.replace(targets.LEASE, holder.encode(), expected=found.tag if found else None)


class Clock:
    """A clock that goes on by itself, and can be put forward."""

    ahead = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = targets.clock
        monkeypatch.setattr(targets, "clock", lambda: real() + self.ahead)


def test_another_writer_is_waited_for_and_then_named(world: ChannelWorld, heard: Recorder) -> None:
    world.promote("1")
    held(world)
    with pytest.raises(LostRaceError, match="because elsewhere:1:ab writes there"):
        world.promote("2", publisher=replace(world.publisher(), patience_s=0.0))
    threading.Timer(0.5, held, (world, "")).start()
    world.promote("2")
    assert world.verify().state.generation == 2
    assert "lock.waiting" in {event.kind for event in heard.events}


@pytest.mark.parametrize("alive", [True, False])
def test_a_lease_that_nobody_writes_again_is_taken_over(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch, *, alive: bool
) -> None:
    """Whatever the clocks of machines say: it was seen unchanged for so long."""
    world.promote("1")
    held(world)
    clock, looks = Clock(monkeypatch), iter(range(1, 4))

    def look(_: float) -> None:
        clock.ahead += targets.LEASE_LASTS_S / 2
        if alive and (number := next(looks, None)):
            held(world, f"elsewhere:1:{number}")

    monkeypatch.setattr(targets.time, "sleep", look)
    patient = replace(world.publisher(), patience_s=targets.LEASE_LASTS_S * 1.4)
    if alive:
        with pytest.raises(LostRaceError, match="because elsewhere:1:"):
            world.promote("2", publisher=patient)
    else:
        world.promote("2", publisher=patient)
    assert set(world.listed()) == ({"1"} if alive else {"1", "2"})


def test_a_writer_that_was_stopped_for_too_long_moves_no_pointer(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.promote("1")
    clock = Clock(monkeypatch)

    class Stopped(FolderTarget):
        def put_file(self, path: str, file: Path, sha256: str) -> None:
            """Be stopped with the lease, until it is another one's."""
            super().put_file(path, file, sha256)
            if path.endswith("snapshot.json"):
                held(world)
                held(world, "")
                clock.ahead += targets.LEASE_LASTS_S

    with pytest.raises(LostRaceError):
        world.promote("2", publisher=world.publisher(Stopped(world.published)))
    assert FolderTarget(world.published).read("channels/nightly/2.targets.json") is not None
    assert world.promote("3").generation == 2
    assert set(world.listed()) == {"1", "3"}
    world.verify()


class OvertakenTarget(FolderTarget):
    """A folder in which something happens just after a file was read for the first time."""

    def read(self, path):
        found = super().read(path)
        if path.endswith("timestamp.json"):
            self.__dict__.pop("after", lambda: None)()
        return found


def test_a_pointer_read_before_another_publisher_wrote_is_late_and_no_replay(world: ChannelWorld) -> None:
    world.promote("1")
    target = OvertakenTarget(world.published)
    target.__dict__["after"] = lambda: world.promote("2")
    assert world.promote("3", publisher=world.publisher(target)).generation == 3
    assert set(world.listed()) == {"1", "2", "3"}


# What a publisher does not build upon --------------------------------------------------------------


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
