"""Pruning keeps what kept generations name, removes the rest after its grace, and never half of anything."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from channel_kit import POLICY, ChannelWorld, now
from prune_kit import (
    HOURS,
    POLICIES,
    SPARE,
    SteppedTarget,
    broken_links,
    interleaved,
    pruner,
    spare_wheel,
    world_with_spare,
)

from sparkwright.base.errors import (
    LostRaceError,
    PublishError,
    SignatureError,
    TamperedError,
    UnknownNameError,
)
from sparkwright.publish import lease
from sparkwright.publish.channel import metadata_path, unit_of
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.promote import Deposits
from sparkwright.publish.prune import UNNAMED


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    return ChannelWorld(tmp_path / "world")


def versions_at(world: ChannelWorld) -> set[str]:
    """The versions of all wheels at the target."""
    return {path.name.split("-")[1] for path in world.published.rglob("*.whl")}


def verify(world: ChannelWorld, channel: str = "nightly", hours: float = HOURS) -> None:
    """Verify everything of a channel, at a time after the last prune."""
    world.verify(channel, at=now() + timedelta(hours=hours, minutes=1))
    assert broken_links(FolderTarget(world.published), channel) == []


# What is kept ---------------------------------------------------------------------------------------


def test_a_wheel_goes_when_no_kept_generation_lists_it(world: ChannelWorld) -> None:
    """Two generations are kept: listings shrink at once, wheels follow with the last kept listing."""
    for number in range(1, 6):
        world.promote(f"0.24.{number}")
    world.promote_file(world.dist / "vllm-0.24.2-py3-none-any.whl", "stable")
    report = pruner(world).prune()
    assert [name.split("-")[1] for name in report.dropped["nightly"]] == ["0.24.1", "0.24.2", "0.24.3"]
    assert set(world.listed()) == {"0.24.4", "0.24.5"}
    # Generations 4 and 5 are kept, and list all of them: only older generations' pages are condemned.
    assert [unit.path.split("/")[2][0] for unit in report.condemned if "." not in unit.path] == [
        "1",
        "2",
        "3",
    ]
    assert report.removed == []
    for number in (6, 7):
        world.promote(f"0.24.{number}")
    second = pruner(world).prune()
    assert {unit.path for unit in second.condemned if unit.path.startswith("wheels/")}
    third = pruner(world, hours=HOURS).prune()
    assert versions_at(world) == {"0.24.2", "0.24.4", "0.24.5", "0.24.6", "0.24.7"}
    assert {unit.path for unit in third.removed} == {unit.path for unit in second.condemned}
    assert all(unit.size > 0 and unit.why for unit in third.removed)
    assert json.loads((world.published / UNNAMED).read_bytes()) == {}
    verify(world)
    verify(world, "stable")


def test_what_is_kept_can_be_rolled_back_to_and_what_is_dropped_cannot(world: ChannelWorld) -> None:
    for number in range(1, 6):
        world.promote(f"0.24.{number}")
    pruner(world).prune()
    publisher = world.publisher()
    assert [one.generation for one in publisher.history(publisher.require("nightly").state)] == [6, 5, 4]
    with pytest.raises(UnknownNameError, match="cannot go back to generation 3"):
        publisher.rollback("nightly", POLICY, now(), to=3, reason="x")
    # The prune is no content of its own: the last promotion is taken back.
    state = publisher.rollback("nightly", POLICY, now(), to=None, reason="crashes")
    assert {file.version for file in state.files if file.yanked is None} == {f"0.24.{n}" for n in range(1, 5)}
    assert state.oldest == 4
    verify(world)


def test_the_newest_wheel_of_a_series_stays_listed(world: ChannelWorld) -> None:
    for version in ("0.23.1", "0.23.2", *(f"0.24.{number}" for number in range(1, 5))):
        world.promote(version)
    pruner(world).prune()
    assert set(world.listed()) == {"0.23.2", "0.24.3", "0.24.4"}


def test_pages_that_a_channel_has_no_longer_go_from_the_stable_address(world: ChannelWorld) -> None:
    for number in range(1, 4):
        world.promote(f"0.24.{number}")
    former = world.published / "channels/nightly/simple/torch/index.html"
    former.parent.mkdir()
    former.write_bytes(b"of a project that is listed no more")
    pruner(world).prune()
    assert not former.exists()
    verify(world)


def test_a_channel_without_limits_or_without_policy_is_kept_for_ever(world: ChannelWorld) -> None:
    for number in range(1, 5):
        world.promote(f"0.24.{number}", "stable")
        world.promote(f"0.24.{number}", "of-ours")
    before = [
        path
        for path in FolderTarget(world.published).sizes("")
        if not path.endswith((".targets.json", ".snapshot.json"))
    ]
    for hours in (0, HOURS):
        report = pruner(world, hours=hours).prune()
    assert set(before) <= set(FolderTarget(world.published).sizes(""))
    # Of signed metadata only the present version is kept.
    assert {unit.path.split(".", 1)[1] for unit in report.removed} == {"targets.json", "snapshot.json"}
    assert report.generations == {}
    verify(world, "stable")


def test_a_generation_is_kept_by_its_age_as_well(world: ChannelWorld) -> None:
    for number in range(1, 5):
        world.promote(f"0.24.{number}")
    by_days = {"nightly": replace_policy(keep_days=3)}
    young = replace(pruner(world, hours=24), policies=by_days).prune()
    assert young.generations == {}
    old = replace(pruner(world, hours=24 * 4), policies=by_days).prune()
    assert old.generations == {"nightly": 5}
    assert set(world.listed()) == {"0.24.4"}


def replace_policy(**limits: int) -> object:
    import msgspec

    return msgspec.structs.replace(POLICIES["nightly"], keep_generations=None, **limits)


def test_a_prune_with_nothing_to_do_writes_nothing(world: ChannelWorld) -> None:
    world.promote("0.24.1")
    pruner(world).prune()
    files = {path: path.stat().st_mtime_ns for path in world.published.rglob("*") if path.is_file()}
    pruner(world).prune()
    files.pop(world.published / lease.PATH)
    assert files == {path: path.stat().st_mtime_ns for path in files}


# Grace ----------------------------------------------------------------------------------------------


def test_nothing_is_removed_within_the_grace(world: ChannelWorld) -> None:
    target = FolderTarget(world.published)
    world_with_spare(world, target)
    before = set(target.sizes(""))
    report = pruner(world, hours=23).prune()
    assert set(target.sizes("")) == before
    assert {unit.path for unit in report.condemned} == set(
        json.loads((world.published / UNNAMED).read_bytes())
    )
    assert pruner(world, hours=HOURS).prune().removed
    assert versions_at(world) == {"0.24.1"}
    verify(world)


def test_a_grace_of_less_than_an_hour_is_refused(world: ChannelWorld) -> None:
    world.promote("0.24.1")
    with pytest.raises(ValueError, match="less than an hour"):
        replace(pruner(world), grace=timedelta(minutes=59)).prune()


def test_a_dry_run_tells_all_and_changes_nothing(world: ChannelWorld) -> None:
    target = FolderTarget(world.published)
    world_with_spare(world, target)
    for number in (2, 3, 4):
        world.promote(f"0.24.{number}")
    before = {path: path.read_bytes() for path in world.published.rglob("*") if path.is_file()}
    told = replace(pruner(world, hours=HOURS), dry_run=True).prune()
    assert {path: path.read_bytes() for path in world.published.rglob("*") if path.is_file()} == before
    real = pruner(world, hours=HOURS).prune()
    assert {unit.path for unit in told.removed} == {unit.path for unit in real.removed}
    assert told.dropped == real.dropped
    assert any(path.endswith(".whl") for unit in told.removed for path in unit.files)


# What cannot be read --------------------------------------------------------------------------------


@pytest.mark.parametrize("healthy", [True, False])
def test_nothing_is_removed_where_a_channel_cannot_be_read(world: ChannelWorld, *, healthy: bool) -> None:
    target = FolderTarget(world.published)
    world_with_spare(world, target)
    world.promote("0.24.1", "stable")
    before = versions_at(world)
    if healthy:
        pruner(world, hours=HOURS).prune()
        assert versions_at(world) == before - {SPARE}
        return
    (world.published / metadata_path("stable")).write_bytes(b"{}")
    with pytest.raises(SignatureError):
        pruner(world, hours=HOURS).prune()
    assert versions_at(world) == before


def test_nothing_is_removed_where_a_kept_generation_is_missing(world: ChannelWorld) -> None:
    target = FolderTarget(world.published)
    world_with_spare(world, target)
    world.promote("0.24.2")
    shutil.rmtree(next(world.published.glob("channels/nightly/1-*")))
    with pytest.raises(TamperedError, match="generation 1 of nightly"):
        pruner(world, hours=HOURS).prune()
    assert SPARE in versions_at(world)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"a": 1}'])
def test_a_list_that_cannot_be_read_stops_pruners(world: ChannelWorld, data: bytes) -> None:
    world_with_spare(world, FolderTarget(world.published))
    (world.published / UNNAMED).write_bytes(data)
    with pytest.raises(PublishError, match=r"unnamed\.json cannot be read"):
        pruner(world, hours=HOURS).prune()
    assert SPARE in versions_at(world)


# Publishers and pruners at once ---------------------------------------------------------------------


def test_what_is_promoted_again_is_not_removed(world: ChannelWorld) -> None:
    world_with_spare(world, FolderTarget(world.published))
    world.promote_file(spare_wheel(world))
    pruner(world, hours=HOURS).prune()
    assert SPARE in versions_at(world)
    verify(world)


def interleave(world: ChannelWorld, publishing: int, pruning: int) -> tuple[bool, bool]:
    """Stop both after so many steps, let both end, and verify the channel; return if they were stopped."""
    stopped = interleaved(world, FolderTarget(world.published), publishing, pruning)
    assert set(world.listed()) == {SPARE, "0.24.1"}
    verify(world, hours=HOURS + 1)
    return stopped


def every_interleaving(folder: Path, stride: int = 1) -> int:
    """Run a publisher and a pruner in each order of their steps with two changes between them; count them."""
    seed = ChannelWorld(folder / "seed")
    world_with_spare(seed, FolderTarget(seed.published))
    count, publishing, more = 0, 0, True
    while more:
        more, pruning, again = False, 0, True
        while again:
            world = ChannelWorld(folder / "copy")
            shutil.copytree(seed.folder, world.folder)
            more, again = interleave(world, publishing, pruning)
            shutil.rmtree(world.folder)
            pruning += stride
            count += 1
        publishing += stride
    return count


@pytest.mark.walk  # ten minutes
def test_no_order_of_their_steps_loses_a_file(tmp_path: Path) -> None:
    assert every_interleaving(tmp_path) > 200


def test_some_orders_of_their_steps_lose_no_file(tmp_path: Path) -> None:
    assert every_interleaving(tmp_path, stride=6) > 20


@pytest.mark.parametrize("fault", ["no settling", "no lease"])
def test_a_protocol_with_a_part_missing_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The faults that the lease, and the look at all files under it, are there for."""
    if fault == "no settling":
        monkeypatch.setattr(Deposits, "settle", lambda _: None)
    else:
        monkeypatch.setattr(lease, "_is_held", lambda _: False)
        monkeypatch.setattr(lease.Lease, "_write", lambda *_: None)
    seed = ChannelWorld(tmp_path / "seed")
    world_with_spare(seed, FolderTarget(seed.published))

    def prune_wholly_at_each_step() -> None:
        publishing, more = 1, True
        while more:
            world = ChannelWorld(tmp_path / str(publishing))
            shutil.copytree(seed.folder, world.folder)
            more, _ = interleave(world, publishing, 1000)
            publishing += 2

    with pytest.raises((AssertionError, TamperedError)):
        prune_wholly_at_each_step()


