"""Fixtures that the tests of several rooms share; `release` is each test file's own."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import target_kit
from http_index import RunningIndex


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Start each server for targets when the first test asks for it; each test has its own folder there."""
    starts = {"s3": target_kit.s3_server}
    running: dict[str, str] = {}
    with contextlib.ExitStack() as stack:

        def address(kind: str) -> str:
            if kind not in running:
                running[kind] = stack.enter_context(starts[kind](tmp_path_factory.mktemp(kind)))
            return running[kind]

        yield address


@pytest.fixture
def lock(release):
    return release.lock


@pytest.fixture
def index(release):
    with RunningIndex() as running:
        for name, data in release.files.items():
            running.add(name, data)
        yield running
