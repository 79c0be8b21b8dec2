"""The publisher's key: how it is kept, replaced, split and revoked, and what its readers trust."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from channel_kit import POLICY, ChannelWorld, now

from sparkwright.base.errors import (
    ExpiredChannelError,
    PublishError,
    ReplayedChannelError,
    SignatureError,
    UntrustedKeyError,
)
from sparkwright.publish import keys
from sparkwright.publish.keys import ChannelKeys, ChannelRoot, load_publisher, rotate_key
from sparkwright.publish.reader import verify_channel
from sparkwright.publish.repository import signed_metadata
from sparkwright.publish.target import FolderTarget


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    """Return a channel of one wheel, whose reader pinned the first root."""
    world = ChannelWorld(tmp_path)
    world.promote("1")
    world.pin()
    return world


def key_of(world: ChannelWorld) -> str:
    return load_publisher(world.home).id


def key_file(world: ChannelWorld) -> Path:
    return world.home / f"{key_of(world)}.pem"


def forge(world: ChannelWorld, stolen: ChannelKeys, version: int = 9) -> None:
    """Let who has *stolen* keys publish the present state again."""
    state = world.verify().state
    expires = now().replace(microsecond=0) + timedelta(days=9)
    metadata = signed_metadata(state, expires, version, stolen.signer)
    for role, data in metadata.items():
        name = "timestamp.json" if role == "timestamp" else f"{version}.{role}.json"
        (world.published / "channels/nightly" / name).write_bytes(data)


# The file ------------------------------------------------------------------------------------------


def test_a_key_is_made_once_and_only_its_owner_can_read_it(world: ChannelWorld) -> None:
    assert key_file(world).stat().st_mode & 0o777 == 0o600
    assert world.home.stat().st_mode & 0o777 == 0o700
    assert load_publisher(world.home).id == key_of(world)
    assert sorted(path.name for path in world.home.iterdir()) == sorted(
        [".lock", "1.root.json", key_file(world).name]
    )


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(world: ChannelWorld, mode: int) -> None:
    (key := key_file(world)).chmod(mode)
    with pytest.raises(SignatureError, match=f"mode {mode:o}") as caught:
        world.promote("2")
    assert "PRIVATE" not in str(caught.value)
    key.chmod(0o600)
    world.promote("2")


@pytest.mark.parametrize("damage", ["empty", "garbage", "rsa", "folder"])
def test_what_is_no_key_is_refused_and_never_replaced(world: ChannelWorld, damage: str) -> None:
    path = key_file(world)
    content = b""
    if damage == "garbage":
        content = b"-----BEGIN PRIVATE KEY-----\nxx\n-----END PRIVATE KEY-----\n"
    elif damage == "rsa":
        from securesystemslib.signer import CryptoSigner

        content = CryptoSigner.generate_ecdsa().private_bytes
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(SignatureError, match="this machine's key cannot be used"):
        world.promote("2")
    assert path.is_dir() or path.read_bytes() == content


def test_a_root_without_its_key_is_not_replaced(world: ChannelWorld) -> None:
    key_file(world).unlink()
    with pytest.raises(UntrustedKeyError, match="has no key that the root there lists"):
        world.promote("2")
    assert sorted(path.name for path in world.home.iterdir()) == [".lock", "1.root.json"]


def test_a_later_root_without_those_before_it_is_not_replaced(world: ChannelWorld) -> None:
    rotate_key(world.home)
    (world.home / "1.root.json").unlink()
    with pytest.raises(SignatureError, match=r"1\.root\.json is missing"):
        world.promote("2")


# Rotation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["before the root", "after the root"])
def test_an_interrupted_rotation_has_happened_or_not(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    first, real = key_of(world), keys.write_atomically

    def stopped(path: Path, data: bytes) -> None:
        if stop == "after the root":
            real(path, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keys, "write_atomically", stopped)
        with pytest.raises(KeyboardInterrupt):
            rotate_key(world.home)
    assert (key_of(world) == first) is (stop == "before the root")
    world.promote("2")
    assert world.verify().signer == key_of(world)
    rotate_key(world.home)
    world.promote("3")
    assert world.verify().signer == key_of(world)


# Revocation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("revoke", "told"),
    [("", "was replaced on"), ("the machine was broken into", r"was revoked on .*: the mac")],
)
def test_nothing_of_a_former_key_is_trusted(world: ChannelWorld, revoke: str, told: str) -> None:
    former = load_publisher(world.home)
    rotate_key(world.home, revoke=revoke)
    world.publisher().renew("nightly", POLICY, now())
    world.verify()
    forge(world, former)
    with pytest.raises(UntrustedKeyError, match=told):
        world.verify()
    with pytest.raises(UntrustedKeyError):
        world.promote("2")


def test_a_thief_who_counts_ahead_locks_nobody_out(world: ChannelWorld) -> None:
    healthy, frozen = world.folder / "healthy", world.folder / "frozen"
    shutil.copytree(world.published, healthy)
    forge(world, load_publisher(world.home), version=999_999)
    world.verify()
    world.serve(healthy)
    with pytest.raises(ReplayedChannelError):
        world.verify()
    rotate_key(world.home, revoke="stolen")
    world.publisher().renew("nightly", POLICY, now())
    world.verify()
    shutil.copytree(world.published, frozen)
    world.publisher().renew("nightly", POLICY, now())
    world.verify()
    world.serve(frozen)
    with pytest.raises(ReplayedChannelError):
        world.verify()


def test_a_mirror_that_hides_a_root_is_noticed(world: ChannelWorld) -> None:
    rotate_key(world.home, revoke="stolen")
    world.promote("2")
    (world.published / "channels/nightly/2.root.json").unlink()
    with pytest.raises(UntrustedKeyError, match="unknown key"):
        world.verify()


# Split keys ----------------------------------------------------------------------------------------


def test_a_thief_of_the_channels_key_cannot_change_roots(world: ChannelWorld) -> None:
    offline = world.folder / "roots.pem"
    rotate_key(world.home, split=offline)
    assert offline.stat().st_mode & 0o777 == 0o600
    assert len(list(world.home.glob("*.pem"))) == 1
    world.promote("2")
    world.verify()
    for split in (None, world.folder / "more.pem"):
        with pytest.raises(UntrustedKeyError, match="may not sign roots"):
            rotate_key(world.home, split=split)
    assert len(list(world.home.glob("*.pem"))) == 1
    assert not (world.folder / "more.pem").exists()
    stolen = load_publisher(world.home)
    root = ChannelRoot((world.home / "2.root.json").read_bytes()).metadata
    root.signed.version = 3
    root.sign(stolen.signer)
    (world.published / "channels/nightly/3.root.json").write_bytes(root.to_bytes())
    with pytest.raises((UntrustedKeyError, SignatureError)):
        world.verify()
    (world.published / "channels/nightly/3.root.json").unlink()
    rotate_key(world.home, revoke="stolen", roots_key=offline)
    world.publisher().renew("nightly", POLICY, now())
    world.verify()
    assert load_publisher(world.home).root.version == 3
    forge(world, stolen)
    with pytest.raises(UntrustedKeyError, match="was revoked"):
        world.verify()


def test_a_lost_key_is_replaced_by_the_key_of_roots(world: ChannelWorld) -> None:
    offline = world.folder / "roots.pem"
    rotate_key(world.home, split=offline)
    key_file(world).unlink()
    with pytest.raises(UntrustedKeyError) as caught:
        world.promote("2")
    assert "rotate nightly --roots-key FILE" in str(caught.value.next_step)
    rotate_key(world.home, roots_key=offline)
    world.promote("2")
    assert world.verify().signer == key_of(world)


def test_the_key_of_roots_signs_no_generation(world: ChannelWorld) -> None:
    roots = load_publisher(world.home)
    rotate_key(world.home, split=world.folder / "roots.pem")
    world.promote("2")
    forge(world, roots)
    with pytest.raises(UntrustedKeyError, match="may not sign the timestamp"):
        world.verify()


def test_a_second_split_leaves_the_key_of_the_first_alone(world: ChannelWorld) -> None:
    offline = world.folder / "roots.pem"
    with pytest.raises(PublishError, match="to be apart from"):
        rotate_key(world.home, split=world.home / "roots.pem")
    rotate_key(world.home, split=offline)
    kept = offline.read_bytes()
    with pytest.raises(PublishError, match="may be the only copy of another key"):
        rotate_key(world.home, split=offline)
    assert offline.read_bytes() == kept


def test_a_copy_of_the_key_of_another_channel_signs_nothing(world: ChannelWorld) -> None:
    shutil.copytree(world.home, world.home_of("stable"))
    with pytest.raises(SignatureError, match="has the root of channel nightly"):
        world.promote("1", "stable")
    assert not (world.published / "channels/stable/timestamp.json").exists()


def test_what_this_machine_only_read_is_not_its_own(world: ChannelWorld) -> None:
    """A thief's generation is looked at with the memory of the publisher, before the key is revoked."""
    forge(world, load_publisher(world.home), version=7)
    verify_channel(FolderTarget(world.published), "nightly", world.publishers)
    rotate_key(world.home, revoke="stolen")
    with pytest.raises(UntrustedKeyError, match="was revoked"):
        world.publisher().renew("nightly", POLICY, now())


