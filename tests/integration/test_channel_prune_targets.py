"""Pruning on real servers: a folder and moto's S3; beside a publisher."""

from __future__ import annotations

from pathlib import Path

import pytest
from channel_kit import ChannelWorld
from prune_kit import HOURS, SPARE, broken_links, interleaved, pruner, world_with_spare
from test_publish_targets import empty

from sparkwright.publish.places import open_target
from sparkwright.publish.target import Target

KINDS = ("folder", "s3")
# Steps of the publisher and of the pruner: before leases and pointers are read, and files written or removed.
ORDERS = ((0, 6), (2, 8), (6, 9), (9, 12), (14, 10), (99, 10), (4, 99))


def wheels(target: Target) -> set[str]:
    """The versions of all wheels at *target*."""
    return {path.split("-")[1] for path in sorted(target.files("wheels")) if path.endswith(".whl")}


@pytest.fixture(params=KINDS)
def target(
    request: pytest.FixtureRequest,
    servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Target:
    return open_target(empty(request.param, servers, tmp_path, monkeypatch))


def test_what_nothing_names_is_removed_after_its_grace(target: Target, tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path / "world")
    world_with_spare(world, target)
    assert pruner(world, target, hours=1).prune().removed == {}
    assert wheels(target) == {"0.24.1", SPARE}
    report = pruner(world, target, hours=HOURS).prune()
    assert not any(path.startswith(tuple(report.removed)) for path in target.files(""))
    assert wheels(target) == {"0.24.1"}
    assert broken_links(world, target, "nightly") == []
    assert pruner(world, target, hours=HOURS).prune().removed == {}


def often(number: int) -> bool:
    """Tell if `make test` runs this order."""
    return number % 3 == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "order"),
    [
        pytest.param(kind, order, id=f"{kind}-order{number}", marks=() if often(number) else pytest.mark.walk)
        for kind in KINDS
        for number, order in enumerate(ORDERS)
    ],
    indirect=["target"],
)
def test_a_publisher_and_a_pruner_at_once_lose_no_file(
    target: Target, tmp_path: Path, order: tuple[int, int]
) -> None:
    world = ChannelWorld(tmp_path / "world")
    world_with_spare(world, target)
    interleaved(world, target, *order)
    assert wheels(target) == {"0.24.1", SPARE}
