"""Pinned roots: whose they are shown to be, what replaces them, and at which address they count."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from channel_kit import POLICY, ChannelWorld, now, pinned
from kit import Recorder
from msgspec import structs

from sparkwright.base.digests import sha256_bytes, to_json
from sparkwright.base.errors import ReplayedChannelError, SignatureError, UntrustedKeyError
from sparkwright.publish import signing
from sparkwright.publish.channel import stamp
from sparkwright.publish.keys import (
    allow_identity,
    load_publisher,
    own_root_file,
    pin_root,
    pinned_in,
    rotate_key,
)
from sparkwright.publish.mirror import FolderMirror
from sparkwright.publish.root import TrustedKey, TrustRoot
from sparkwright.publish.seen import SeenChannels
from sparkwright.publish.signing import TRUST_TYPE, open_envelope, sign_by, verify_envelope
from sparkwright.publish.trust import PinnedRoot, first_root, next_root, read_root, root_of_file
from sparkwright.publish.verification import VerifiedChannel, VerifyChannelOptions, verify_channel


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    """Return a channel of one wheel, whose reader pinned the first root."""
    world = ChannelWorld(tmp_path / "world")
    world.promote("1")
    world.pin()
    return world


@pytest.fixture
def thief(tmp_path: Path) -> ChannelWorld:
    """Return another publisher."""
    thief = ChannelWorld(tmp_path / "thief")
    thief.promote("1")
    return thief


def forged(world: ChannelWorld, thief: ChannelWorld, path: Path, **changes: object) -> Path:
    """Write a root with the publisher's id and key, which the thief signed by a key that it lists too."""
    true, own = load_publisher(world.home).root, load_publisher(thief.home)
    root = structs.replace(true, keys=(*true.keys, *own.root.keys), **changes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sign_by([own.signer.key], root.payload, TRUST_TYPE))
    return path


# By the publisher's id -----------------------------------------------------------------------------


def test_a_root_is_pinned_by_its_publishers_id(world: ChannelWorld, tmp_path: Path) -> None:
    first, pins = world.home / "1.json", tmp_path / "pins"
    root = read_root(first.read_bytes(), "it")
    assert pin_root(first, pins, publisher=root.publisher).root == root
    assert [one.root for one in pinned_in(pins)] == [root]
    with pytest.raises(UntrustedKeyError, match="its publisher is"):
        pin_root(first, pins, publisher="0" * 64)
    (cut := tmp_path / "cut.json").write_bytes(first.read_bytes()[:-9])
    with pytest.raises(SignatureError, match="cut off"):
        pin_root(cut, pins, publisher=root.publisher)


@pytest.mark.parametrize("version", [1, 2, 50])
def test_a_root_with_the_publishers_id_and_a_thiefs_signature_is_refused(
    world: ChannelWorld, thief: ChannelWorld, tmp_path: Path, version: int
) -> None:
    path = forged(world, thief, tmp_path / f"mirror/{version}.json", version=version)
    publisher = load_publisher(world.home).root.publisher
    if version > 1:  # a mirror has the true first version beside it, too
        shutil.copy(world.home / "1.json", path.parent)
    for read in (root_of_file, lambda path: pin_root(path, tmp_path / "pins", publisher=publisher)):
        with pytest.raises((UntrustedKeyError, SignatureError)):
            read(path)
    assert not (tmp_path / "pins").exists()


def test_the_publishers_own_signature_does_not_cover_a_second_key(
    world: ChannelWorld, thief: ChannelWorld
) -> None:
    own = load_publisher(world.home)
    root = structs.replace(own.root, keys=(*own.root.keys, *load_publisher(thief.home).root.keys))
    with pytest.raises(UntrustedKeyError, match="was not made by its publisher"):
        first_root(sign_by([own.signer.key], root.payload, TRUST_TYPE), "it")
    first_root(sign_by([own.signer.key], own.root.payload, TRUST_TYPE), "it")


def test_a_later_version_needs_those_before_it(world: ChannelWorld, tmp_path: Path) -> None:
    rotate_key(world.home)
    rotate_key(world.home)
    publisher = load_publisher(world.home).root.publisher
    chain = world.home / "3.json"
    assert pin_root(chain, tmp_path / "pins", publisher=publisher).root.version == 3
    assert [one.root.version for one in pinned_in(tmp_path / "pins")] == [3]
    alone = tmp_path / "alone/3.json"
    alone.parent.mkdir()
    shutil.copy(chain, alone)
    with pytest.raises(UntrustedKeyError, match="only the versions from 1 on") as caught:
        root_of_file(alone)
    assert "put all versions before it beside it" in str(caught.value.next_step)
    shutil.copy(world.home / "1.json", alone.parent)
    with pytest.raises((SignatureError, UntrustedKeyError)):
        root_of_file(alone)


