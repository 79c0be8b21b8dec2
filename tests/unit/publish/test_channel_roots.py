"""Pinned roots: whose they are shown to be, what replaces them, and at which address they count."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from channel_kit import ChannelWorld
from tuf.api.metadata import Metadata

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import ReplayedChannelError, SignatureError, UntrustedKeyError
from sparkwright.cli.main import main
from sparkwright.publish.keys import OURS, ChannelRoot, load_publisher, read_root, rotate_key
from sparkwright.publish.target import FolderTarget
from sparkwright.publish.trust import place_of

ROLES = ("root", "timestamp", "snapshot", "targets")


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    """Return a channel of one wheel."""
    world = ChannelWorld(tmp_path / "world")
    world.promote("1")
    return world


@pytest.fixture
def thief(tmp_path: Path) -> ChannelWorld:
    """Return another publisher."""
    thief = ChannelWorld(tmp_path / "thief")
    thief.promote("1")
    return thief


def forged(world: ChannelWorld, thief: ChannelWorld, version: int) -> bytes:
    """Return a root with the publisher's key, which the thief signed by a key that it lists too."""
    own = load_publisher(thief.home).signer
    root = copy.deepcopy(load_publisher(world.home).root.root)
    root.version = version
    for role in ROLES:
        root.add_key(own.public_key, role)
    metadata = Metadata(root)
    metadata.sign(own)
    return metadata.to_bytes()


# By its digest -------------------------------------------------------------------------------------


def test_a_root_is_pinned_by_its_digest_whichever_version_it_is(world: ChannelWorld) -> None:
    rotate_key(world.home)
    world.promote("2")
    target = FolderTarget(world.published)
    for version in (1, 2):
        digest = sha256_bytes((world.home / f"{version}.root.json").read_bytes())
        assert world.reader.pin(target, "nightly", digest.upper()).version == version
        assert world.verify().root.version == 2


@pytest.mark.parametrize("version", [1, 2])
def test_a_root_that_lists_the_publishers_key_and_is_a_thiefs_is_not_pinned(
    world: ChannelWorld, thief: ChannelWorld, version: int
) -> None:
    digest = world.digest()
    path = world.published / f"channels/nightly/{version}.root.json"
    path.write_bytes(lying := forged(world, thief, version))
    if version == 1:
        with pytest.raises(UntrustedKeyError, match="no version of the root there has SHA-256") as caught:
            world.pin()
        assert sha256_bytes(lying) in caught.value.because
        assert not world.reader.folder.exists()
        return
    world.reader.pin(FolderTarget(world.published), "nightly", digest)
    with pytest.raises(UntrustedKeyError):
        world.verify()


def test_a_damaged_root_is_not_pinned(world: ChannelWorld) -> None:
    path = world.published / "channels/nightly/1.root.json"
    for data, says in ((path.read_bytes()[:-9], "cut off"), (b"{}", "cut off"), (b"[" * 99_999, "cut off")):
        path.write_bytes(data)
        with pytest.raises(SignatureError, match=says):
            world.reader.pin(FolderTarget(world.published), "nightly", sha256_bytes(data))


# At its address ------------------------------------------------------------------------------------


def test_a_pin_counts_at_its_address_alone(world: ChannelWorld, thief: ChannelWorld, tmp_path: Path) -> None:
    """Both publishers are pinned; the address of one then serves the channel of the other."""
    other = FolderTarget(thief.published)
    world.verify()
    world.reader.pin(other, "nightly", thief.digest())
    world.verify(mirror=other)
    world.serve(thief.published)
    with pytest.raises(UntrustedKeyError, match="unknown key"):
        world.verify()
    shutil.copytree(thief.published, tmp_path / "elsewhere")
    with pytest.raises(UntrustedKeyError, match="no root is pinned here for that address"):
        world.reader.root(place_of(FolderTarget(tmp_path / "elsewhere"), "nightly"), "nightly")


