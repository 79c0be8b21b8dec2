"""An index on this machine that serves one file."""

import pytest
from http_index import DATA, NAME, RunningIndex

from sparkwright.lock.model import Artifact


@pytest.fixture
def index():
    with RunningIndex() as running:
        running.add(NAME, DATA)
        yield running


@pytest.fixture
def artifact(index):
    return Artifact(filename=NAME, sha256=index.digests[NAME], size=len(DATA))
