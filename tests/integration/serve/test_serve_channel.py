"""The wheel that a channel offers for a machine: verified, fetched once, and never another."""

from pathlib import Path

import pytest
from channel_kit import ChannelWorld, small_wheel
from static_server import served

from sparkwright.base.errors import ConfigError, DigestError, UnknownNameError, UntrustedKeyError
from sparkwright.publish.places import open_mirror
from sparkwright.publish.reader import open_channel
from sparkwright.store.paths import Store
from sparkwright.upstream.network import read_settings

MACHINE, OTHER = "aarch64", "x86_64"
NEWEST = {"0.24": "0.24.0+spark.2", "0.33": "0.33.0+spark.1"}


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    """A channel with wheels of two series for one machine, and a newer one for another."""
    made = ChannelWorld(tmp_path / "channel")
    offered = [(version, MACHINE) for version in ("0.24.0+spark.1", NEWEST["0.24"], NEWEST["0.33"])]
    for version, machine in [*offered, ("0.33.0+spark.9", OTHER)]:
        wheel = small_wheel(made.dist, version, tag=f"py3-none-manylinux_2_28_{machine}")
        made.promote_file(made.audited(wheel))
    return made


def fetch(world: ChannelWorld, store: Store, place: str, series: str = "", machine: str = MACHINE) -> Path:
    wanted = (series,) if series else ()
    world.reader.pin(open_mirror(place, read_settings())[0], "nightly", world.digest())
    return open_channel(store, place, machine, *wanted, trust=world.reader).wheel


def test_the_newest_for_this_machine_and_series_is_taken(world: ChannelWorld, store: Store) -> None:
    place = str(world.published / "channels/nightly")
    assert fetch(world, store, place).name.startswith(f"vllm-{NEWEST['0.33']}-")
    for series, version in NEWEST.items():
        assert fetch(world, store, place, series).name.startswith(f"vllm-{version}-")
    assert MACHINE in fetch(world, store, place).name
    with pytest.raises(UnknownNameError, match=r"has no wheel of series 0\.24 for x86_64"):
        fetch(world, store, place, "0.24", OTHER)
    with pytest.raises(ConfigError, match="names no channel"):
        fetch(world, store, str(world.published))


@pytest.mark.parametrize("http", [True, False])
def test_it_is_taken_by_its_digest_and_kept(world: ChannelWorld, store: Store, *, http: bool) -> None:
    """Others may write to a folder, between the moment in which its wheel is verified and that of its use."""
    with served(world.published) as (address, _):
        place = f"{address if http else world.published}/channels/nightly"
        wheel = fetch(world, store, place)
        assert wheel.is_relative_to(store.home)
        original = world.dist / wheel.name
        assert wheel.read_bytes() == original.read_bytes()
        for copy in world.published.rglob(wheel.name):
            copy.unlink()
        assert fetch(world, store, place) == wheel, "it is in the store"


@pytest.mark.parametrize("http", [True, False])
def test_other_bytes_than_were_signed_are_refused(world: ChannelWorld, store: Store, *, http: bool) -> None:
    (wheel,) = world.published.rglob(f"vllm-{NEWEST['0.33']}-*.whl")
    data = wheel.read_bytes()
    wheel.chmod(0o644)
    wheel.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with served(world.published) as (address, _), pytest.raises(DigestError):
        fetch(world, store, f"{address if http else world.published}/channels/nightly")


def test_a_channel_of_an_unknown_publisher_is_refused(
    world: ChannelWorld, store: Store, tmp_path: Path
) -> None:
    stranger = ChannelWorld(tmp_path / "stranger")
    stranger.promote("0.24.0+spark.1")
    with pytest.raises(UntrustedKeyError):
        open_channel(store, str(world.published / "channels/nightly"), MACHINE, trust=stranger.reader)