def test_the_own_root_counts_where_none_is_pinned(world: ChannelWorld, thief: ChannelWorld) -> None:
    own = world.publishers
    place = place_of(FolderTarget(thief.published), "nightly")
    assert own.root(place, "nightly").data == load_publisher(world.home).root.data
    own.pin(FolderTarget(thief.published), "nightly", thief.digest())
    assert own.root(place, "nightly").data == load_publisher(thief.home).root.data


def test_a_reader_that_is_late_does_not_bring_an_older_generation_back(world: ChannelWorld) -> None:
    world.verify()
    target = FolderTarget(world.published)
    place, earlier = place_of(target, "nightly"), world.folder / "earlier"
    shutil.copytree(world.published, earlier)
    seen = world.reader.seen(place)
    files = {f"{role}.json": (seen / f"{role}.json").read_bytes() for role in ("timestamp", "snapshot")}
    world.promote("2")
    world.verify()
    newest = (seen / "timestamp.json").read_bytes()
    world.reader.remember(place, files)
    assert (seen / "timestamp.json").read_bytes() == newest
    world.serve(earlier)
    with pytest.raises(ReplayedChannelError):
        world.verify()


def test_a_pinned_channel_does_not_become_another_by_a_later_root(
    world: ChannelWorld, thief: ChannelWorld
) -> None:
    """The client of TUF follows any root that is signed by the one before, whatever channel it states."""
    thief.verify()
    own = load_publisher(thief.home)
    lying = copy.deepcopy(own.root.root)
    lying.version = 2
    lying.unrecognized_fields[OURS] = {**lying.unrecognized_fields[OURS], "channel": "stable"}
    metadata = Metadata(lying)
    metadata.sign(own.signer)
    (thief.published / "channels/nightly/2.root.json").write_bytes(metadata.to_bytes())
    with pytest.raises(SignatureError, match="does not follow the one before it"):
        thief.verify()
    with pytest.raises(SignatureError, match="does not follow the root before it"):
        read_root(metadata.to_bytes(), "2.root.json", own.root)


def test_a_stolen_key_of_one_channel_neither_moves_nor_blocks_another(
    world: ChannelWorld, thief: ChannelWorld
) -> None:
    """Whoever has the key of nightly, and can write to the target, has no more of stable than anybody."""
    world.promote("1", "stable")
    world.verify("stable")
    healthy = {path: path.read_bytes() for path in (world.published / "channels/stable").glob("*.json")}
    shutil.copytree(world.home, stolen := thief.home_of("stable"))
    shutil.rmtree(thief.published)
    for path in stolen.glob("*.root.json"):  # the best that they can do: a root of that name by this key
        root = ChannelRoot(path.read_bytes()).metadata
        root.signed.unrecognized_fields[OURS]["channel"] = "stable"
        root.sign(load_publisher(world.home).signer)
        path.write_bytes(root.to_bytes())
    for version in ("6", "7"):
        thief.promote(version, "stable")
    for path in (thief.published / "channels/stable").glob("*.json"):
        (world.published / "channels/stable" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UntrustedKeyError, match="unknown key"):
        world.verify("stable")
    for path, data in healthy.items():
        path.write_bytes(data)
    assert world.verify("stable").state.generation == 1
    world.promote("2", "stable", publisher=world.publisher(adopt=True))
    assert world.verify("stable").state.generation == 2


def test_what_is_no_digest_is_a_wrong_option(world: ChannelWorld, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["channel", "key", "pin", f"{world.published}/channels/nightly", "--digest"]
    assert main([*words, "sha256:no"]) == 2
    assert "64 hexadecimal digits" in capsys.readouterr().err


def test_verifying_twice_at_once_beside_a_pin_is_one_after_the_other(world: ChannelWorld) -> None:
    world.pin()

    def again(act: Callable[[], object]) -> None:
        for _ in range(40):
            act()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(again, act) for act in (world.verify, world.verify, world.pin)]:
            done.result()
