"""Channels on real servers: promoted, rolled back, verified over HTTP, installed by clients, and pruned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import target_kit
from channel_kit import POLICY, ChannelWorld, now
from prune_kit import HOURS, SPARE, broken_links, interleaved, pruner, world_with_spare
from test_publish_targets import credentials, empty

from sparkwright.base.errors import TamperedError
from sparkwright.publish.places import open_mirror, open_target
from sparkwright.publish.reader import requirements
from sparkwright.publish.target import Target
from sparkwright.upstream.network import IndexSettings

OLD, NEW = "0.24.0+spark.9.ffffffff", "0.24.0+spark.10.10000001"


@pytest.fixture
def place(s3: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Target, str]:
    """The target of an S3 server, and the server's address; test_channel_clients.py reads a folder's."""
    credentials(monkeypatch)
    return open_target(f"s3://wheels/p?endpoint={s3}"), s3


def installed(client: str, wanted: bytes, into: Path) -> str:
    """Return the version that *client* installs by these requirements."""
    into.mkdir()
    (into / "wanted.txt").write_bytes(wanted)
    argv = (
        ("pip", "--isolated", "install")
        if client == "pip"
        else ("uv", "pip", "install", "--no-config", "--no-cache")
    )
    alone = ("--no-index", "--require-hashes", "--target", str(into), "-r", str(into / "wanted.txt"))
    subprocess.run([sys.executable, "-m", *argv, *alone], check=True, capture_output=True)
    (info,) = into.glob("vllm-*.dist-info")
    return info.name.removeprefix("vllm-").removesuffix(".dist-info")


def test_a_channel_on_a_server(place: tuple[Target, str], tmp_path: Path) -> None:
    target, server = place
    world = ChannelWorld(tmp_path)
    publisher = world.publisher(target)
    for version in (OLD, NEW):
        world.promote_file(world.wheel(version), "stable", publisher=publisher, requires="")
    settings = IndexSettings(timeout_s=20.0, attempts=2, backoff_s=0.01)

    def offered() -> bytes:
        target_kit.make_public(server)
        mirror, _ = open_mirror(f"{server}/wheels/p/channels/stable", settings)
        return requirements(mirror, world.verify("stable", mirror=mirror).state.offered[0])

    wanted = offered()
    assert [installed(client, wanted, tmp_path / f"new-{client}") for client in ("pip", "uv")] == [NEW, NEW]
    publisher.rollback("stable", POLICY, now(), to=None, reason="crashes")
    wanted = offered()
    assert [installed(client, wanted, tmp_path / f"old-{client}") for client in ("pip", "uv")] == [OLD, OLD]
    for path in target.files("wheels"):
        if path.endswith(".requirements.txt"):
            target.remove(path)
    with pytest.raises(TamperedError, match="the runtime of"):
        offered()


KINDS = ("folder", "s3")


def wheels(target: Target) -> set[str]:
    """The versions of all wheels at *target*."""
    return {path.split("-")[1] for path in sorted(target.files("wheels")) if path.endswith(".whl")}


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    return open_target(empty(request, tmp_path, monkeypatch))


def test_what_nothing_names_is_removed_after_its_grace(target: Target, tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path / "world")
    world_with_spare(world, target)
    assert pruner(world, target, hours=23).prune().removed == {}
    assert wheels(target) == {"0.24.1", SPARE}
    report = pruner(world, target, hours=HOURS).prune()
    assert not any(path.startswith(tuple(report.removed)) for path in target.files(""))
    assert wheels(target) == {"0.24.1"}
    assert broken_links(world, target, "nightly") == []
    assert pruner(world, target, hours=HOURS).prune().removed == {}


def often(number: int) -> bool:
    """Tell if `make test` runs this order."""
    return number % 3 == 0


ORDERS = ((0, 6), (2, 8), (6, 9), (9, 12), (14, 10), (99, 10), (4, 99))


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
