"""Each fault of a published channel has its own message and kind; the healthy twin is silent."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from channel_kit import POLICY, ChannelWorld, now

from sparkwright.base.errors import (
    ConfigError,
    ExpiredChannelError,
    FetchError,
    NewerFormatError,
    PublishError,
    ReplayedChannelError,
    SignatureError,
    SparkwrightError,
    TamperedError,
    UnknownNameError,
    UploadError,
)
from sparkwright.cli.main import main
from sparkwright.publish.channel import decode_state
from sparkwright.publish.keys import load_publisher
from sparkwright.publish.reader import require_listed
from sparkwright.publish.repository import signed_metadata
from sparkwright.publish.target import FolderTarget
from sparkwright.publish.trust import place_of

POINTER = "channels/nightly/timestamp.json"
NO_SIGNATURE = "0" * 128
ROOT = "channels/nightly/1.root.json"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> ChannelWorld:
    """A channel of three generations and two wheels, of which the first has a runtime."""
    world = ChannelWorld(tmp_path_factory.mktemp("healthy"))
    world.promote_file(world.wheel("1"), requires="")
    world.promote("2")
    world.publisher().renew("nightly", POLICY, now())
    return world


@pytest.fixture
def world(healthy: ChannelWorld, tmp_path: Path) -> ChannelWorld:
    """Return a copy that a test may damage."""
    shutil.copytree(healthy.folder, tmp_path / "world")
    return ChannelWorld(tmp_path / "world")


def flip(path: Path) -> None:
    """Change one bit in the middle of the file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def forget(world: ChannelWorld) -> None:
    """Let the reader be a new one: what was read and verified before is not read again."""
    world.pin()


