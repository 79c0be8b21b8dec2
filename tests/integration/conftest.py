"""Fixtures that the tests of several rooms share; `release` is each test file's own."""

from __future__ import annotations

import pytest
from http_index import RunningIndex


@pytest.fixture
def lock(release):
    return release.lock


@pytest.fixture
def index(release):
    with RunningIndex() as running:
        for name, data in release.files.items():
            running.add(name, data)
        yield running
