"""``sparkwright channel prune`` with real processes and keys."""

import re
import shutil
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
    """Return a checkout whose nightly keeps one generation, and has three."""
    policies = world.root / "patchsets" / SHIPPED.name
    shutil.copy(SHIPPED, policies)
    policies.write_text(policies.read_text().replace("keep-generations = 30", "keep-generations = 1", 1))
    for number in (1, 2, 3):
        wheel = small_wheel(world.dist, f"0.24.{number}", record={"carries.json": {"carries": []}})
        attach(world.dist, "audit", wheelkit.sha256(wheel), {"unchecked": []})
        beside = wheel.with_name(f"{wheel.name}.provenance.json")
        beside.write_text(
            '{"_type": "https://in-toto.io/Statement/v1", "predicateType": "about:made", '
            f'"subject": [{{"name": "{wheel.name}", "digest": {{"sha256": "{wheelkit.sha256(wheel)}"}}}}]}}'
        )
        world.good("channel", "promote", wheel, "--to", "nightly")
    return world


def files_at(world: World) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (world.dist / "published").rglob("*") if path.is_file()}


def test_a_channel_is_pruned_and_stays_sound(channel: World) -> None:
    before = files_at(channel)
    dry = channel.good("channel", "prune", "--dry-run", "--json").json
    assert files_at(channel) == before
    assert [name.split("-")[1] for name in dry["dropped"]["nightly"]] == ["0.24.1", "0.24.2"]
    shown = channel.good("channel", "prune", "--dry-run").out
    assert re.search(
        r"^waits +channels/nightly/1-[0-9a-f]{12} \(.+\), since .+: it is before", shown, re.MULTILINE
    )
    assert "a dry run: nothing was written" in shown
    done = channel.good("channel", "prune", "--json").json
    assert done["generations"] == {"nightly": 4}
    waits = [[unit["path"] for unit in one["condemned"] if "-" in unit["path"]] for one in (dry, done)]
    assert waits[0] == waits[1] != []
    assert all(unit["size"] == sum(unit["files"].values()) > 0 for unit in done["condemned"])
    assert done["removed"] == []
    assert "every page" in channel.good("channel", "verify", channel.dist / "published").out
    log = channel.good("channel", "log", "nightly", "--json").json
    assert [one["action"]["kind"] for one in log] == ["prune", "promote"]
    assert "0 folders removed" in channel.good("channel", "prune").out


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("--target", "http://127.0.0.1:9/wheels"), ConfigError, "the kinds are"),
        (("--target", "ftp://x"), ConfigError, ""),
        (("--grace", "0"), None, "0 is not in the range"),
    ],
)
def test_what_cannot_be_pruned(channel, arguments, kind, message):
    refused = channel.call("channel", "prune", *arguments)
    assert refused.status == (kind.exit_code if kind else 2)
    assert message in refused.err


def test_a_policy_with_a_limit_of_nothing_is_refused(channel: World) -> None:
    policies = channel.root / "patchsets" / SHIPPED.name
    policies.write_text(policies.read_text().replace("keep-generations = 1", "keep-generations = 0", 1))
    assert channel.call("channel", "prune").status == ConfigError.exit_code
