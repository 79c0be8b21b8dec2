"""A channel beside a stand-in for a forge, whose pages are the folder that the channel is published to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from channel_kit import ChannelWorld
from forge import Forge, forge


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    made = ChannelWorld(tmp_path)
    made.published.mkdir()
    return made


@pytest.fixture
def hub(world: ChannelWorld) -> Iterator[Forge]:
    with forge(world.folder / "forge", world.published) as made:
        yield made
