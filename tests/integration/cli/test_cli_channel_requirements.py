"""What `channel verify --requirements` writes is installed by digest, whatever a mirror serves then."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from platform import machine

import pytest
from channel_kit import ChannelWorld, small_wheel
from static_server import served
from world import World

from sparkwright.base.errors import TamperedError, UnknownNameError

TAG = f"py3-none-manylinux_2_17_{machine()}"


def promoted(channel: ChannelWorld, version: str) -> Path:
    """Promote a wheel for this machine with a runtime of nothing but itself."""
    wheel = channel.audited(small_wheel(channel.dist, version, tag=TAG))
    channel.promote_file(wheel, requires="")
    return wheel


@pytest.fixture
def published(tmp_path: Path) -> ChannelWorld:
    """Return a channel of one wheel for this machine."""
    channel = ChannelWorld(tmp_path / "channel")
    promoted(channel, "0.24.0+spark.1")
    return channel


def pin(world: World, place: object, channel: ChannelWorld, name: str = "nightly") -> None:
    world.good("channel", "key", "pin", place, "--digest", channel.digest(name))


def installed(command: str, target: Path) -> subprocess.CompletedProcess[str]:
    """Run the command that was printed, into a folder and without any other index."""
    words = command.split()[1:]
    program = Path(sys.executable).with_name("uv")
    extra = ("--no-config", "--no-cache", "--no-index", "--target", target)
    return subprocess.run([program, *words, *extra], capture_output=True, text=True, check=False)


def printed(said: str) -> str:
    """Return the command that *said* names as the next one."""
    (command,) = (line.removeprefix("next").strip() for line in said.splitlines() if line.startswith("next"))
    return command


def test_a_wheel_of_a_folder_is_installed_from_it(world: World, published: ChannelWorld) -> None:
    place, file = published.published / "channels/nightly", world.folder / "wanted.txt"
    pin(world, place, published)
    (former,) = published.dist.glob("*.whl")
    promoted(published, "0.24.0+spark.2")
    for number, words in enumerate([("--wheel", former), ()], 1):
        command = printed(world.good("channel", "verify", place, *words, "--requirements", file).out)
        done = installed(command, world.folder / str(number))
        assert done.returncode == 0, done.stderr
        assert (world.folder / f"{number}/vllm-0.24.0+spark.{number}.dist-info").is_dir()


def test_what_was_verified_is_what_is_installed(world: World, published: ChannelWorld) -> None:
    file = world.folder / "wanted.txt"
    with served(published.published) as (address, _):
        place = f"{address}/channels/nightly"
        pin(world, place, published)
        command = printed(world.good("channel", "verify", place, "--requirements", file).out)
        good = installed(command, world.folder / "good")
        assert good.returncode == 0, good.stderr
        assert (world.folder / "good/vllm-0.24.0+spark.1.dist-info").is_dir()
        (wheel,) = published.published.rglob("*.whl")
        shutil.copy(small_wheel(world.folder, "0.24.0+spark.1", tag=TAG, record={"x.json": 1}), wheel)
        changed = installed(command, world.folder / "changed")
    assert (changed.returncode != 0, "ash mismatch" in changed.stderr) == (True, True), changed.stderr


def test_it_is_said_that_an_address_is_written_without_its_password(
    world: World, published: ChannelWorld
) -> None:
    file = world.folder / "wanted.txt"
    with served(published.published) as (address, _):
        place = f"{address}/channels/nightly"
        pin(world, place, published)
        for part, told in (("user:secret@", True), ("", False)):
            named = place.replace("://", f"://{part}")
            ran = world.good("channel", "verify", named, "--requirements", file)
            assert (".netrc" in ran.out) is told
            assert "secret" not in f"{ran.said}{file.read_text()}"


def test_requirements_are_refused_where_nothing_signed_holds_them(
    world: World, published: ChannelWorld
) -> None:
    place = published.published / "channels/nightly"
    published.promote("1", "other")
    other = place.with_name("other")
    pin(world, place, published)
    pin(world, other, published, "other")
    asking = ("--requirements", world.folder / "wanted.txt")
    none = world.call("channel", "verify", other, *asking)
    assert (none.status, "has no wheel" in none.err) == (UnknownNameError.exit_code, True)
    (runtime,) = published.published.rglob("*.requirements.txt")
    runtime.write_bytes(b"vllm==6.6.6\n")
    assert world.call("channel", "verify", place, *asking).status == TamperedError.exit_code
    assert not (world.folder / "wanted.txt").exists()
