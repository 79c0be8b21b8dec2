"""Fixtures that all tests share."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from kit import Recorder, Scene, UpstreamRepository

from sparkwright.base.events import subscribe
from sparkwright.git import Repository, open_repository
from sparkwright.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A script that runs the tests in the background leaves SIGINT ignored, and every program that they start
# inherits that. With a handler here, those programs get the default back and can be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Asserts rewritten by pytest and modules that children import are compiled once, not by every process.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile(
    "sparkwright",
    deadline=None,  # examples start real processes
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("sparkwright")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the fault matrix: it takes longest, and waits while other tests compute."""
    items.sort(key=lambda item: "outcomes" not in getattr(item, "fixturenames", ()))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "home")


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    opened = open_repository(tmp_path / "git")
    yield opened
    opened.close()


@pytest.fixture
def upstream(tmp_path: Path) -> UpstreamRepository:
    return UpstreamRepository(tmp_path / "upstream")


@pytest.fixture
def heard() -> Iterator[Recorder]:
    """The events that the test's code emits."""
    recorder = Recorder()
    with subscribe(recorder):
        yield recorder


@pytest.fixture
def scene(repository: Repository, tmp_path: Path) -> Scene:
    """A merge whose base and target the test fills in."""
    return Scene(repository, tmp_path / "carries", base={})
