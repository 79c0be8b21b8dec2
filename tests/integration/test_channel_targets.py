"""Channels on real servers: promoted, rolled back, verified over HTTP, and installed from by pip and uv."""

from __future__ import annotations

import contextlib
import dataclasses
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
from sparkwright.publish.planned import PlannedTarget
from sparkwright.publish.seen import SeenChannels
from sparkwright.publish.targets import open_target
from sparkwright.upstream import IndexSettings

OLD, NEW = "0.24.0+spark.9.ffffffff", "0.24.0+spark.10.10000001"


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple]:
    """Give the target of a server, and the address under which clients read it."""
    credentials(monkeypatch)
    folder = tmp_path / "server"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        if request.param == "folder":
            yield open_target(str(folder)), stack.enter_context(target_kit.web_server(folder))
            return
        server = stack.enter_context(target_kit.s3_server(folder))
        target = open_target(f"s3://wheels/p?endpoint={server}")
        target._client.put_bucket_acl(Bucket="wheels", ACL="public-read")
        # moto knows no policy for reading: each object is written as a public one.
        original = target._client.meta.events
        original.register("provide-client-params.s3.PutObject", _public)
        original.register("provide-client-params.s3.CreateMultipartUpload", _public)
        yield target, f"{server}/wheels/p"


def _public(params: dict, **_: object) -> dict:
    return {**params, "ACL": "public-read"}


def installed(client: str, index: str, into: Path) -> str:
    """Return the version that *client* installs without a pin."""
    alone = ("--no-deps", "--only-binary", ":all:", "--target", str(into), "--index-url", index, "vllm")
    argv = (
        ("pip", "--isolated", "install")
        if client == "pip"
        else ("uv", "pip", "install", "--no-cache", "--no-config")
    )
    subprocess.run([sys.executable, "-m", *argv, *alone], check=True, capture_output=True)
    (info,) = into.glob("vllm-*.dist-info")
    return info.name.removeprefix("vllm-").removesuffix(".dist-info")


def test_a_channel_on_a_server(place: tuple, tmp_path: Path) -> None:
    target, address = place
    world = ChannelWorld(tmp_path)
    publisher = world.publisher(target)
    for version in (OLD, NEW):
        world.promote(version, "stable", publisher=publisher)
    index = f"{address}/channels/stable/simple"
    settings = IndexSettings(timeout_s=20.0, attempts=2, backoff_s=0.01)

    def verify() -> object:
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


def test_a_dry_run_leaves_a_server_as_it_is(place: tuple, tmp_path: Path) -> None:
    target, _ = place
    world = ChannelWorld(tmp_path)
    state = world.promote(OLD, "stable", publisher=world.publisher(target))
    before = {path: target.stat(path) for path in target.list("")}
    planned = PlannedTarget(target)
    publisher = dataclasses.replace(
        world.publisher(planned), dry_run=True, memory=SeenChannels(tmp_path / "copy.json")
    )
    world.promote(NEW, "stable", publisher=publisher)
    assert {path: target.stat(path) for path in target.list("")} == before
    changes = {write.path: write.change for write in planned.writes}
    assert changes["channels/stable/channel.json"] == "replaced"
    assert changes["channels/stable/simple/vllm/index.html"] == "replaced"
    assert changes[next(path for path in changes if path.endswith(".whl"))] == "new"
    assert world.publisher(target).require("stable").state == state
