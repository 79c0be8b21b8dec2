"""``sparkwright bisect --target`` over a real ssh to a real sshd; the simulator is served from real wheels."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ssh_kit import Sshd, running_sshd, served_release, torch_wheel, write_recipe
from test_cli_bisect import commit, culprits, harmless
from world import World, wait_until

from sparkwright.base.errors import ConfigError, StorageError, TargetError, ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator

MACHINE = platform.machine()


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd") as running:
        yield running


@pytest.fixture
def faulty(world: World, sshd: Sshd) -> World:
    """Two commits: two harmless carries, and with three more of them one that serves unreadable answers."""
    world.environment["PATH"] = sshd.path
    sshd.install(world.index.url)
    world.index.add(*torch_wheel())
    world.list_carries([])
    shutil.rmtree(world.root / "carries")
    world.pin(served_release())
    for number in range(2):
        harmless(world, number)
    commit(world, "good")
    harmless(world, 2)
    world.carry("noise", {"vllm/fault.py": "FAULT = 'repeated-token'\n"})
    for number in range(3, 5):
        harmless(world, number)
    commit(world, "bad")
    return world


def words(world: World, sshd: Sshd, judge: str = "verify coherence", **recipe) -> tuple[str, ...]:
    path = write_recipe(world.folder / "recipe.toml", **recipe)
    return (
        "bisect", "--good=HEAD~1", "--bad=HEAD", "--judge", judge, f"--target={sshd.address}",
        f"--recipe={path}", f"--platform={MACHINE}", "--json",
    )  # fmt: skip


def test_a_carry_is_named_by_what_is_served_on_the_target(faulty: World, sshd: Sshd) -> None:
    ran = faulty.good(*words(faulty, sshd), "--deterministic")
    assert culprits(ran) == ["noise:added"]
