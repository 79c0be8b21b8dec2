"""A web server with WebDAV (RFC 4918) as a target, such as nginx.

nginx ignores ``If-Match`` on writes, so pointers are replaced under a lock. The lock of a pointer is a folder
with one file, its owner: prepared under a name of its own, then moved to the common name, which fails where
such a folder is (``rename(2)`` replaces no folder that has content). A lock may be taken over once its owner
file is older than `WebdavTarget.lease_s` by the server's own clock: the folder is moved to a name that
contains the owner's token, so that of several publishers one takes it over, and none moves a lock that it did
not judge. A holder writes the pointer only in the first half of its lease.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import time
import uuid
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

import msgspec

from sparkwright.base.config import Model, decode_json
from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import LostRaceError, UploadError
from sparkwright.base.events import emit
from sparkwright.publish.target import StoredStat, checked_path
from sparkwright.publish.targets.verified import (
    beside,
    is_hidden,
    note_path,
    noted_digest,
    other_bytes,
    put_verified,
    require_digest,
)
from sparkwright.publish.targets.web import WebTarget

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkwright.upstream.settings import IndexSettings

_FORBIDDEN, _NOT_FOUND, _NOT_ALLOWED, _CONFLICT, _PRECONDITION = 403, 404, 405, 409, 412
_ABSENT = frozenset({_NOT_FOUND, _CONFLICT})
_POLL_S = 0.2


class LockOwner(Model, frozen=True):
    """The owner of a pointer's lock.

    Attributes:
        token: unique to one lock.
        who: host and process, for people.
    """

    token: str
    who: str


@dataclass(frozen=True)
class WebdavTarget(WebTarget):
    """Files below an address that WebDAV writes; the tag of a file is its SHA-256.

    Attributes:
        lease_s: age in seconds from which a pointer's lock may be taken over.
    """

    lease_s: float = 120.0

    def stat(self, path: str) -> StoredStat | None:
        """See `Target.stat`; reads the whole file where no note of its digest is valid."""
        found = self.fingerprint(path)
        if found is None:
            return None
        return StoredStat(found.size, noted_digest(self, path, found) or self.digest(path))

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """See `Target.put_file`; a file that was cut off is sent again from its start."""
        put_verified(self, checked_path(path), file, sha256)

    def upload(self, path: str, file: Path, sha256: str) -> None:
        """Send *file* under a hidden name, read it back, and move it to *path*."""
        staged = beside(path, f"{uuid.uuid4().hex}.upload")
        self._make_folders(path)
        self.ask("PUT", staged, body=lambda: file.open("rb"))
        if (actual := self.digest(staged)) != sha256:
            self._delete(staged)
            raise other_bytes(self.url(path), actual, sha256)
        if not self._move(staged, path, overwrite=False):
            # Another publisher put the file there meanwhile.
            self._delete(staged)
            require_digest(path, self.digest(path), sha256)

    def overwrite(self, path: str, data: bytes) -> None:
        """Write *data* under a hidden name, then move it to *path*."""
        self._make_folders(path)
        staged = beside(path, f"{uuid.uuid4().hex}.upload")
        self.ask("PUT", staged, body=lambda: data)
        self._move(staged, path, overwrite=True)

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """See `Target.replace`; under a lock, since not every server writes conditionally."""
        self._make_folders(checked_path(path))
        staged = beside(path, f"{uuid.uuid4().hex}.upload")
        try:
            with self._locked(path) as deadline:
                self._replace_locked(path, staged, data, expected, deadline)
        except BaseException:
            with contextlib.suppress(UploadError):
                self._delete(staged)
            raise
        return sha256_bytes(data)

    def _replace_locked(
        self, path: str, staged: str, data: bytes, expected: str | None, deadline: float
    ) -> None:
        found = self.read(path)
        if (found.tag if found else None) != expected:
            raise self._lost(path, "another publisher wrote it first")
        self.ask("PUT", staged, body=lambda: data)
        require_digest(staged, self.digest(staged), sha256_bytes(data))
        if time.monotonic() > deadline:
            raise self._lost(path, f"its lock was held for more than {self.lease_s / 2:.0f} s")
        # Once, and with a time-out inside the lease: a late repetition could undo another publisher's write.
        hasty = replace(self.settings, attempts=1, timeout_s=min(self.settings.timeout_s, self.lease_s / 4))
        try:
            moved = self._move(staged, path, overwrite=True, settings=hasty)
        except UploadError:
            # Only the answer may have been lost.
            if self.digest(path) != sha256_bytes(data):
                raise
            moved = True
        if not moved:
            raise self._lost(path, f"{staged} disappeared")

    def list(self, prefix: str) -> list[str]:
        """See `Target.list`; hidden files are left out."""
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Target.sizes`."""
        return dict(self._walk(checked_path(prefix.rstrip("/")) + "/" if prefix else ""))

    def remove(self, path: str) -> None:
        """See `Target.remove`; its folder stays, as another publisher may be about to write into it."""
        self._delete(note_path(checked_path(path)))
        self._delete(path)

    # Files and folders ------------------------------------------------------------------------------------

    def _walk(self, folder: str) -> Iterator[tuple[str, int]]:
        response = self.ask("PROPFIND", folder, accept={_NOT_FOUND, _NOT_ALLOWED}, headers={"Depth": "1"})
        if response.status_code == _NOT_FOUND:
            return
        if response.status_code == _NOT_ALLOWED:
            raise UploadError(
                f"the files below {self.url(folder)} were not listed",
                because="the server does not answer PROPFIND",
                next_step="load nginx's dav-ext module; docs/publishing-targets.md shows its configuration",
            )
        root = urlsplit(self.base + "/").path
        # libexpat limits the expansion of entities since 2.4.1.
        for found in ET.fromstring(response.content).iter("{DAV:}response"):  # noqa: S314
            path = unquote(urlsplit(found.findtext("{DAV:}href", "")).path).removeprefix(unquote(root))
            if not path.startswith(folder) or path == folder or is_hidden(path.rstrip("/")):
                continue
            if path.endswith("/"):
                yield from self._walk(path)
            else:
                yield path, int(found.findtext(".//{DAV:}getcontentlength") or 0)

    def _make_folders(self, path: str) -> None:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth]) + "/"
            if folder not in self._made:
                # "Not allowed" says that it is there; of two at once, Apache forbids the second.
                if self.ask("MKCOL", folder, accept={_NOT_ALLOWED, _FORBIDDEN}).status_code == _FORBIDDEN:
                    self.ask("MKCOL", folder, accept={_NOT_ALLOWED})
                self._made.add(folder)

    @functools.cached_property
    def _made(self) -> set[str]:
        return set()

    def _move(
        self, source: str, target: str, *, overwrite: bool, settings: IndexSettings | None = None
    ) -> bool:
        """Move a file or folder; return if that was done, not if *target* is there or *source* is not."""
        headers = {"Destination": self.url(target), "Overwrite": "T" if overwrite else "F"}
        response = self.ask(
            "MOVE", source, accept={*_ABSENT, _PRECONDITION}, headers=headers, settings=settings
        )
        return bool(response.ok)

    def _delete(self, path: str) -> None:
        self.ask("DELETE", path, accept=_ABSENT)

    def _lost(self, path: str, because: str) -> LostRaceError:
        return LostRaceError(
            f"{path} was not replaced",
            because=f"{because}, at {self.base}",
            next_step="run the same command again: it starts from what the other one published",
        )

    # Locks of pointers -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self, path: str) -> Iterator[float]:
        """Hold the lock of the pointer at *path*; give the monotonic time until which it may be written."""
        owner = LockOwner(token=uuid.uuid4().hex, who=f"{platform.node()}:{os.getpid()}")
        lock, mine = beside(path, "lock") + "/", _lock_of(path, owner.token)
        deadline = self._acquire(path, lock, mine, owner) + self.lease_s / 2
        try:
            yield deadline
        finally:
            with contextlib.suppress(UploadError):
                # Where the lock was taken over, *mine* is there, and so the other's lock is not moved. In the
                # second half of the lease *mine* has to stay, for those who may be about to take it over.
                if self._move(lock, mine, overwrite=False) and time.monotonic() < deadline:
                    self._delete(mine)

    def _acquire(self, path: str, lock: str, mine: str, owner: LockOwner) -> float:
        """Wait for the lock and take it; return a monotonic time at which it was not yet taken.

        Raises:
            LostRaceError: others held it for longer than two leases.
        """
        patience = time.monotonic() + 2 * self.lease_s
        while time.monotonic() < patience:
            held = self._holder(lock)
            if held is None:
                began = time.monotonic()
                self.ask("MKCOL", mine, accept={_NOT_ALLOWED})
                self.ask("PUT", mine + "owner", body=lambda: msgspec.json.encode(owner))
                if self._move(mine, lock, overwrite=False) or self._is_held_by(lock, owner):
                    return began
                self._delete(mine)
            elif held[1] > self.lease_s:
                emit("publish.lock-taken-over", path=path, owner=held[0].who, age_s=held[1])
                self._move(lock, _lock_of(path, held[0].token), overwrite=False)
            else:
                time.sleep(_POLL_S)
        raise self._lost(path, "other publishers kept its lock")

    def _holder(self, lock: str) -> tuple[LockOwner, float] | None:
        """Return the owner of *lock* and its age in seconds by the server's clock, `None` if it is free."""
        response = self.ask("GET", lock + "owner", accept={_NOT_FOUND})
        if response.status_code == _NOT_FOUND:
            return None
        try:
            owner = decode_json(response.content, LockOwner)
            times = [parsedate_to_datetime(response.headers[name]) for name in ("Date", "Last-Modified")]
        except (msgspec.MsgspecError, KeyError, ValueError) as error:
            raise UploadError(
                f"the lock {self.url(lock)} cannot be judged",
                because="its owner file is damaged, or the server states no Date and Last-Modified",
                next_step="remove that folder if no other publisher runs",
            ) from error
        return owner, (times[0] - times[1]).total_seconds()

    def _is_held_by(self, lock: str, owner: LockOwner) -> bool:
        """Return if the lock is *owner*'s: the answer to a successful move may have been lost."""
        held = self._holder(lock)
        return held is not None and held[0].token == owner.token


def _lock_of(path: str, token: str) -> str:
    """Return the folder for the lock of *path* of the owner with *token*, before and after it is the lock."""
    return beside(path, f"lock-{token}") + "/"
