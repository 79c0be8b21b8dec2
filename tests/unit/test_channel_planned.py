"""Dry runs of a channel: every write of the real run is planned, and nothing is changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from channel_kit import POLICY, ChannelWorld, now

from sparkwright.base.errors import LostRaceError, TamperedError
from sparkwright.publish import lease
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.keys import rotate_key
from sparkwright.publish.planned import PlannedTarget

V1, V2 = "0.24.0+spark.1.aaaaaaaa", "0.24.0+spark.2.aaaaaaaa"


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    return ChannelWorld(tmp_path)


def content(world: ChannelWorld) -> dict[str, bytes]:
    found = (at for at in world.published.rglob("*") if at.is_file() and not at.name.startswith("."))
    return {at.relative_to(world.published).as_posix(): at.read_bytes() for at in found}


def planned(world: ChannelWorld) -> PlannedTarget:
    return PlannedTarget(FolderTarget(world.published))


def shape(path: str) -> str:
    """A path without the digests that change with the time."""
    return re.sub(r"(channels/[^/]+/\d+-|promotions/)[0-9a-f]+", r"\1DIGEST", path)


@pytest.mark.parametrize("earlier", [(), (V1,)], ids=["first", "second"])
def test_a_dry_run_plans_what_a_real_run_writes(world: ChannelWorld, earlier: tuple[str, ...]) -> None:
    for version in earlier:
        world.promote(version)
    if earlier:
        rotate_key(world.home, revoke="a root that is not published yet")
    before, memory = content(world), world.folder / "publisher-seen.json"
    remembered = memory.read_bytes() if earlier else None
    state = world.promote(V2, publisher=world.publisher(target := planned(world)))
    assert content(world) == before
    if remembered is None:  # the command plans with a copy
        memory.unlink()
    else:
        memory.write_bytes(remembered)
    real = world.promote(V2)
    assert (real.generation, len(real.files)) == (state.generation, len(state.files))
    after = content(world)
    changed = {shape(path) for path in after if before.get(path) != after[path]} - {lease.PATH}
    assert {shape(write.path) for write in target.writes} == changed
    assert {write.path for write in target.writes if write.change == "new"}.isdisjoint(before)
    sizes = {write.path: write.size for write in target.writes if write.path.endswith(".whl")}
    assert sizes
    assert all((world.published / path).stat().st_size == size for path, size in sizes.items())


def test_a_rollback_is_planned_too_while_another_writer_has_the_lease(world: ChannelWorld) -> None:
    world.promote(V1)
    world.promote(V2)
    (world.published / lease.PATH).write_bytes(b'{"holder": "elsewhere:1:ab", "until": 99999999999}')
    before = content(world)
    publisher = world.publisher(target := planned(world))
    assert publisher.rollback("nightly", POLICY, now(), to=None, reason="crashes").action.kind == "rollback"
    assert content(world) == before
    assert "channels/nightly/timestamp.json" in {write.path for write in target.writes}


def test_what_a_real_run_refuses_a_dry_run_refuses(world: ChannelWorld) -> None:
    world.promote(V1)
    wheel = next(world.published.rglob("*.whl"))
    good = wheel.read_bytes()
    wheel.write_bytes(good[:-1] + b"x")
    with pytest.raises(TamperedError, match="published files never change"):
        world.promote_file(world.dist / wheel.name, "stable", publisher=world.publisher(planned(world)))
    wheel.write_bytes(good)
    world.promote_file(world.dist / wheel.name, "stable", publisher=world.publisher(target := planned(world)))
    with pytest.raises(LostRaceError):
        target.replace("channels/nightly/timestamp.json", b"", expected=None)


def test_what_is_planned_to_be_removed_is_there_no_more(world: ChannelWorld) -> None:
    world.promote(V1)
    target, page = planned(world), "channels/nightly/simple/vllm/index.html"
    size = target.sizes("")[page]
    target.remove(page)
    assert (target.read(page), page in target.sizes("channels")) == (None, False)
    assert [(one.path, one.size, one.change) for one in target.writes] == [(page, size, "removed")]
    assert (world.published / page).exists()
