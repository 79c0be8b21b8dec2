"""Trees of upstream's that another machine has named: they stand for the index, by release and digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.config import Model
from sparkwright.base.errors import NotInStoreError
from sparkwright.lock import Lock
from sparkwright.upstream.releases import Pristine
from sparkwright.upstream.source import UpstreamSource


class GivenTree(Model, frozen=True):
    """A tree of upstream's in the repository of the store.

    Attributes:
        tree: its git id.
        sha256: digest of the sdist that it was asked for by; empty if it was asked for by version alone.
        pinned: it is what the source has for the lock, and not what the index has for the release.
        origin: where it came from, in words.
        verified: it is what the lock names, by digest or commit id.
    """

    version: str
    tree: str
    sha256: str = ""
    pinned: bool = False
    origin: str = ""
    verified: bool = True


@dataclass(frozen=True)
class GivenSource:
    """A source that has the trees *given*, and wheels from *wheels*."""

    given: tuple[GivenTree, ...]
    wheels: UpstreamSource

    def pristine(self, lock: Lock) -> Pristine:
        """Return the tree that was given for the pin.

        Raises:
            NotInStoreError: none was.
        """
        found = self.known(lock)
        if found is None:
            raise _not_given(f"the tree of the pin, {lock.release.version},")
        return found

    def known(self, lock: Lock) -> Pristine | None:
        """Return the tree that was given for the pin, or `None`."""
        for one in self.given:
            if one.pinned and one.version == lock.release.version:
                return Pristine(one.tree, None, one.origin, verified=one.verified)
        return None

    def commit(self, commit: str, git: str) -> Pristine:
        """Refuse: commits are not given.

        Raises:
            NotInStoreError: always.
        """
        del git
        raise _not_given(f"commit {commit}")

    def release(self, version: str, *, sha256: str | None = None) -> Pristine:
        """Return the tree that was given for a release.

        Raises:
            NotInStoreError: none was.
        """
        for one in self.given:
            if not one.pinned and one.version == version and one.sha256 == (sha256 or ""):
                return Pristine(one.tree, None, one.origin, verified=one.verified)
        raise _not_given(f"release {version}")

    def wheel(self, lock: Lock, machine: str) -> Path:
        """Return upstream's wheel from where wheels come from."""
        return self.wheels.wheel(lock, machine)


def _not_given(what: str) -> NotInStoreError:
    return NotInStoreError(
        f"{what} is not here",
        because="the machine that asks did not send it",
        next_step="run the command there without --cluster",
    )
