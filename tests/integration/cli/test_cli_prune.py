"""``sparkwright channel prune`` with real processes and keys."""

import os
import shutil
import time
from pathlib import Path

import pytest
import wheelkit
from channel_kit import small_wheel
from world import World

from sparkwright.base.errors import ConfigError
from sparkwright.publish.evidence import attach

SHIPPED = Path(__file__).parents[3] / "patchsets/channels.toml"


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


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("--target", "http://127.0.0.1:9/wheels"), ConfigError, "the kinds are"),
        (("--target", "ftp://x"), ConfigError, ""),
    ],
)
def test_what_cannot_be_pruned(channel, arguments, kind, message):
    refused = channel.call("channel", "prune", *arguments)
    assert refused.status == (kind.exit_code)
    assert message in refused.err


def test_a_policy_with_a_limit_of_nothing_is_refused(channel: World) -> None:
    policies = channel.root / "patchsets" / SHIPPED.name
    policies.write_text(policies.read_text().replace("keep-days = 1\n", "keep-days = 0\n", 1))
    assert channel.call("channel", "prune").status == ConfigError.exit_code
