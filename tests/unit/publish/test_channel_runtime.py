"""The locked runtime of a promoted wheel: named by channel and promotion, verified before it is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from channel_kit import POLICY, ChannelWorld, now

from sparkwright.base.errors import PublishError
from sparkwright.publish.channel import ChannelState
from sparkwright.publish.evidence import Candidate, gather
from sparkwright.publish.index import describe
from sparkwright.publish.reader import requirements
from sparkwright.publish.target import FolderTarget

VERSION = "0.24.0+spark.1"
RUNTIME = b"torch==2.11.0 --hash=sha256:" + b"0" * 64 + b"\n"


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    return ChannelWorld(tmp_path)


def promote(world: ChannelWorld, runtime: bytes = RUNTIME) -> ChannelState:
    wheel = world.wheel(VERSION)
    candidate = Candidate(wheel, describe(wheel)[0], runtime=runtime)
    return world.publisher().promote("nightly", candidate, POLICY, now())


def test_what_is_installed_by_names_the_wheel_by_its_address(world: ChannelWorld) -> None:
    own = f"vllm=={VERSION} --hash=sha256:{describe(world.wheel(VERSION))[0].sha256}\n".encode()
    (file,) = promote(world, own + RUNTIME).files
    address = (world.published / file.path).as_uri()
    wanted = requirements(FolderTarget(world.published), file)
    assert wanted == own.replace(f"vllm=={VERSION}".encode(), f"vllm @ {address}".encode()) + RUNTIME


def test_a_wheel_that_was_listed_without_one_is_listed_again_with_it(world: ChannelWorld) -> None:
    first, second, third = promote(world, b""), promote(world), promote(world)
    assert (first.files[0].runtime, bool(second.files[0].runtime)) == ("", True)
    assert (second.generation, third) == (2, second)
    assert len(second.files) == 1


def test_the_file_beside_a_wheel_is_taken_if_it_is_of_it(world: ChannelWorld, tmp_path: Path) -> None:
    wheel = world.wheel(VERSION)
    entry, _ = describe(wheel)

    def taken() -> bytes:
        return gather(wheel, "nightly", POLICY, world.dist / "evidence", tmp_path).runtime

    assert taken() == b""
    beside = wheel.with_name(wheel.name.replace(".whl", ".requirements.txt"))
    own = f"vllm=={entry.version} --hash=sha256:{entry.sha256}\n".encode()
    beside.write_bytes(own + RUNTIME)
    assert taken() == own + RUNTIME
    beside.write_bytes(own.replace(entry.sha256[:8].encode(), b"0" * 8) + RUNTIME)
    with pytest.raises(PublishError, match="not the runtime of the wheel beside it"):
        taken()
