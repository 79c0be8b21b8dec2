"""Fixtures: an index that serves packages, and access to it with a store of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from http_index import RunningIndex
from upstream_kit import make_access

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from http_index import Index

    from sparkwright.upstream import Access


@pytest.fixture
def index() -> Iterator[Index]:
    with RunningIndex() as running:
        yield running


@pytest.fixture
def access(tmp_path: Path, index: Index) -> Iterator[Access]:
    opened = make_access(tmp_path / "home", index.url)
    yield opened
    opened.repository.close()
