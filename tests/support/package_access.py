"""Fixtures: an index that serves packages, and access to it with a store of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from http_index import Index, RunningIndex
from upstream_kit import make_access

from sparkwright.upstream.releases import Access


@pytest.fixture
def index() -> Iterator[Index]:
    with RunningIndex() as running:
        yield running


@pytest.fixture
def access(tmp_path: Path, index: Index) -> Iterator[Access]:
    opened = make_access(tmp_path / "home", index.url)
    yield opened
    opened.repository.close()
