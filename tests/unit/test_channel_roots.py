"""Pinned roots: whose they are shown to be, what replaces them, and at which address they count."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from channel_kit import POLICY, ChannelWorld, now, pinned
from kit import Recorder
from securesystemslib.signer import Signature
from tuf.api.metadata import Metadata

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import ReplayedChannelError, SignatureError, UntrustedKeyError
from sparkwright.publish.channel import with_pages
from sparkwright.publish.identities import IdentityKey
from sparkwright.publish.keys import (
    allow_identity,
    load_publisher,
    own_root_file,
    pin_root,
    pinned_in,
    rotate_key,
)
from sparkwright.publish.mirror import FolderMirror
from sparkwright.publish.repository import signed_metadata
from sparkwright.publish.roots import OURS, PinnedRoot, first_root, next_root, read_root, root_of_file
from sparkwright.publish.seen import SeenChannels
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


def forged(world: ChannelWorld, thief: ChannelWorld, path: Path, *, version: int = 1) -> Path:
    """Write a root with the publisher's id and key, which the thief signed by a key that it lists too."""
    true, own = load_publisher(world.home).root, load_publisher(thief.home)
    root = copy.deepcopy(true.root)
    root.version = version
    for role in ("root", "timestamp", "snapshot", "targets"):
        root.add_key(own.signer.public_key, role)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = Metadata(root)
    metadata.sign(own.signer)
    path.write_bytes(metadata.to_bytes())
    return path


def verified(
    folder: Path,
    roots: Sequence[PinnedRoot],
    memory: SeenChannels,
    channel: str = "nightly",
    *,
    named: bool = False,
) -> VerifiedChannel:
    """Return the channel as a reader of *roots* verifies it, who remembers in *memory*."""
    options = VerifyChannelOptions(named_root=named)
    return verify_channel(FolderMirror(folder), channel, roots, memory=memory, now=now(), options=options)


# By the publisher's id -----------------------------------------------------------------------------


def test_a_root_is_pinned_by_its_publishers_id(world: ChannelWorld, tmp_path: Path) -> None:
    first, pins = world.home / "1.root.json", tmp_path / "pins"
    root = read_root(first.read_bytes(), "it")
    assert pin_root(first, pins, publisher=root.publisher) == root
    assert pinned_in(pins) == [root]
    with pytest.raises(UntrustedKeyError, match="its publisher is"):
        pin_root(first, pins, publisher="0" * 64)
    (cut := tmp_path / "cut.json").write_bytes(first.read_bytes()[:-9])
    with pytest.raises(SignatureError, match="cut off"):
        pin_root(cut, pins, publisher=root.publisher)


@pytest.mark.parametrize("version", [1, 2, 50])
def test_a_root_with_the_publishers_id_and_a_thiefs_signature_is_refused(
    world: ChannelWorld, thief: ChannelWorld, tmp_path: Path, version: int
) -> None:
    path = forged(world, thief, tmp_path / f"mirror/{version}.root.json", version=version)
    publisher = load_publisher(world.home).root.publisher
    if version > 1:  # a mirror has the true first version beside it, too
        shutil.copy(world.home / "1.root.json", path.parent)
    for read in (root_of_file, lambda path: pin_root(path, tmp_path / "pins", publisher=publisher)):
        with pytest.raises((UntrustedKeyError, SignatureError)):
            read(path)
    assert not (tmp_path / "pins").exists()


def test_the_publishers_own_signature_does_not_cover_a_second_key(
    world: ChannelWorld, thief: ChannelWorld
) -> None:
    own = load_publisher(world.home)
    root = copy.deepcopy(own.root.metadata)
    root.signed.add_key(load_publisher(thief.home).signer.public_key, "timestamp")
    root.sign(own.signer)
    with pytest.raises(UntrustedKeyError, match="was not made by its publisher"):
        first_root(root.to_bytes(), "it")
    first_root(own.root.data, "it")


def test_a_later_version_needs_those_before_it(world: ChannelWorld, tmp_path: Path) -> None:
    rotate_key(world.home)
    rotate_key(world.home)
    publisher = load_publisher(world.home).root.publisher
    chain = world.home / "3.root.json"
    assert pin_root(chain, tmp_path / "pins", publisher=publisher).version == 3
    assert [one.version for one in pinned_in(tmp_path / "pins")] == [3]
    alone = tmp_path / "alone/3.root.json"
    alone.parent.mkdir()
    shutil.copy(chain, alone)
    with pytest.raises(UntrustedKeyError, match="only the versions from 1 on") as caught:
        root_of_file(alone)
    assert "put all versions before it beside it" in str(caught.value.next_step)
    shutil.copy(world.home / "1.root.json", alone.parent)
    with pytest.raises((SignatureError, UntrustedKeyError)):
        root_of_file(alone)


