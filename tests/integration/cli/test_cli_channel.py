"""``sparkwright channel`` from a built wheel to a reader's verification, with real processes and keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import companion_kit
import pytest
import wheelkit
from channel_kit import small_wheel
from world import World

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
    assert "generation 1" in promoted.out
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


def test_a_changed_wheel_and_what_is_no_channel_have_their_exit_codes(built: World) -> None:
    built.good("channel", "promote", built.wheels[0], "--to", "nightly")
    published = built.dist / "published"
    wheel = next(published.rglob("*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    assert built.call("channel", "verify", published / "channels/nightly").status == 21
    assert built.call("channel", "verify", published).status == 10
    assert built.call("channel", "show", "none").status == 10
    assert built.call("channel", "verify", built.folder / "nowhere").status == 10


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


def test_a_target_that_is_none_is_refused(built: World) -> None:
    refused = built.call("channel", "promote", built.wheels[0], "--to", "nightly", "--target", "gopher://x/y")
    assert refused.status == 10
    assert built.call("channel", "promote", built.wheels[0], "--to", "Bad Name").status == 10
    assert built.call("channel", "promote", built.wheels[0], "--to", "mine").status == 10
