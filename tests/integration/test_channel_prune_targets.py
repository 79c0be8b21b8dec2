"""Pruning on real servers: moto's S3, and a stand-in for gh; beside a publisher."""

from __future__ import annotations

from pathlib import Path

import pytest
from channel_kit import ChannelWorld
from prune_kit import HOURS, SPARE, broken_links, interleaved, pruner, world_with_spare
from test_publish_targets import empty

from sparkwright.publish.prune import UNNAMED
from sparkwright.publish.target import Target
from sparkwright.publish.targets import open_target

KINDS = ("folder", "s3", "github")
# Steps of the publisher and of the pruner: before leases and pointers are read, and files written or removed.
ORDERS = ((0, 6), (2, 8), (6, 9), (9, 12), (14, 10), (99, 10), (4, 99))


def wheels(target: Target) -> set[str]:
    """The versions of all wheels at *target*."""
    return {path.split("-")[1] for path in sorted(target.sizes("wheels")) if path.endswith(".whl")}


@pytest.fixture(params=KINDS)
def target(
    request: pytest.FixtureRequest,
    servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Target:
    return open_target(empty(request.param, servers, tmp_path, monkeypatch))


def test_a_condemned_wheel_is_removed_after_its_grace(target: Target, tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path / "world")
    world_with_spare(world, target)
    assert pruner(world, target, hours=1).prune().removed == []
    assert wheels(target) == {"0.24.1", SPARE}
    report = pruner(world, target, hours=HOURS).prune()
    assert {path for unit in report.removed for path in unit.files}.isdisjoint(sorted(target.sizes("")))
    assert wheels(target) == {"0.24.1"}
    assert target.read(UNNAMED).data == b"{}\n"
    assert broken_links(target, "nightly") == []
    assert pruner(world, target, hours=HOURS).prune().removed == []


def often(kind: str, number: int) -> bool:
    """Tell if `make test` runs this order; of ``gh``, which is started for each call, only the first."""
    return number == 0 or (number % 3 == 0 and kind != "github")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "order"),
    [
        pytest.param(
            kind, order, id=f"{kind}-order{number}", marks=() if often(kind, number) else pytest.mark.walk
        )
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