def plant(page: Path) -> None:
    """Put a page of another project there."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text('<a href="torch-9-py3-none-any.whl">torch</a>')


def cut(path: Path, count: int) -> None:
    """Remove the last bytes of the file."""
    path.write_bytes(path.read_bytes()[:-count])


def wheels(world: ChannelWorld) -> list[Path]:
    return sorted(world.published.rglob("*.whl"), key=lambda path: path.name)


def edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_bytes(json.dumps(value).encode())


def swap(world: ChannelWorld) -> None:
    one, other = wheels(world)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def state(world: ChannelWorld) -> Path:
    """Return the file of the present state."""
    found = world.publisher().require("nightly").state
    return world.published / f"channels/nightly/states/{found.digest}.json"


FAULTS: dict[str, tuple[Callable[[ChannelWorld], object], type[SparkwrightError], str]] = {
    "wheel changed": (lambda w: flip(wheels(w)[0]), TamperedError, "vllm-1-py3-none-any.whl was changed"),
    "wheel cut": (lambda w: cut(wheels(w)[0], 1), TamperedError, "was changed"),
    "wheels swapped": (swap, TamperedError, "was swapped, because vllm-"),
    "wheel missing": (lambda w: wheels(w)[1].unlink(), TamperedError, "vllm-2-py3-none-any.whl is missing"),
    "page added": (
        lambda w: plant(w.published / "channels/nightly/simple/torch/index.html"), TamperedError,
        "channels/nightly/simple/torch/index.html is of no generation",
    ),
    "page added beside the metadata": (
        lambda w: plant(w.published / "channels/nightly/index.html"), TamperedError, "is of no generation",
    ),
    "folder of pages linked": (
        lambda w: (w.published / "channels/nightly/torch").symlink_to("/etc"), TamperedError,
        "channels/nightly/torch is of no generation",
    ),
    "page added to the states": (
        lambda w: plant(w.published / f"channels/nightly/states/{'0' * 64}.json"), TamperedError,
        "is of no generation",
    ),
    "runtime changed": (
        lambda w: flip(next(w.published.rglob("*.requirements.txt"))), TamperedError,
        "the runtime of vllm-1-py3-none-any.whl was changed",
    ),
    "runtime missing": (
        lambda w: next(w.published.rglob("*.requirements.txt")).unlink(), TamperedError,
        "the runtime of vllm-1-py3-none-any.whl is missing",
    ),
    "evidence changed": (
        lambda w: flip(next(w.published.rglob("evidence/*.json"))), TamperedError, "the audit of vllm-",
    ),
    "evidence removed": (
        lambda w: shutil.rmtree(next(w.published.rglob("evidence"))), TamperedError, "the audit of vllm-",
    ),
    "state changed": (lambda w: flip(state(w)), TamperedError, ".json was changed"),
    "state missing": (lambda w: state(w).unlink(), TamperedError, ".json is missing"),
    "targets changed": (
        lambda w: [flip(w.published / "channels/nightly/3.targets.json"), forget(w)],
        TamperedError, "were changed",
    ),
    "snapshot missing": (
        lambda w: [(w.published / "channels/nightly/3.snapshot.json").unlink(), forget(w)],
        TamperedError, "is not complete",
    ),
    "pointer truncated": (
        lambda w: cut(w.published / POINTER, 40), SignatureError, "it was cut off",
    ),
    "pointer empty": (lambda w: (w.published / POINTER).write_bytes(b""), SignatureError, "it was cut off"),
    "pointer no metadata": (
        lambda w: (w.published / POINTER).write_bytes(b'{"signed": 3}'),
        SignatureError, "no signed metadata",
    ),
    "pointer endless": (
        lambda w: (w.published / POINTER).write_bytes(b"[" * 100_000), SignatureError, "no signed metadata",
    ),
    "pointer of another kind": (
        lambda w: shutil.copy(w.published / "channels/nightly/3.targets.json", w.published / POINTER),
        SignatureError, "another kind of statement",
    ),
    "signature removed": (
        lambda w: edit(w.published / POINTER, lambda v: v.update(signatures=[])),
        SignatureError, "is not signed",
    ),
    "signature changed": (
        lambda w: edit(w.published / POINTER, lambda v: v["signatures"][0].update(sig=NO_SIGNATURE)),
        SignatureError, "has a wrong signature",
    ),
    "payload changed": (
        lambda w: edit(w.published / POINTER, lambda v: v["signed"].update(version=9)),
        SignatureError, "has a wrong signature",
    ),
    "channel moved": (
        lambda w: [w.promote("9", "stable"), w.verify("stable"), shutil.copy(
            w.published / POINTER, w.published / "channels/stable/timestamp.json",
        )],
        SignatureError, "it was signed as channel nightly",
    ),
    "root changed": (
        lambda w: shutil.copy(w.published / ROOT, w.published / "channels/nightly/2.root.json"),
        SignatureError, "does not follow the one before it",
    ),
    "root damaged": (
        lambda w: (w.published / "channels/nightly/2.root.json").write_bytes(b"{"), SignatureError, "damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_message(world: ChannelWorld, name: str) -> None:
    plant, kind, message = FAULTS[name]
    world.verify()
    plant(world)
    with pytest.raises(kind) as caught:
        world.verify("stable" if name == "channel moved" else "nightly")
    assert type(caught.value) is kind
    assert message in str(caught.value)


def test_a_moved_channel_is_not_pinned(world: ChannelWorld) -> None:
    shutil.copytree(world.published / "channels/nightly", world.published / "channels/stable")
    target = FolderTarget(world.published)
    with pytest.raises(SignatureError, match="is not of channel stable"):
        world.reader.pin(target, "stable", world.digest())
    assert not world.reader.seen(place_of(target, "stable")).exists()


# Time ----------------------------------------------------------------------------------------------


def test_an_expired_channel_is_refused(world: ChannelWorld) -> None:
    world.publisher(adopt=True).renew("nightly", POLICY, now() - timedelta(days=29))
    world.verify()
    world.publisher(adopt=True).renew("nightly", POLICY, now() - timedelta(days=31))
    with pytest.raises(ExpiredChannelError, match="the mirror is frozen"):
        world.verify()
    world.publisher().renew("nightly", POLICY, now())
    world.verify()


# Replays -------------------------------------------------------------------------------------------


def test_a_replayed_channel_is_refused(world: ChannelWorld) -> None:
    frozen = world.folder / "frozen"
    shutil.copytree(world.published, frozen)
    world.promote("3")
    world.verify()
    world.serve(frozen)
    with pytest.raises(ReplayedChannelError, match="went back") as caught:
        world.verify()
    assert "must be >= 4" in caught.value.because
    assert world.verify(mirror=FolderTarget(frozen)).state.generation == 3  # it saw nothing newer there


def test_two_generations_of_one_number_are_noticed(world: ChannelWorld) -> None:
    copy = ChannelWorld(world.folder / "copy")
    shutil.copytree(world.published, copy.published)
    shutil.copytree(world.home, copy.home)
    world.promote("3")
    world.verify()
    copy.promote("4")
    world.serve(copy.published)
    with pytest.raises(ReplayedChannelError, match="two generations of one version"):
        world.verify()


# Others' statements --------------------------------------------------------------------------------


def sign(world: ChannelWorld, change: Callable[[dict[str, object]], object]) -> None:
    """Publish another state of generation 3 by the publisher's own key."""
    payload = json.loads(world.verify().state.payload)
    change(payload)

    class Changed:
        channel = "nightly"
        payload = b""

    Changed.payload = json.dumps(payload).encode()
    signer = load_publisher(world.home).signer
    metadata = signed_metadata(Changed, now().replace(microsecond=0) + timedelta(days=9), 4, signer)
    folder = world.published / "channels/nightly"
    (folder / f"states/{hashlib.sha256(Changed.payload).hexdigest()}.json").write_bytes(Changed.payload)
    for role in ("targets", "snapshot"):
        (folder / f"4.{role}.json").write_bytes(metadata[role])
    (folder / "timestamp.json").write_bytes(metadata["timestamp"])