# By the file's digest ------------------------------------------------------------------------------


def test_a_later_version_is_pinned_by_its_digest_alone(world: ChannelWorld, tmp_path: Path) -> None:
    rotate_key(world.home, revoke="stolen")
    newest = tmp_path / "root.json"
    shutil.copy(own_root_file(world.home), newest)
    digest = sha256_bytes(newest.read_bytes())
    assert pin_root(newest, tmp_path / "pins", digest=digest.upper()).version == 2
    with pytest.raises(UntrustedKeyError, match="its SHA-256 is"):
        pin_root(world.home / "1.root.json", tmp_path / "pins", digest=digest)
    with pytest.raises(UntrustedKeyError, match="its publisher is"):
        pin_root(newest, tmp_path / "pins", digest=digest, publisher="0" * 64)


def test_a_digest_alone_replaces_no_publishers_pin(
    world: ChannelWorld, thief: ChannelWorld, tmp_path: Path
) -> None:
    """Who is trusted by a digest of theirs may have written the id of another publisher into their root."""
    publisher, pins = load_publisher(world.home).root.publisher, tmp_path / "pins"
    true, root = world.home / "1.root.json", forged(world, thief, tmp_path / "50.root.json", version=50)
    for _ in range(2):  # the same root may be pinned again
        pin_root(true, pins, digest=sha256_bytes(true.read_bytes()))
    digest = sha256_bytes(root.read_bytes())
    with pytest.raises(UntrustedKeyError, match="a digest alone does not say") as caught:
        pin_root(root, pins, digest=digest)
    assert f"--publisher {publisher}" in str(caught.value.next_step)
    assert [one.version for one in pinned_in(pins)] == [1]
    rotate_key(world.home)
    newest = world.home / "2.root.json"
    pin_root(newest, pins, digest=sha256_bytes(newest.read_bytes()), publisher=publisher)
    assert [one.version for one in pinned_in(pins)] == [2]


# Identities ----------------------------------------------------------------------------------------