# By the file's digest ------------------------------------------------------------------------------


def test_a_later_version_is_pinned_by_its_digest_alone(world: ChannelWorld, tmp_path: Path) -> None:
    rotate_key(world.home, revoke="stolen")
    newest = tmp_path / "root.json"
    shutil.copy(own_root_file(world.home), newest)
    digest = sha256_bytes(newest.read_bytes())
    assert pin_root(newest, tmp_path / "pins", digest=digest.upper()).root.version == 2
    with pytest.raises(UntrustedKeyError, match="its SHA-256 is"):
        pin_root(world.home / "1.json", tmp_path / "pins", digest=digest)
    with pytest.raises(UntrustedKeyError, match="its publisher is"):
        pin_root(newest, tmp_path / "pins", digest=digest, publisher="0" * 64)


def test_a_digest_alone_replaces_no_publishers_pin(
    world: ChannelWorld, thief: ChannelWorld, tmp_path: Path
) -> None:
    """Who is trusted by a digest of theirs may have written the id of another publisher into their root."""
    publisher, pins = load_publisher(world.home).root.publisher, tmp_path / "pins"
    true, root = world.home / "1.json", forged(world, thief, tmp_path / "50.json", version=50)
    for _ in range(2):  # the same root may be pinned again
        pin_root(true, pins, digest=sha256_bytes(true.read_bytes()))
    digest = sha256_bytes(root.read_bytes())
    with pytest.raises(UntrustedKeyError, match="a digest alone does not say") as caught:
        pin_root(root, pins, digest=digest)
    assert f"--publisher {publisher}" in str(caught.value.next_step)
    assert [one.root.version for one in pinned_in(pins)] == [1]
    rotate_key(world.home)
    newest = world.home / "2.json"
    pin_root(newest, pins, digest=sha256_bytes(newest.read_bytes()), publisher=publisher)
    assert [one.root.version for one in pinned_in(pins)] == [2]


# Identities ----------------------------------------------------------------------------------------