# Clocks ---------------------------------------------------------------------------------------------


def test_a_channel_of_the_future_is_changed_by_an_explicit_word_alone(world: ChannelWorld) -> None:
    """A publisher's clock was a year ahead; readers refuse what it dated."""
    world.publisher().renew("nightly", POLICY, now() + timedelta(days=365))
    with pytest.raises(SignatureError, match="from the future"):
        world.verify()
    with pytest.raises(PublishError, match="cannot be changed by this clock") as caught:
        world.publisher().renew("nightly", POLICY, now())
    assert "--adopt" in str(caught.value.next_step)
    again = world.publisher(adopt=True).renew("nightly", POLICY, now())
    assert world.verify().state == again
    assert world.publisher().renew("nightly", POLICY, now()).generation == again.generation + 1


@pytest.mark.parametrize(
    ("fault", "kind"), [("expired", ExpiredChannelError), ("revoked", UntrustedKeyError)]
)
def test_a_publisher_on_a_new_machine_is_shown_the_way_on(
    world: ChannelWorld, fault: str, kind: type[Exception]
) -> None:
    """It has the keys, and no memory of what it published by a key that is revoked, or long ago."""
    if fault == "expired":
        world.publisher(adopt=True).renew("nightly", POLICY, now() - timedelta(days=40))
    else:
        rotate_key(world.home, revoke="stolen")
    shutil.rmtree(world.publishers.folder)
    with pytest.raises(kind) as caught:
        world.publisher().renew("nightly", POLICY, now())
    assert "run the same command with --adopt" in str(caught.value.next_step)
    renewed = world.publisher(adopt=True).renew("nightly", POLICY, now())
    assert world.verify().state == renewed


# Secrets ------------------------------------------------------------------------------------------


def test_private_keys_are_in_nothing_that_is_published(world: ChannelWorld) -> None:
    rotate_key(world.home)
    world.promote("2")
    secrets = [line for path in world.home.glob("*.pem") for line in path.read_bytes().splitlines()[1:-1]]
    assert secrets
    published = b"".join(path.read_bytes() for path in world.published.rglob("*") if path.is_file())
    assert not any(secret in published for secret in secrets)
