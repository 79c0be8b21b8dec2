"""The entries still to be written to the remote tier: an empty file for each, so that a kill loses none."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.base.digests import sha256_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = "file"
"""The kind of an item that is a file and no record."""

_NAME = re.compile(r"([a-z-]+)\.([0-9a-f]{64})")
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, order=True)
class Item:
    """Something to write: a file by digest, or a record by kind and key."""

    kind: str
    key: str


@dataclass(frozen=True)
class Outbox:
    """The items that wait for one server.

    Attributes:
        folder: their files; made with the first one.
    """

    folder: Path

    @classmethod
    def of(cls, home: Path, url: str) -> Outbox:
        """Return the outbox in the store *home* for the server at *url*."""
        return cls(home / "outbox" / sha256_bytes(url.encode())[:16])

    def add(self, item: Item) -> bool:
        """Note *item*; return false for a key that is no digest, which does not travel."""
        if not _KEY.fullmatch(item.key):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{item.kind}.{item.key}").touch()
        return True

    def remove(self, item: Item) -> None:
        """Forget *item*."""
        with contextlib.suppress(OSError):
            (self.folder / f"{item.kind}.{item.key}").unlink()

    def items(self) -> Iterator[Item]:
        """Yield what waits, in the order of names."""
        names = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        for name in names:
            if found := _NAME.fullmatch(name):
                yield Item(found[1], found[2])
