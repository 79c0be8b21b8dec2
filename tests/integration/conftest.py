"""Fixtures that the tests of several rooms share; `release` is each test file's own."""

from collections.abc import Iterator

import pytest
from http_index import RunningIndex
from store_servers import s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of an S3 server with the bucket ``wheels``, where each test has a folder of its own."""
    with s3_server() as address:
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
