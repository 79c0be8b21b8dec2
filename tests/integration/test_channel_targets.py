"""Channels on real servers: promoted, rolled back, verified over HTTP, and installed by pip and uv."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import target_kit
from channel_kit import POLICY, ChannelWorld, now
from test_publish_targets import credentials

from sparkwright.base.errors import TamperedError
from sparkwright.publish.offer import requirements
from sparkwright.publish.places import open_mirror, open_target
from sparkwright.publish.target import Target
from sparkwright.upstream.settings import IndexSettings

OLD, NEW = "0.24.0+spark.9.ffffffff", "0.24.0+spark.10.10000001"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Target, str]]:
    """Give the target of an S3 server, and the server's address; test_channel_clients.py reads a folder's."""
    credentials(monkeypatch)
    folder = tmp_path / "server"
    folder.mkdir()
    with target_kit.s3_server(folder) as server:
        yield open_target(f"s3://wheels/p?endpoint={server}"), server


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
