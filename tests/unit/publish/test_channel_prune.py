"""Pruning keeps what kept generations name, removes the rest after its grace, and never half of anything."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from channel_kit import POLICY, ChannelWorld, now
from prune_kit import (
    FOREVER,
    HOURS,
    LIMITED,
    SPARE,
    SteppedTarget,
    broken_links,
    interleaved,
    pruner,
    spare_wheel,
    world_with_spare,
)

from sparkwright.base.errors import SignatureError, TamperedError
from sparkwright.publish import target as targets
from sparkwright.publish.channel import ChannelAction, ChannelState, ListedWheel, metadata_path
from sparkwright.publish.target import FolderTarget

DAYS = 24
AARCH64, X86_64 = "py3-none-manylinux_2_28_aarch64", "py3-none-manylinux_2_28_x86_64"


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    return ChannelWorld(tmp_path / "world")


def versions_at(world: ChannelWorld) -> set[str]:
    """The versions of all wheels at the target."""
    return {path.name.split("-")[1] for path in world.published.rglob("*.whl")}


def verify(world: ChannelWorld, channel: str = "nightly") -> None:
    """Verify everything of a channel."""
    world.verify(channel)
    assert broken_links(world, FolderTarget(world.published), channel) == []


# What is kept ---------------------------------------------------------------------------------------


def test_a_wheel_goes_when_no_kept_generation_lists_it(world: ChannelWorld) -> None:
    """Lists shrink after thirty days, wheels follow with the last kept generation that has them."""
    for number in range(1, 4):
        world.promote(f"0.24.{number}")
    world.promote_file(world.dist / "vllm-0.24.2-py3-none-any.whl", "stable")
    assert pruner(world, hours=29 * DAYS).prune().dropped == {}
    later = pruner(world, hours=31 * DAYS).prune()
    assert [name.split("-")[1] for name in later.dropped["nightly"]] == ["0.24.1", "0.24.2"]
    assert set(world.listed()) == {"0.24.3"}
    # The generation before was present until then, and lists all of them.
    assert versions_at(world) == {"0.24.1", "0.24.2", "0.24.3"}
    last = pruner(world, hours=62 * DAYS).prune()
    assert versions_at(world) == {"0.24.2", "0.24.3"}
    assert {path.split("/")[0] for path in last.removed} == {"wheels", "channels"}
    assert all(size > 0 for size in last.removed.values())
    assert not any("/wheels/" in path for path in later.removed)


def test_what_is_kept_can_be_rolled_back_to_and_what_is_removed_cannot(world: ChannelWorld) -> None:
    for number in range(1, 4):
        world.promote(f"0.24.{number}")
    publisher = world.publisher()
    pruner(world, hours=31 * DAYS).prune()
    present = publisher.require("nightly").state
    # Each generation but the last ended a month ago; the last, with all three, was present until the prune.
    assert [one.generation for one in publisher.history(present)] == [4, 3]
    at = now() + timedelta(hours=31 * DAYS)
    state = publisher.rollback("nightly", POLICY, at, to=3, reason="x")
    assert {file.version for file in state.files} == {"0.24.1", "0.24.2", "0.24.3"}
    assert broken_links(world, FolderTarget(world.published), "nightly") == []


def test_the_newest_wheel_of_a_series_stays_listed(world: ChannelWorld) -> None:
    for version in ("0.23.1", "0.23.2", "0.24.1", "0.24.2"):
        world.promote(version)
    pruner(world, hours=31 * DAYS).prune()
    assert set(world.listed()) == {"0.23.2", "0.24.2"}


def test_a_channel_without_limit_or_without_policy_is_kept_for_ever(world: ChannelWorld) -> None:
    for number in range(1, 4):
        world.promote(f"0.24.{number}", "stable")
        world.promote(f"0.24.{number}", "of-ours")
    report = pruner(world, hours=4000 * DAYS).prune()
    # Of signed metadata only the present version is kept.
    assert {path.split(".", 1)[1] for path in report.removed} == {"targets.json", "snapshot.json"}
    assert report.dropped == {}
    for channel in ("stable", "of-ours"):
        verify(world, channel)
        assert len(world.publisher().history(world.publisher().require(channel).state)) == 3


def kept(world: ChannelWorld, *files: tuple[str, str, int, str, str | None]) -> set[str]:
    """Versions that stay in a channel of these wheels, of which all came a month ago and more."""
    listed = tuple(
        ListedWheel(
            filename=f"{project.replace('-', '_')}-{version}-{tags}.whl", project=project, version=version,
            sha256=f"{version}-{tags}-{day}", size=1, uploaded=f"2026-11-{day:02}T00:00:00Z", yanked=yanked,
        )
        for project, version, day, tags, yanked in files
    )  # fmt: skip
    state = ChannelState(
        channel="nightly", generation=9, previous="", written="2026-11-23T00:00:00Z",
        expires="2026-12-23T00:00:00Z", action=ChannelAction(kind="promote"), files=listed,
    )  # fmt: skip
    late = replace(pruner(world), now=datetime(2027, 1, 24, tzinfo=UTC))
    dropped = {file.sha256 for file in late._dropped(state, LIMITED)}
    assert late._dropped(state, FOREVER) == []
    return {file.version.rpartition("+")[2] for file in listed if file.sha256 not in dropped}


def companion(
    arch: str, content: str, day: int, *, tags: str = AARCH64, yanked: str | None = None
) -> tuple[str, str, int, str, str | None]:
    return f"flashinfer-jit-cache-{arch}", f"0.7.2.post1+cu130.k{content}", day, tags, yanked


@pytest.mark.parametrize(("first", "last"), [("ffffffff", "00000000"), ("00000000", "ffffffff")])
def test_the_last_companion_of_a_card_stays_whatever_its_digest_is(
    world: ChannelWorld, first: str, last: str
) -> None:
    assert kept(world, companion("sm121a", first, 1), companion("sm121a", last, 2)) == {f"cu130.k{last}"}


def test_each_card_and_machine_keeps_its_own_and_one_taken_back_pushes_out_no_other(
    world: ChannelWorld,
) -> None:
    files = (
        companion("sm121a", "1", 1),
        companion("sm90a", "2", 2),
        companion("sm90a", "3", 3, tags=X86_64),
        companion("sm121a", "4", 4, yanked="it crashes"),
    )
    assert {version[-1] for version in kept(world, *files)} == {"1", "2", "3"}


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


def test_nothing_is_removed_where_a_kept_generation_was_changed(world: ChannelWorld) -> None:
    world_with_spare(world, FolderTarget(world.published))
    state = world.publisher().require("nightly").state
    world.promote("0.24.2")
    (world.published / f"channels/nightly/states/{state.digest}.json").write_bytes(b"{}")
    with pytest.raises(TamperedError, match="generation 1 of nightly"):
        pruner(world, hours=HOURS).prune()
    assert SPARE in versions_at(world)


# Publishers and pruners at once ---------------------------------------------------------------------


def test_what_is_promoted_again_is_not_removed(world: ChannelWorld) -> None:
    world_with_spare(world, FolderTarget(world.published))
    world.promote_file(spare_wheel(world))
    pruner(world, hours=HOURS).prune()
    assert SPARE in versions_at(world)
    verify(world)


class Everything(dict[str, object]):
    """A listing that has every path."""

    def __contains__(self, _: object) -> bool:
        return True


def interleave(world: ChannelWorld, publishing: int, pruning: int) -> tuple[bool, bool]:
    """Stop both after so many steps, let both end, and verify the channel; return if they were stopped."""
    stopped = interleaved(world, FolderTarget(world.published), publishing, pruning)
    assert set(world.listed()) == {SPARE, "0.24.1"}
    verify(world)
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


@pytest.mark.walk  # a minute
def test_no_order_of_their_steps_loses_a_file(tmp_path: Path) -> None:
    assert every_interleaving(tmp_path) > 100


def test_some_orders_of_their_steps_lose_no_file(tmp_path: Path) -> None:
    assert every_interleaving(tmp_path, stride=4) > 15


@pytest.mark.parametrize("fault", ["no settling", "no lease"])
def test_a_protocol_with_a_part_missing_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The faults that the lease, and the look at all files under it, are there for."""
    if fault == "no settling":
        real = FolderTarget.files

        def files(self: FolderTarget, prefix: str) -> dict[str, object]:
            """Say that every file of a wheel's folder is there, as a publisher that does not look would."""
            found = real(self, prefix)
            return Everything(found) if prefix.startswith("wheels/") else found

        monkeypatch.setattr(FolderTarget, "files", files)
    else:
        monkeypatch.setattr(targets.Lease, "__enter__", lambda self: self)
        monkeypatch.setattr(targets.Lease, "_write", lambda *_: None)
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
        assert broken_links(world, target, "nightly") == []
        (world.published / targets.LEASE).unlink(missing_ok=True)  # as if it had ended
        pruner(world, hours=HOURS + 1).prune()
        assert versions_at(world) == {f"0.24.{number}" for number in (1, 2, 3, 4)}
        verify(world)
        shutil.rmtree(world.folder)
        if not killed:
            break
    assert not killed
    assert step > 20


def test_a_prune_with_nothing_to_do_writes_nothing(world: ChannelWorld) -> None:
    world.promote("0.24.1")
    files = {path: path.stat().st_mtime_ns for path in world.published.rglob("*") if path.is_file()}
    pruner(world, hours=HOURS).prune()
    files.pop(world.published / targets.LEASE)
    assert files == {path: path.stat().st_mtime_ns for path in files}
    empty = world.folder / "empty"
    empty.mkdir()
    assert pruner(world, FolderTarget(empty), hours=HOURS).prune().kept == 0
    assert list(empty.iterdir()) == []
