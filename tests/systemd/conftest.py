"""A container with systemd, and a service in it. Run by ``make test-systemd``, as root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from nspawn_kit import Container, lacking, rootfs

ROOTFS = Path(os.environ.get("SPARKWRIGHT_ROOTFS") or Path.home() / ".cache" / "sparkwright-rootfs")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that everyone in the container may read, as `SHARED`."""
    folder = tmp_path_factory.mktemp("shared")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def seen() -> tuple[Path, ...]:
    """Further folders that the container sees at their own paths."""
    return ()


@pytest.fixture(scope="module")
def container(
    shared: Path, seen: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    """A booted container of this module."""
    if why := lacking():
        pytest.skip(why)
    made = Container(tmp_path_factory.mktemp("container"), rootfs(ROOTFS), shared, seen)
    made.mount()
    try:
        made.boot()
        yield made
    finally:
        made.remove()
