"""``sparkwright channel`` from a built wheel to a reader's verification, with real processes and keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from platform import machine

import companion_kit
import pytest
import wheelkit
from channel_kit import ChannelWorld, small_wheel
from static_server import served
from world import World

from sparkwright.base.errors import ConfigError, TamperedError, UnknownNameError
from sparkwright.companion.wheel import write_companion
from sparkwright.publish.evidence import attach

pytestmark = pytest.mark.usefixtures("proved")

SHIPPED = Path(__file__).parents[3] / "patchsets/channels.toml"


@pytest.fixture
def built(world: World) -> World:
    """Return a checkout with the shipped policies and a built wheel."""
    shutil.copy(SHIPPED, world.root / "patchsets")
    world.good("wheel")
    return world


def evidence_of(world: World) -> dict[str, dict[str, object]]:
    return {path.stem: json.loads(path.read_bytes()) for path in world.dist.glob("evidence/*/*.json")}


def other_reader(world: World, name: str) -> None:
    """Make the following commands those of another user, who has neither key nor memory."""
    world.environment["XDG_DATA_HOME"] = str(world.folder / name)


# From a build to a channel -------------------------------------------------------------------------


def test_a_built_wheel_goes_to_nightly_and_back(built: World) -> None:
    (wheel,) = built.wheels
    assert evidence_of(built)["audit"]["detail"]["unchecked"] == []
    promoted = built.good("channel", "promote", wheel, "--to", "nightly")
    assert "a key for channel nightly was made" in promoted.err
    assert "already" in built.good("channel", "promote", wheel, "--to", "nightly").out
    place = built.dist / "published/channels/nightly"
    assert "1 of 1 read" in built.good("channel", "verify", place).out
    assert "is a wheel of nightly" in built.good("channel", "verify", place, "--wheel", wheel).out
    shown = built.good("channel", "show", "nightly", "--json").json
    assert [file["filename"] for file in shown["files"]] == [wheel.name]
    assert wheel.name in built.good("channel", "show", "nightly").out
    small = small_wheel(built.folder, "9", record={"carries.json": {"carries": []}})
    attach(built.dist, "audit", wheelkit.sha256(small), {"unchecked": []})
    built.good("channel", "promote", small, "--to", "nightly")
    back = built.good("channel", "rollback", "nightly", "--reason", "it crashes", "--json").json
    assert (back["generation"], back["action"]) == (3, {"kind": "rollback", "detail": "it crashes", "to": 1})
    history = built.good("channel", "show", "nightly", "--history", "--json").json
    assert [one["action"]["kind"] for one in history] == ["rollback", "promote", "promote"]
    assert "to 1: it crashes" in built.good("channel", "show", "nightly", "--history").out
    (one,) = built.good("channel", "show", "--json").json
    assert {file["filename"]: file["yanked"] for file in one["files"]} == {
        wheel.name: None,
        small.name: "it crashes",
    }
    assert wheel.name in built.good("channel", "show").out
    refused = built.call("channel", "verify", place, "--wheel", small)
    assert refused.status == 21
    assert "it crashes" in refused.err


def test_a_wheel_without_evidence_is_refused_with_the_commands_that_make_it(built: World) -> None:
    (wheel,) = built.wheels
    refused = built.call("channel", "promote", wheel, "--to", "stable")
    assert refused.status == 50
    assert f"sparkwright rehearse {wheel}\n" in refused.err
    assert f"sparkwright verify {wheel} --profile full on a card of 12.1" in refused.err
    shutil.rmtree(built.dist / "evidence")
    assert built.call("channel", "promote", wheel, "--to", "nightly").status == 50
    assert not (built.dist / "published").exists()
    built.good("audit", wheel)
    built.good("channel", "promote", wheel, "--to", "nightly")


def test_a_companion_is_promoted_by_its_audit_alone(built: World) -> None:
    module = companion_kit.module(built.store, companion_kit.library(built.folder, "sampling"))
    companion = write_companion(built.store, companion_kit.content([module]), built.dist).path
    refused = built.call("channel", "promote", companion, "--to", "stable")
    assert refused.status == 50
    assert "sparkwright audit" in refused.err
    assert "sparkwright verify" not in refused.err
    attach(built.dist, "audit", wheelkit.sha256(companion), {"checks": {}, "unchecked": []})
    built.good("channel", "promote", companion, "--to", "stable")
    assert "1 of 1 read" in built.good("channel", "verify", built.dist / "published/channels/stable").out
    (file,) = built.good("channel", "show", "stable", "--json").json["files"]
    assert (file["filename"], list(file["evidence"])) == (companion.name, ["audit"])


def test_several_wheels_are_promoted_at_once_or_none(built: World) -> None:
    target = built.folder / "mirror"
    other = small_wheel(built.folder, "9", record={"carries.json": {"carries": []}})
    words = ("channel", "promote", other, *built.wheels, "--to", "nightly", "--target", target)
    assert built.call(*words).status == 50
    assert not target.exists()
    attach(built.dist, "audit", wheelkit.sha256(other), {"unchecked": []})
    assert len(built.good(*words, "--json").json["files"]) == 2
    assert built.good("publish", "--json").json["files"] == [built.wheels[0].name]


# Readers -------------------------------------------------------------------------------------------


def test_a_reader_pins_a_root_and_verifies_without_a_checkout(built: World) -> None:
    built.good("channel", "promote", built.wheels[0], "--to", "nightly")
    root = built.good("channel", "key", "show", "nightly", "--json").json
    place = built.dist / "published/channels/nightly"
    other_reader(built, "reader")
    unknown = built.call("channel", "verify", place)
    assert (unknown.status, "no root is pinned" in unknown.err) == (21, True)
    assert built.call("channel", "key", "pin", place).status == 2
    assert built.call("channel", "key", "pin", place, "--digest", "0" * 64).status == 21
    pinned = built.good("channel", "key", "pin", place, "--digest", root["digest"])
    assert f"version 1 of {root['written']}" in pinned.out
    verified = built.good("channel", "verify", place, "--json").json
    assert (verified["signer"], verified["root"]) == (root["key"], 1)
    assert f"version 1 of {root['written']}" in built.good("channel", "verify", place).out


# Keys ----------------------------------------------------------------------------------------------


def test_a_stolen_key_is_replaced_and_the_channel_signed_again(built: World) -> None:
    built.good("channel", "promote", built.wheels[0], "--to", "nightly")
    place = built.dist / "published/channels/nightly"
    before = built.good("channel", "key", "show", "nightly", "--json").json
    unset = built.call("channel", "key", "rotate", "nightly", "--revoke", "")
    assert (unset.status, built.good("channel", "key", "show", "nightly", "--json").json) == (2, before)
    rotated = built.good("channel", "key", "rotate", "nightly", "--revoke", "laptop stolen")
    assert "channel renew nightly" in rotated.out
    refused = built.call("channel", "verify", place)
    assert (refused.status, "laptop stolen" in refused.err) == (21, True)
    built.good("channel", "renew", "nightly")
    built.good("channel", "verify", place)
    after = built.good("channel", "key", "show", "nightly", "--json").json
    assert after["key"] != before["key"]
    assert after["former"][before["key"]].endswith("laptop stolen")
    assert before["key"][:16] in built.good("channel", "key", "show", "nightly").out


@pytest.mark.parametrize("change", ["show", "rotate"])
def test_looking_at_the_key_of_an_unknown_channel_makes_none(built: World, change: str) -> None:
    refused = built.call("channel", "key", change, "absent")
    assert (refused.status, "no key for channel absent" in refused.err) == (10, True)
    assert not (Path(built.environment["XDG_DATA_HOME"]) / "sparkwright/publisher/absent").exists()


@pytest.fixture
def channel(world: World) -> World:
    """Return a checkout whose nightly keeps one day, and has three wheels of today."""
    policies = world.root / "patchsets" / SHIPPED.name
    shutil.copy(SHIPPED, policies)
    policies.write_text(policies.read_text().replace("keep-days = 30", "keep-days = 1", 1))
    for number in (1, 2, 3):
        wheel = small_wheel(world.dist, f"0.24.{number}", record={"carries.json": {"carries": []}})
        attach(world.dist, "audit", wheelkit.sha256(wheel), {"unchecked": []})
        world.good("channel", "promote", wheel, "--to", "nightly")
    return world


def test_a_channel_is_pruned_and_stays_sound(channel: World) -> None:
    """Nothing is old yet but what a publisher left that was killed two days ago."""
    published, left = channel.dist / "published", f"wheels/00/{'0' * 64}"
    (published / left).mkdir(parents=True)
    (published / left / "vllm-6.whl").write_bytes(b"x" * 2048)
    os.utime(published / left / "vllm-6.whl", (time.time() - 172_800,) * 2)
    assert f"removed  {left} (2.0 KiB)" in channel.good("channel", "prune").out
    done = channel.good("channel", "prune", "--json").json
    assert (done["removed"], done["dropped"]) == ({}, {})
    assert "3 of 3 read" in channel.good("channel", "verify", published / "channels/nightly").out


def test_a_policy_with_a_limit_of_nothing_is_refused(channel: World) -> None:
    policies = channel.root / "patchsets" / SHIPPED.name
    policies.write_text(policies.read_text().replace("keep-days = 1\n", "keep-days = 0\n", 1))
    assert channel.call("channel", "prune").status == ConfigError.exit_code


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
