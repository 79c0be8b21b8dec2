"""Dry runs of a channel: every write of the real run is planned, and nothing is changed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import wheelkit
from channel_kit import POLICY, ChannelWorld, now

from sparkwright.base.errors import LostRaceError, TamperedError
from sparkwright.publish import publish
from sparkwright.publish.channel import ChannelState
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.planned import PlannedTarget

V1, V2 = "0.24.0+spark.1.aaaaaaaa", "0.24.0+spark.2.aaaaaaaa"


def content(folder: Path) -> dict[str, str]:
    return {
        str(at.relative_to(folder)): wheelkit.sha256(at)
        for at in folder.rglob("*")
        if at.is_file() and not at.name.startswith(".")
    }


def shape(path: str) -> str:
    """A path without the digests that change with the time."""
    return re.sub(r"(channels/[^/]+/\d+-|promotions/)[0-9a-f]+", r"\1DIGEST", path)


def planned_promotion(world: ChannelWorld, version: str) -> tuple[PlannedTarget, ChannelState]:
    target = PlannedTarget(FolderTarget(world.published))
    publisher = replace(world.publisher(target), dry_run=True)
    return target, world.promote(version, publisher=publisher)


@pytest.mark.parametrize("earlier", [(), (V1,)], ids=["first", "second"])
def test_a_dry_run_plans_what_a_real_run_writes(tmp_path: Path, earlier: tuple[str, ...]) -> None:
    world = ChannelWorld(tmp_path)
    for version in earlier:
        world.promote(version)
    before = content(world.published) if world.published.exists() else {}
    target, state = planned_promotion(world, V2)
    assert (content(world.published) if world.published.exists() else {}) == before
    (tmp_path / "publisher-seen.json").unlink()  # the command gives a dry run a copy of it
    if earlier:
        world.publisher().memory.remember(world.publisher(signed=True, adopt=True).read("nightly").state)
    real = world.promote(V2)
    assert (real.generation, len(real.files)) == (state.generation, len(state.files))
    after = content(world.published)
    changed = {shape(path) for path in after if before.get(path) != after[path]}
    assert {shape(write.path) for write in target.writes} == changed
    fresh = {write.path for write in target.writes if write.change == "new"}
    assert fresh.isdisjoint(before)
    sizes = {write.path: write.size for write in target.writes if write.path.endswith(".whl")}
    assert all((world.published / path).stat().st_size == size for path, size in sizes.items())


def test_a_rollback_is_planned_too(tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path)
    world.promote(V1)
    world.promote(V2)
    before = content(world.published)
    target = PlannedTarget(FolderTarget(world.published))
    publisher = replace(world.publisher(target), dry_run=True)
    state = publisher.rollback("nightly", POLICY, now(), to=None, reason="crashes")
    assert state.action.kind == "rollback"
    assert content(world.published) == before
    assert "channels/nightly/channel.json" in [write.path for write in target.writes]


def test_what_a_real_run_refuses_a_dry_run_refuses(tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path)
    world.promote(V1)
    wheel = next(world.published.rglob("*.whl"))
    good = wheel.read_bytes()
    wheel.write_bytes(good[:-1] + b"x")
    target = PlannedTarget(FolderTarget(world.published))
    with pytest.raises(TamperedError, match="cannot be published"):
        world.promote_file(world.dist / wheel.name, "stable", publisher=world.publisher(target))
    wheel.write_bytes(good)
    target = PlannedTarget(FolderTarget(world.published))
    world.promote_file(world.dist / wheel.name, "stable", publisher=world.publisher(target))
    with pytest.raises(LostRaceError):
        target.replace("channels/nightly/channel.json", b"", expected=None)


def test_the_index_of_a_folder_is_planned(tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path)
    wheels = [world.wheel(V1), world.wheel(V2)]
    before = content(world.dist)
    planned = publish(wheels, world.dist, dry_run=True)
    assert content(world.dist) == before
    assert planned.written == publish(wheels, world.dist).written
    assert publish(wheels, world.dist, dry_run=True).written == ()
    after = content(world.dist)
    fewer = publish(wheels[1:], world.dist, dry_run=True)
    assert content(world.dist) == after
    real = publish(wheels[1:], world.dist)
    assert fewer.written == real.written
    assert sorted(fewer.removed) == sorted(real.removed)
    assert fewer.removed
