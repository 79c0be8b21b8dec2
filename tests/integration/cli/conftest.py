"""Fixtures for tests of the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from http_index import RunningIndex
from rehearsal_kit import stage
from world import World, make_world


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.delenv("SPARKWRIGHT_DIST", raising=False)  # the user's, when make runs the tests
    with RunningIndex() as index:
        yield make_world(tmp_path, index)


@pytest.fixture
def proved(world: World) -> None:
    """Proofs of the carries are recorded beside them: to make them takes four times as long as the wheel."""
    world.record_proofs()


@pytest.fixture
def staged(world: World) -> World:
    """A world whose release can be served and rehearsed, with one carry."""
    world.list_carries([])
    stage(world)
    world.carry("words", {"vllm/words.py": "WORDS = ('uno',)\n", "docs/clamp.md": "Words.\n"})
    return world