def test_an_identity_that_may_sign_channels_signs_no_root(
    world: ChannelWorld, thief: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = allow_identity(world.home, "https://example.org/w@refs/heads/main", "https://issuer").root
    monkeypatch.setattr(signing, "_verify_bundle", lambda *_: "sigstore ci")

    def by_sigstore(payload: bytes, kind: str) -> bytes:
        return to_json({**json.loads(sign_by([], payload, kind)), "sigstoreBundle": {"x": 1}})

    own = load_publisher(thief.home).root.keys
    evil = structs.replace(root, version=root.version + 1, keys=(*root.keys, *own))
    with pytest.raises(UntrustedKeyError, match="may sign channels, not roots"):
        next_root(root, by_sigstore(evil.payload, TRUST_TYPE), "trust/3.json")
    channel = by_sigstore(world.verify().state.payload, signing.CHANNEL_TYPE)
    opened = open_envelope(channel, signing.CHANNEL_TYPE, "the channel")
    assert verify_envelope(opened, root, role="channels") == "sigstore ci"


# What is remembered --------------------------------------------------------------------------------


@pytest.fixture
def stolen(world: ChannelWorld, tmp_path: Path) -> ChannelWorld:
    """Return a thief's copy of the publisher, with a root 3; the owner has revoked the key in a root 2."""
    stolen = ChannelWorld(tmp_path / "stolen")
    shutil.copytree(world.folder, stolen.folder, dirs_exist_ok=True)
    rotate_key(stolen.home, revoke="the thief revokes the owner")
    rotate_key(stolen.home)
    stolen.promote("2")
    stolen.publisher().renew("nightly", POLICY, now())
    rotate_key(world.home, revoke="stolen")
    world.publisher().renew("nightly", POLICY, now())
    return stolen


def test_a_pin_replaces_what_was_remembered_of_its_publisher(
    world: ChannelWorld, stolen: ChannelWorld, heard: Recorder
) -> None:
    (world.folder / "pinned.json").write_bytes((world.home / "1.json").read_bytes())
    assert world.verify(mirror=FolderMirror(stolen.published)).state.root == 3
    with pytest.raises(UntrustedKeyError):
        world.verify()
    memory = SeenChannels(world.folder / "reader-seen.json")
    memory.begin_again(pinned(world.pin()))
    assert any("version 3 of this publisher's root" in told for told in heard.warnings)
    assert world.verify().state.root == 2
    with pytest.raises(UntrustedKeyError):
        world.verify(mirror=FolderMirror(stolen.published))


def test_a_root_that_is_pinned_again_keeps_what_was_remembered(world: ChannelWorld) -> None:
    memory, root = SeenChannels(world.folder / "reader-seen.json"), pinned(world.home / "1.json")
    world.verify()
    before = memory.path.read_bytes()
    memory.begin_again(root)
    assert memory.path.read_bytes() == before


def test_a_named_root_neither_follows_nor_leaves_what_is_remembered(
    world: ChannelWorld, stolen: ChannelWorld
) -> None:
    memory = SeenChannels(world.folder / "seen.json")

    def verify(place: ChannelWorld, root: Path, *, named: bool) -> VerifiedChannel:
        options = VerifyChannelOptions(named_root=named)
        return verify_channel(
            FolderMirror(place.published),
            "nightly",
            [pinned(root)],
            memory=memory,
            now=now(),
            options=options,
        )

    true, first = world.home / "2.json", stolen.home / "1.json"
    assert verify(stolen, stolen.home / "3.json", named=True).state.root == 3
    assert memory.root(pinned(true).root.publisher) is None
    assert verify(stolen, first, named=False).state.root == 3
    for place in (world, stolen):
        with pytest.raises((ReplayedChannelError, UntrustedKeyError)):
            verify(place, true, named=True)
    memory.begin_again(pinned(true))
    with pytest.raises(UntrustedKeyError):
        verify(stolen, true, named=True)
    assert verify(world, true, named=True).state.root == 2


def test_the_publisher_at_an_address_stays(world: ChannelWorld, thief: ChannelWorld, tmp_path: Path) -> None:
    memory, place = SeenChannels(tmp_path / "seen.json"), tmp_path / "place"
    mine, other = pinned(own_root_file(world.home)), pinned(own_root_file(thief.home))

    def verify(*roots: PinnedRoot, folder: Path = place, named: bool = False) -> VerifiedChannel:
        options = VerifyChannelOptions(named_root=named)
        return verify_channel(
            FolderMirror(folder), "nightly", roots, memory=memory, now=now(), options=options
        )

    shutil.copytree(world.published, place)
    verify(mine, other)
    verify(mine, other, folder=thief.published)
    shutil.rmtree(place)
    shutil.copytree(thief.published, place)
    with pytest.raises(UntrustedKeyError, match="has another publisher than before") as caught:
        verify(mine, other)
    assert "--trust FILE" in str(caught.value.next_step)
    verify(other, named=True)
    verify(mine, other)


def test_a_root_whose_key_is_not_of_its_id_is_refused(world: ChannelWorld) -> None:
    own = load_publisher(world.home)
    other = ChannelWorld(world.folder / "other")
    stranger = load_publisher(other.home)
    lying = TrustedKey(
        id=own.root.publisher, public=stranger.root.keys[0].public, roles=("roots",), start=stamp(now())
    )
    root = TrustRoot(publisher=lying.id, version=1, written=stamp(now()), keys=(lying,))
    with pytest.raises(SignatureError, match="is not the key of that id"):
        read_root(sign_by([own.signer.key], root.payload, TRUST_TYPE), "it")


def test_another_publishers_root_is_no_obstacle(world: ChannelWorld) -> None:
    """A reader pins several publishers; the roots at one target are of one of them."""
    rotate_key(world.home)
    world.promote("2")
    other = ChannelWorld(world.folder / "other")
    load_publisher(other.home)
    files = [own_root_file(other.home), world.folder / "pinned.json"]
    roots = [pinned(path) for path in files]
    memory = SeenChannels(world.folder / "m.json")
    verify_channel(FolderMirror(world.published), "nightly", roots, memory=memory, now=now())
    with pytest.raises(UntrustedKeyError, match="unknown key"):
        verify_channel(FolderMirror(world.published), "nightly", roots[:1], memory=memory, now=now())