def test_a_pruner_that_is_held_up_removes_nothing_more(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FolderTarget(world.published)
    world_with_spare(world, target)
    real, removed = FolderTarget.remove, []

    def slow(self: FolderTarget, path: str) -> None:
        """Be stopped until the lease is another one's."""
        real(self, path)
        if not removed:
            found = target.read(lease.PATH)
            target.replace(lease.PATH, b'{"holder": "elsewhere:1:ab"}', expected=found.tag)
            later = now().timestamp() + lease.LASTS_S
            monkeypatch.setattr(lease.time, "time", lambda: later)
        removed.append(unit_of(path))

    monkeypatch.setattr(FolderTarget, "remove", slow)
    with pytest.raises(LostRaceError):
        pruner(world, hours=HOURS).prune()
    monkeypatch.undo()
    assert len(set(removed)) == 1
    pruner(world, hours=HOURS + 1).prune()
    assert SPARE not in versions_at(world)
    verify(world, hours=HOURS + 1)


def test_a_pruner_that_is_killed_anywhere_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    seed = ChannelWorld(tmp_path / "seed")
    world_with_spare(seed, FolderTarget(seed.published))
    for number in (2, 3, 4):
        seed.promote(f"0.24.{number}")

    class KilledError(Exception):
        pass

    for step in range(0, 300, 3):
        world = ChannelWorld(tmp_path / "copy")
        shutil.copytree(seed.folder, world.folder)
        target, passed = FolderTarget(world.published), iter(range(step))

        def kill(passed: object = passed) -> None:
            if next(passed, None) is None:
                raise KilledError

        killed = True
        try:
            pruner(world, SteppedTarget(target, kill), hours=HOURS).prune()
            killed = False
        except KilledError:
            pass
        assert broken_links(target, "nightly") == []
        (world.published / lease.PATH).unlink(missing_ok=True)  # as if it had ended
        pruner(world, hours=HOURS + 1).prune()
        assert versions_at(world) == {f"0.24.{number}" for number in (1, 2, 3, 4)}
        verify(world, hours=HOURS + 1)
        shutil.rmtree(world.folder)
        if not killed:
            break
    assert not killed
    assert step > 20