def test_a_state_of_a_newer_format_says_so(world: ChannelWorld) -> None:
    sign(world, lambda payload: payload.update(format=9))
    with pytest.raises(NewerFormatError, match="format 9"):
        world.verify()


@pytest.mark.parametrize("escape", ["../../../../etc/passwd", "/etc/passwd", "a\\b", ""])
def test_a_signed_path_cannot_leave_the_mirror(world: ChannelWorld, escape: str) -> None:
    sign(world, lambda payload: payload["files"][0].update(filename=escape))
    with pytest.raises(PublishError, match="is not a relative path"):
        world.verify()


@pytest.mark.parametrize("payload", [b"[" * 5000, b'{"channel": "\xff"}'])
def test_a_state_that_is_no_json_is_refused(payload: bytes) -> None:
    with pytest.raises(SignatureError, match="cannot be read"):
        decode_state(payload, "nightly", "it")


def test_a_state_with_a_version_that_none_can_have_is_refused(world: ChannelWorld) -> None:
    sign(world, lambda payload: payload["files"][0].update(version="bogus!"))
    with pytest.raises(SignatureError, match="cannot be read"):
        world.verify()


def test_a_change_is_shown_without_what_a_terminal_would_obey(
    world: ChannelWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    sign(world, lambda payload: payload.update(written="\x1b[31m2026"))
    target = ["--target", str(world.published)]
    assert main(["channel", "show", "nightly", *target]) == 0
    assert "generation 3 of \\x1b[31m2026" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["http://[::1/channels/nightly", "https://[x]/channels/nightly"])
def test_an_address_that_is_none_is_one_error(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["verify", place], ["key", "pin", place, "--digest", "0" * 64]):
        assert main(["channel", *command]) == ConfigError.exit_code
        assert "is no address of a channel" in capsys.readouterr().err


@pytest.mark.parametrize("channel", ["stable", None, 3])
def test_a_state_of_another_channel_is_refused(world: ChannelWorld, channel: object) -> None:
    sign(world, lambda payload: payload.update(channel=channel))
    with pytest.raises(SignatureError, match=r"is not of channel nightly|cannot be read"):
        world.verify()


def test_there_is_no_such_channel(world: ChannelWorld) -> None:
    world.promote("1", "stable")
    world.verify("stable")
    (world.published / "channels/stable/timestamp.json").unlink()
    with pytest.raises(UnknownNameError, match="no channel stable"):
        world.verify("stable")


# A wheel -------------------------------------------------------------------------------------------


def test_a_wheel_is_compared_with_its_channel(world: ChannelWorld) -> None:
    state = world.verify().state
    file = state.files[0]
    assert require_listed(state, file.filename, file.sha256) == file
    with pytest.raises(TamperedError, match="is not the wheel of channel nightly"):
        require_listed(state, file.filename, "0" * 64)
    with pytest.raises(TamperedError, match="is not listed"):
        require_listed(state, "vllm-9-py3-none-any.whl", "0" * 64)
    rolled = world.publisher().rollback("nightly", POLICY, now(), to=1, reason="it crashes")
    newest = next(one for one in rolled.files if one.version == "2")
    with pytest.raises(TamperedError, match="was taken back, because channel nightly yanked it: it crashes"):
        require_listed(rolled, newest.filename, newest.sha256)


# The folder itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "device", "elsewhere", "sparse"])
@pytest.mark.parametrize("place", [POINTER, "channels/nightly/2.root.json", "a wheel"])
def test_a_folder_of_other_things_than_plain_files_is_refused_at_once(
    world: ChannelWorld, tmp_path: Path, kind: str, place: str
) -> None:
    world.verify()
    path = next(world.published.rglob("*.whl")) if place == "a wheel" else world.published / place
    data = path.read_bytes() if path.exists() else b""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "elsewhere":
        outside = tmp_path / "outside"
        outside.write_bytes(data)
        path.symlink_to(outside)
    else:
        with path.open("wb") as stream:
            stream.truncate(200 << 30)
    begun = time.monotonic()
    with pytest.raises((FetchError, TamperedError, UploadError)):
        world.verify()
    assert time.monotonic() - begun < 20


def test_a_link_within_the_folder_is_followed(world: ChannelWorld) -> None:
    wheel = next(world.published.rglob("*.whl"))
    wheel.rename(kept := wheel.with_name("kept"))
    wheel.symlink_to(kept)
    world.verify()
