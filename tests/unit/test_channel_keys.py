"""The publisher's key: how it is kept, replaced, split and revoked, and what its readers trust."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from channel_kit import POLICY, ChannelWorld, now
from msgspec import structs

from sparkwright.base.errors import (
    PublishError,
    ReplayedChannelError,
    SignatureError,
    TamperedError,
    UnknownNameError,
    UntrustedKeyError,
)
from sparkwright.publish import keys
from sparkwright.publish.channel import stamp
from sparkwright.publish.keys import (
    allow_identity,
    load_publisher,
    revoke_key,
    rotate_key,
)
from sparkwright.publish.root import TrustedKey, TrustRoot
from sparkwright.publish.signing import CHANNEL_TYPE, TRUST_TYPE, sign_by


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    """Return a channel of one wheel, whose reader pinned the first root."""
    world = ChannelWorld(tmp_path)
    world.promote("1")
    world.pin()
    return world


def key_of(world: ChannelWorld) -> str:
    return load_publisher(world.home).signer.name


# The file ------------------------------------------------------------------------------------------


def test_a_key_is_made_once_and_only_its_owner_can_read_it(world: ChannelWorld) -> None:
    assert (world.home / "key.pem").stat().st_mode & 0o777 == 0o600
    assert world.home.stat().st_mode & 0o777 == 0o700
    assert load_publisher(world.home).signer.name == key_of(world)
    assert sorted(path.name for path in world.home.iterdir()) == [".lock", "1.json", "key.pem"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(world: ChannelWorld, mode: int) -> None:
    (world.home / "key.pem").chmod(mode)
    with pytest.raises(SignatureError, match=f"mode {mode:o}") as caught:
        world.promote("2")
    assert "PRIVATE" not in str(caught.value)
    (world.home / "key.pem").chmod(0o600)
    world.promote("2")


@pytest.mark.parametrize("damage", ["empty", "garbage", "rsa", "folder"])
def test_what_is_no_key_is_refused_and_never_replaced(world: ChannelWorld, damage: str) -> None:
    path = world.home / "key.pem"
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


def test_a_key_without_its_root_is_not_replaced(world: ChannelWorld) -> None:
    (world.home / "1.json").unlink()
    with pytest.raises(SignatureError, match=r"is missing|does not list"):
        world.promote("2")
    assert (world.home / "key.pem").exists()


# Rotation ------------------------------------------------------------------------------------------


def test_a_reader_of_the_first_root_follows_rotations(world: ChannelWorld) -> None:
    first = key_of(world)
    for version in ("2", "3"):
        rotate_key(world.home)
        world.promote(version)
        verified = world.verify()
        assert verified.signer == key_of(world) != first
    assert load_publisher(world.home).root.version == 3
    assert sorted(path.name for path in (world.published / "trust").iterdir()) == [
        "1.json",
        "2.json",
        "3.json",
    ]


def test_a_retired_key_cannot_sign_anything_new(world: ChannelWorld) -> None:
    old = load_publisher(world.home)
    rotate_key(world.home)
    world.promote("2")
    state = world.verify().state
    later = structs.replace(state, generation=3, written=stamp(now() + timedelta(minutes=5)))
    forged = old.signer.sign(later.payload, CHANNEL_TYPE)
    (world.published / "channels/nightly/channel.json").write_bytes(forged)
    with pytest.raises(UntrustedKeyError, match="was in use from"):
        world.verify()


@pytest.mark.parametrize("stop", ["before the root", "before the key", "between the keys"])
def test_an_interrupted_rotation_is_undone_or_finished(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    first = key_of(world)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if stop == "before the root":
            patch.setattr(keys, "_write_root", stopped)
        else:
            patch.setattr(keys, "_finish_rotation", finish_until(stop, keys._finish_rotation))
        with pytest.raises(KeyboardInterrupt):
            rotate_key(world.home)
    assert (key_of(world) == first) is (stop == "before the root")
    world.promote("2")
    assert world.verify().signer == key_of(world)


def finish_until(stop: str, real):
    """Return `_finish_rotation`, stopped where a root names the next key."""

    def finish(home: Path) -> None:
        if not (home / "next.pem").exists() or not (home / "2.json").exists():
            real(home)
            return
        if stop == "between the keys":
            (home / "key.pem").rename(home / "retired-x.pem")
        raise KeyboardInterrupt

    return finish


# Revocation ----------------------------------------------------------------------------------------


def test_nothing_of_a_revoked_key_is_trusted_until_it_is_signed_again(world: ChannelWorld) -> None:
    stolen = load_publisher(world.home)
    rotate_key(world.home, revoke="the machine was broken into")
    world.publisher().set_status("nightly", "deprecated", "", POLICY, now())
    with pytest.raises(UntrustedKeyError, match=r"was revoked on .*: the machine was broken into"):
        world.verify()  # the wheel's promotion is by that key
    world.publisher().renew("nightly", POLICY, now())
    world.verify()
    forged = stolen.signer.sign((state := world.verify().state).payload, CHANNEL_TYPE)
    (world.published / "channels/nightly/channel.json").write_bytes(forged)
    with pytest.raises(UntrustedKeyError, match="was revoked"):
        world.verify()
    assert state.generation == 3


def test_a_thief_of_a_retired_key_is_locked_out_by_a_later_revocation(world: ChannelWorld) -> None:
    old = key_of(world)
    rotate_key(world.home)
    world.publisher().renew("nightly", POLICY, now())
    world.verify()
    revoke_key(world.home, old[:12], "found on a sold disk")
    world.publisher().renew("nightly", POLICY, now())
    assert world.verify().state.root == 3
    key = load_publisher(world.home).root.find(old)
    assert key is not None
    assert key.reason == "found on a sold disk"


def test_the_present_key_cannot_revoke_itself_and_unknown_ones_are_named(world: ChannelWorld) -> None:
    with pytest.raises(PublishError, match="cannot revoke itself"):
        revoke_key(world.home, key_of(world), "x")
    for odd in ("0" * 64, "", "ab"):
        with pytest.raises(UnknownNameError):
            revoke_key(world.home, odd, "x")


def test_a_mirror_that_hides_a_revocation_is_noticed(world: ChannelWorld) -> None:
    old = key_of(world)
    rotate_key(world.home)
    world.promote("2")
    revoke_key(world.home, old[:12], "stolen")
    world.publisher().renew("nightly", POLICY, now())
    (world.published / "trust/3.json").unlink()
    with pytest.raises(ReplayedChannelError, match="withholds the publisher's newest root"):
        world.verify()


def test_a_root_that_was_seen_stays_when_a_mirror_hides_it(world: ChannelWorld) -> None:
    copy = world.folder / "copy"
    shutil.copytree(world.published, copy)
    rotate_key(world.home, revoke="stolen")
    world.publisher().renew("nightly", POLICY, now())
    world.verify()
    shutil.rmtree(world.published)
    shutil.copytree(copy, world.published)
    (world.folder / "reader-seen.json").rename(world.folder / "x")
    world.verify()  # a reader who saw nothing of it cannot tell
    (world.folder / "x").rename(world.folder / "reader-seen.json")
    with pytest.raises(UntrustedKeyError, match="was revoked"):
        world.verify()


# Split keys ----------------------------------------------------------------------------------------


def test_a_thief_of_the_channels_key_cannot_change_roots(world: ChannelWorld) -> None:
    offline = world.folder / "roots.pem"
    rotate_key(world.home, split=offline)
    assert offline.stat().st_mode & 0o777 == 0o600
    assert not list(world.home.glob("retired-*"))
    world.promote("2")
    world.verify()
    with pytest.raises(UntrustedKeyError, match="may sign channels, not roots"):
        rotate_key(world.home)
    stolen = load_publisher(world.home)
    thief = TrustedKey(
        id=stolen.root.keys[0].id, public=stolen.root.keys[0].public, roles=("roots",), start="x"
    )
    root = TrustRoot(publisher=stolen.root.publisher, version=3, written=stamp(now()), keys=(thief,))
    (world.published / "trust/3.json").write_bytes(sign_by([stolen.signer.key], root.payload, TRUST_TYPE))
    with pytest.raises((UntrustedKeyError, SignatureError)):
        world.verify()
    (world.published / "trust/3.json").unlink()
    revoke_key(world.home, stolen.signer.name[:12], "stolen", roots_key=offline)
    with pytest.raises(UntrustedKeyError, match="was revoked"):
        world.promote("3")
    rotate_key(world.home, roots_key=offline)
    world.publisher().renew("nightly", POLICY, now())
    world.verify()
    assert load_publisher(world.home).root.version == 4


def test_a_former_key_cannot_hide_behind_an_old_date(world: ChannelWorld) -> None:
    former = load_publisher(world.home)
    rotate_key(world.home)
    world.publisher().renew("nightly", POLICY, now() + timedelta(minutes=5))
    state = world.verify(at=now() + timedelta(minutes=6)).state
    start = former.root.keys[0].start
    forged = former.signer.sign(structs.replace(state, generation=9, written=start).payload, CHANNEL_TYPE)
    (world.published / "channels/nightly/channel.json").write_bytes(forged)
    with pytest.raises(ReplayedChannelError, match="was written before its predecessors"):
        world.verify()


def test_dates_never_go_back_with_the_publishers_clock(world: ChannelWorld) -> None:
    later = now() + timedelta(minutes=5)
    first = world.publisher().renew("nightly", POLICY, later)
    assert world.publisher().renew("nightly", POLICY, now()).written == first.written


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


def test_a_key_of_the_future_asks_for_the_clock(world: ChannelWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    class Earlier(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) - timedelta(days=365)

    monkeypatch.setattr(keys, "datetime", Earlier)
    with pytest.raises(UntrustedKeyError, match="was in use from") as caught:
        load_publisher(world.home)
    assert "set this machine's clock" in str(caught.value.next_step)


def test_the_key_of_roots_cannot_sign_channels(world: ChannelWorld) -> None:
    offline = world.folder / "roots.pem"
    roots = load_publisher(world.home).signer
    rotate_key(world.home, split=offline)
    world.promote("2")
    later = structs.replace(world.verify().state, generation=3, written=stamp(now() + timedelta(minutes=5)))
    forged = roots.sign(later.payload, CHANNEL_TYPE)
    (world.published / "channels/nightly/channel.json").write_bytes(forged)
    with pytest.raises(UntrustedKeyError, match="was in use from"):
        world.verify()


# Identities and secrets -----------------------------------------------------------------------------


def test_an_identity_is_added_to_the_root(world: ChannelWorld) -> None:
    allow_identity(world.home, "https://example.org/workflow@refs/heads/main", "https://issuer.example.org")
    found = allow_identity(
        world.home, "https://example.org/workflow@refs/heads/main", "https://issuer.example.org"
    )
    assert found.root.version == 2
    assert len(found.root.identities) == 1


def test_private_keys_are_in_nothing_that_is_published(world: ChannelWorld) -> None:
    rotate_key(world.home)
    world.promote("2")
    secrets = [line for path in world.home.glob("*.pem") for line in path.read_bytes().splitlines()[1:-1]]
    assert secrets
    published = b"".join(path.read_bytes() for path in world.published.rglob("*") if path.is_file())
    assert not any(secret in published for secret in secrets)


def test_tampering_is_not_mistaken_for_trust(world: ChannelWorld) -> None:
    (world.published / world.verify().state.files[0].promotion_path).unlink()
    with pytest.raises(TamperedError, match=r"promotion statement .* is missing"):
        world.verify()