def test_an_identity_that_may_sign_channels_signs_no_root(
    world: ChannelWorld, thief: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can run the allowed workflow makes a root with a key of their own; sigstore's check is good."""
    root = allow_identity(world.home, "https://example.org/w@refs/heads/main", "https://issuer").root
    world.publisher().renew("nightly", POLICY, now())
    monkeypatch.setattr(IdentityKey, "verify_signature", lambda *_: None)
    (identity,) = (key for key in root.keys("timestamp") if key not in root.keys("root"))
    evil = copy.deepcopy(root.root)
    evil.version += 1
    own = load_publisher(thief.home).signer
    for role in ("root", "timestamp", "snapshot", "targets"):
        evil.add_key(own.public_key, role)
    metadata = Metadata(evil)
    metadata.sign(own)
    metadata.signatures[identity] = Signature(identity, "ab", {"bundle": {}})
    with pytest.raises(UntrustedKeyError, match="may not sign roots"):
        next_root(root, metadata.to_bytes(), "3.root.json")
    assert world.verify().root.version == 2
    (world.published / "channels/nightly/3.root.json").write_bytes(metadata.to_bytes())
    with pytest.raises(UntrustedKeyError):
        world.verify()


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
    (world.folder / "pinned-nightly.json").write_bytes((world.home / "1.root.json").read_bytes())
    assert world.verify(mirror=FolderMirror(stolen.published)).root.version == 3
    with pytest.raises(UntrustedKeyError):
        world.verify()
    memory = SeenChannels(world.folder / "reader-seen.json")
    memory.begin_again(pinned(world.pin()))
    assert any("version 3 of this publisher's root" in told for told in heard.warnings)
    assert world.verify().root.version == 2
    with pytest.raises(UntrustedKeyError):
        world.verify(mirror=FolderMirror(stolen.published))


def test_a_root_that_is_pinned_again_keeps_what_was_remembered(world: ChannelWorld) -> None:
    memory, root = SeenChannels(world.folder / "reader-seen.json"), pinned(world.home / "1.root.json")
    world.verify()
    before = memory.path.read_bytes()
    memory.begin_again(root)
    assert memory.path.read_bytes() == before


def test_a_named_root_neither_follows_nor_leaves_what_is_remembered(
    world: ChannelWorld, stolen: ChannelWorld
) -> None:
    memory = SeenChannels(world.folder / "seen.json")

    def verify(place: ChannelWorld, root: Path, *, named: bool) -> VerifiedChannel:
        return verified(place.published, [pinned(root)], memory, named=named)

    true, first = world.home / "2.root.json", stolen.home / "1.root.json"
    assert verify(stolen, stolen.home / "3.root.json", named=True).root.version == 3
    assert memory.recall().root(pinned(true).publisher) is None
    assert verify(stolen, first, named=False).root.version == 3
    for place in (world, stolen):
        with pytest.raises((ReplayedChannelError, UntrustedKeyError)):
            verify(place, true, named=True)
    memory.begin_again(pinned(true))
    with pytest.raises(UntrustedKeyError):
        verify(stolen, true, named=True)
    assert verify(world, true, named=True).root.version == 2


def test_the_publisher_at_an_address_stays(world: ChannelWorld, thief: ChannelWorld, tmp_path: Path) -> None:
    memory, place = SeenChannels(tmp_path / "seen.json"), tmp_path / "place"
    mine, other = pinned(own_root_file(world.home)), pinned(own_root_file(thief.home))

    shutil.copytree(world.published, place)
    verified(place, [mine, other], memory)
    verified(thief.published, [mine, other], memory)
    shutil.rmtree(place)
    shutil.copytree(thief.published, place)
    with pytest.raises(UntrustedKeyError, match="has another publisher than before") as caught:
        verified(place, [mine, other], memory)
    assert "--trust FILE" in str(caught.value.next_step)
    verified(place, [other], memory, named=True)
    verified(place, [mine, other], memory)


def test_a_root_whose_key_is_not_of_its_id_is_refused(world: ChannelWorld, thief: ChannelWorld) -> None:
    own, stranger = load_publisher(world.home), load_publisher(thief.home)
    lying = copy.deepcopy(stranger.root.metadata)
    key = lying.signed.keys.pop(stranger.root.publisher)
    key.keyid = own.root.publisher
    lying.signed.keys[key.keyid] = key
    for role in lying.signed.roles.values():
        role.keyids = [key.keyid]
    lying.signed.unrecognized_fields[OURS]["publisher"] = key.keyid
    made = stranger.signer.sign(lying.signed_bytes)
    made.keyid = key.keyid
    lying.signatures = {key.keyid: made}
    with pytest.raises(UntrustedKeyError, match="was not made by its publisher"):
        first_root(lying.to_bytes(), "it")


def test_an_identity_with_the_publishers_public_key_is_not_the_publisher(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of another kind may state that value, too, and is verified by what the thief wrote beside it."""
    monkeypatch.setattr(IdentityKey, "verify_signature", lambda *_: None)
    own = load_publisher(world.home).root
    first_root(own.data, "it")
    lying = copy.deepcopy(own.metadata)
    value = {**lying.signed.keys[own.publisher].keyval, "identity": "thief", "issuer": "https://issuer"}
    lying.signed.keys[own.publisher] = IdentityKey(own.publisher, "sigstore-oidc", "Fulcio", value)
    lying.signatures = {own.publisher: Signature(own.publisher, "ab", {"bundle": {}})}
    with pytest.raises(UntrustedKeyError, match="was not made by its publisher"):
        first_root(lying.to_bytes(), "it")


@pytest.mark.parametrize("field", ["publisher", "channel"])
def test_a_pinned_publisher_does_not_become_another_by_a_later_root(
    world: ChannelWorld, thief: ChannelWorld, field: str
) -> None:
    """The client of TUF follows any root that is signed by the one before, whatever publisher it states."""
    own, victim = load_publisher(thief.home), load_publisher(world.home).root
    memory, roots = SeenChannels(world.folder / "m.json"), [own.root, victim]
    verified(thief.published, roots, memory)
    verified(world.published, roots, memory)
    before = memory.path.read_bytes()
    lying = copy.deepcopy(own.root.root)
    lying.version = 2
    ours = {"publisher": victim.publisher, "channel": "stable"}
    lying.unrecognized_fields[OURS] = {**lying.unrecognized_fields[OURS], field: ours[field]}
    metadata = Metadata(lying)
    metadata.sign(own.signer)
    (thief.published / "channels/nightly/2.root.json").write_bytes(metadata.to_bytes())
    with pytest.raises(SignatureError, match="does not follow the root before it"):
        verified(thief.published, roots, memory)
    with pytest.raises(SignatureError, match="does not follow the root before it"):
        next_root(own.root, metadata.to_bytes(), "2.root.json")
    assert memory.path.read_bytes() == before
    verified(world.published, roots, memory)


def test_a_root_of_another_channel_verifies_nothing(world: ChannelWorld) -> None:
    world.promote("1", "stable")
    roots = [pinned(own_root_file(world.home_of("stable")))]
    memory = SeenChannels(world.folder / "m.json")
    with pytest.raises(UntrustedKeyError, match="no root is pinned here for it"):
        verified(world.published, roots, memory)
    verified(world.published, roots, memory, "stable")


def test_a_stolen_key_of_one_channel_neither_moves_nor_blocks_another(
    world: ChannelWorld, thief: ChannelWorld
) -> None:
    """Whoever has the key of nightly, and can write to the target, has no more of stable than anybody."""
    world.promote("1", "stable")
    roots = [pinned(world.pin("stable")), pinned(world.pin("nightly"))]
    memory = SeenChannels(world.folder / "m.json")

    def verify() -> VerifiedChannel:
        return verified(world.published, roots, memory, "stable")

    verify()
    healthy = {path: path.read_bytes() for path in (world.published / "channels/stable").glob("*.json")}
    shutil.copytree(world.home, stolen := thief.home_of("stable"))
    shutil.rmtree(thief.published)
    for path in stolen.glob("*.root.json"):  # the best that they can do: a root of that name by this key
        root = read_root(path.read_bytes(), "it").metadata
        root.signed.unrecognized_fields[OURS]["channel"] = "stable"
        root.sign(load_publisher(world.home).signer)
        path.write_bytes(root.to_bytes())
    for version in ("6", "7"):
        thief.promote(version, "stable")
    for path in (thief.published / "channels/stable").glob("*.json"):
        (world.published / "channels/stable" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UntrustedKeyError, match="unknown key"):
        verify()
    for path, data in healthy.items():
        path.write_bytes(data)
    assert verify().state.generation == 1
    world.promote("2", "stable", publisher=world.publisher(adopt=True))
    assert verify().state.generation == 2


def test_a_channel_that_names_the_origin_of_another_makes_its_reader_forget_nothing(
    world: ChannelWorld,
) -> None:
    world.promote("1", "stable")
    shutil.copytree(world.published, world.folder / "old")
    origin = world.promote("2", "stable").origin
    roots = [pinned(world.pin("stable")), pinned(world.pin("nightly"))]
    memory = SeenChannels(world.folder / "m.json")

    verified(world.published, roots, memory, "stable")
    state, _ = with_pages(
        msgspec.structs.replace(verified(world.published, roots, memory).state, origin=origin)
    )
    (world.published / state.path).parent.mkdir()
    for name in state.pages:
        page = world.published / state.folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(world.published / "channels/nightly/simple" / name, page)
    (world.published / state.path).write_bytes(state.payload)
    signer, expires = load_publisher(world.home).signer, now().replace(microsecond=0) + timedelta(days=9)
    for role, data in signed_metadata(state, expires, 99, [signer]).items():
        name = "timestamp.json" if role == "timestamp" else f"99.{role}.json"
        (world.published / "channels/nightly" / name).write_bytes(data)
    assert verified(world.published, roots, memory).state.origin == origin
    with pytest.raises(ReplayedChannelError):
        verified(world.folder / "old", roots, memory, "stable")


def test_another_publishers_root_is_no_obstacle(world: ChannelWorld) -> None:
    """A reader pins several publishers; the roots at one target are of one of them."""
    rotate_key(world.home)
    world.promote("2")
    other = ChannelWorld(world.folder / "other")
    load_publisher(other.home)
    files = [own_root_file(other.home), world.folder / "pinned-nightly.json"]
    roots = [pinned(path) for path in files]
    memory = SeenChannels(world.folder / "m.json")
    verified(world.published, roots, memory)
    with pytest.raises(UntrustedKeyError, match="unknown key"):
        verified(world.published, roots[:1], memory)
