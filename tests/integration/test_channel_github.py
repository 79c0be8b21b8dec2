"""Channels on GitHub, by a stand-in for ``gh``: pages on one host, wheels and their METADATA on another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import target_kit
from channel_kit import POLICY, ChannelWorld, now
from static_server import served
from test_channel_clients import SETTINGS
from test_channel_targets import NEW, OLD, installed

from sparkwright.base.errors import TamperedError
from sparkwright.publish.mirror import HttpMirror
from sparkwright.publish.target import Target
from sparkwright.publish.targets import open_target

Hosts = tuple["Target", str, list[str]]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Give the target, the address of its pages, and the paths that the host of the assets was asked for."""
    monkeypatch.setenv("PATH", f"{target_kit.install_gh(tmp_path / 'bin')}:{os.environ['PATH']}")
    monkeypatch.setenv("GH_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("GH_TOKEN", "token-of-the-test")
    release = tmp_path / "web/owner/wheels-of-ours/releases/download"
    for folder in (release, tmp_path / "state/pages", tmp_path / "state/assets"):
        folder.mkdir(parents=True)
    (release / "wheels").symlink_to(tmp_path / "state/assets")
    with contextlib.ExitStack() as stack:
        pages, _ = stack.enter_context(served(tmp_path / "state/pages"))
        web, asked = stack.enter_context(served(tmp_path / "web"))
        yield open_target(f"github://owner/wheels-of-ours?public={pages}&downloads={web}"), pages, asked


@pytest.mark.slow
def test_pip_uv_and_verify_find_wheels_on_another_host(hosts: Hosts, tmp_path: Path) -> None:
    target, pages, asked = hosts
    world = ChannelWorld(tmp_path)
    publisher = world.publisher(target)
    for version in (OLD, NEW):
        state = world.promote(version, "stable", publisher=publisher)
    assert all(file.url.startswith(target.downloads) for file in state.files)
    assert world.verify("stable", mirror=HttpMirror(pages, SETTINGS)).wheels
    asked.clear()
    # The index of the series is two folders deeper.
    for index in (f"{pages}/channels/stable/simple", f"{pages}/channels/stable/simple/series/0.24"):
        into = tmp_path / f"new{len(index)}"
        assert [installed(client, index, into / client) for client in ("pip", "uv")] == [NEW, NEW]
    assert any(path.endswith(".whl.metadata") for path in asked), "clients read METADATA beside the wheel"
    publisher.rollback("stable", POLICY, now(), to=None, reason="crashes")
    world.verify("stable", mirror=HttpMirror(pages, SETTINGS))
    index = f"{pages}/channels/stable/simple"
    assert [installed(client, index, tmp_path / f"old-{client}") for client in ("pip", "uv")] == [OLD, OLD]


@pytest.mark.parametrize(("tail", "says"), [(".whl", "wheel|was changed"), (".whl.metadata", "the metadata")])
def test_a_changed_asset_is_found(hosts: Hosts, tmp_path: Path, tail: str, says: str) -> None:
    target, pages, _ = hosts
    world = ChannelWorld(tmp_path)
    world.promote(NEW, "stable", publisher=world.publisher(target))
    (asset,) = (at for at in (tmp_path / "state/assets").iterdir() if at.name.endswith(tail))
    whole = asset.read_bytes()
    asset.write_bytes(whole[:-1] + b"x")
    with pytest.raises(TamperedError, match=says):
        world.verify("stable", mirror=HttpMirror(pages, SETTINGS))
    asset.unlink()
    with pytest.raises(TamperedError, match="is missing"):
        world.verify("stable", mirror=HttpMirror(pages, SETTINGS))
    asset.write_bytes(whole)
    world.verify("stable", mirror=HttpMirror(pages, SETTINGS))


def test_where_wheels_and_pages_share_a_host_links_stay_relative(tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path)
    state = world.promote(NEW)
    assert state.files[0].url == ""
    assert "../../../../wheels/" in state.files[0].on_page().url
