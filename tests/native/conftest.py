"""One native wheel for all tests here: made by the command line, as a user makes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from native import wheel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """A copy of what a wheel is made from, to be edited."""
    from edits import copy_checkout

    copied = tmp_path_factory.mktemp("checkout")
    copy_checkout(ROOT, copied)
    return copied


@pytest.fixture(scope="session")
def made(root):
    """The wheel, every kernel compiled for the pin's card where the store has it not yet."""
    return wheel(root)
