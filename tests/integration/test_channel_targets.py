"""Channels on real servers: promoted, rolled back, verified over HTTP, and installed from by pip and uv."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import target_kit
from channel_kit import POLICY, ChannelWorld, now
from test_publish_targets import credentials

from sparkwright.base.errors import TamperedError
from sparkwright.publish.mirror import open_mirror
from sparkwright.publish.targets import open_target
from sparkwright.upstream import IndexSettings

OLD, NEW = "0.24.0+spark.9.ffffffff", "0.24.0+spark.10.10000001"


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple]:
    """Give the target of a server, the address under which clients read it, and what lets them."""
    credentials(monkeypatch)
    folder = tmp_path / "server"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        if request.param == "folder":
            yield open_target(str(folder)), stack.enter_context(target_kit.web_server(folder)), lambda: None
            return
        server = stack.enter_context(target_kit.s3_server(folder))
        target = open_target(f"s3://wheels/p?endpoint={server}")
        yield target, f"{server}/wheels/p", lambda: target_kit.make_public(server)


def installed(client: str, index: str, into: Path) -> str:
    """Return the version that *client* installs without a pin."""
    alone = ("--no-deps", "--only-binary", ":all:", "--target", str(into), "--index-url", index)
    argv = (
        ("pip", "--isolated", "install")
        if client == "pip"
        else ("uv", "pip", "install", "--no-cache", "--no-config")
    )
    subprocess.run([sys.executable, "-m", *argv, *alone, "vllm"], check=True, capture_output=True)
    (info,) = into.glob("vllm-*.dist-info")
    return info.name.removeprefix("vllm-").removesuffix(".dist-info")


def test_a_channel_on_a_server(place: tuple, tmp_path: Path) -> None:
    target, address, make_public = place
    world = ChannelWorld(tmp_path)
    publisher = world.publisher(target)
    for version in (OLD, NEW):
        world.promote(version, "stable", publisher=publisher)
    index = f"{address}/channels/stable/simple"
    settings = IndexSettings(timeout_s=20.0, attempts=2, backoff_s=0.01)

    def verify() -> object:
        make_public()
        mirror, _ = open_mirror(f"{address}/channels/stable", settings)
        return world.verify("stable", mirror=mirror)

    verify()
    assert [installed(client, index, tmp_path / f"new-{client}") for client in ("pip", "uv")] == [NEW, NEW]
    publisher.rollback("stable", POLICY, now(), to=None, reason="crashes")
    verify()
    assert [installed(client, index, tmp_path / f"old-{client}") for client in ("pip", "uv")] == [OLD, OLD]
    page = "channels/stable/simple/vllm/index.json"
    found = target.read(page)
    assert b"crashes" in found.data
    target.replace(page, found.data.replace(b"crashes", b"harmless"), expected=found.tag)
    with pytest.raises(TamperedError):
        verify()
