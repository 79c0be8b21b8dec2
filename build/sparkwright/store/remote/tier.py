"""The remote tier: read on a local miss, written behind the work, never in its way.

Every file is hashed before it enters the local store, and every record is held against its key and its
writer's signature. Whatever the server does, the caller gets a good result or none.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict, dataclass, field
from hashlib import sha256 as new_sha256
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from sparkwright.base.errors import StorageError
from sparkwright.base.events import emit, warn
from sparkwright.store.remote.backend import RemoteFailure, TransferProgress
from sparkwright.store.remote.entries import (
    MOST_ENTRY_BYTES,
    TRAVELLING,
    Believed,
    RefusedEntryError,
    decode_entry,
    place_of,
)
from sparkwright.store.remote.keys import WriterKey, by_id, find_key, require_key, require_signatures
from sparkwright.store.remote.outbox import FILE, Item, Outbox
from sparkwright.store.remote.watch import Breaker, watched
from sparkwright.store.remote.writing import Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkwright.store.paths import Store
    from sparkwright.store.remote.backend import RemoteBackend
    from sparkwright.store.remote.settings import RemoteSettings

T = TypeVar("T")

_SOON_S = 1.0


@dataclass
class RemoteCounts:
    """Counts of what one command read from the remote tier and wrote there.

    Attributes:
        hits: files and records that came from there.
        misses: those that are not there.
        refused: those that were not what was asked for, or of unknown writers.
        bytes_read: bytes of the hits.
        written: files and records written.
        bytes_written: their bytes.
    """

    hits: int = 0
    misses: int = 0
    refused: int = 0
    bytes_read: int = 0
    written: int = 0
    bytes_written: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **amounts: int) -> None:
        """Add *amounts* to the counts of these names."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)


@dataclass(frozen=True)
class RemoteReport:
    """The remote tier's part in a command, for people and for JSON.

    Attributes:
        url: its address, without credentials.
        hits, misses, refused, bytes_read, written, bytes_written: see `RemoteCounts`.
        waiting: files and records that wait for a later command.
        stopped: why it was left alone for the rest of the command; empty if it was not.
    """

    url: str
    hits: int
    misses: int
    refused: int
    bytes_read: int
    written: int
    bytes_written: int
    waiting: int
    stopped: str

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON-ready values, keys in kebab case."""
        return {name.replace("_", "-"): value for name, value in asdict(self).items()}


def open_remote(settings: RemoteSettings) -> RemoteTier:
    """Return the remote tier of *settings*; no connection is made before something is asked.

    Raises:
        ToolError: a library that it needs is not installed.
        ConfigError: a key cannot be used.
    """
    if urlsplit(settings.url).scheme == "s3":
        from sparkwright.store.remote.s3 import S3Backend

        return RemoteTier(settings, S3Backend(settings))
    from sparkwright.store.remote.http import HttpBackend

    return RemoteTier(settings, HttpBackend(settings))


class RemoteTier:
    """A server that shares results and downloads between machines."""

    def __init__(self, settings: RemoteSettings, backend: RemoteBackend) -> None:
        self.settings = settings
        self.counts = RemoteCounts()
        limits = settings.limits
        self.reading = Breaker(
            f"reading from the remote store {settings.url}", limits.failures, limits.patience_s
        )
        self.backend = backend
        self._absent: set[str] = set()
        self._records: dict[str, bytes] = {}
        self._told: set[str] = set()
        self._late = False
        self._active = 0
        self._lock = threading.Lock()
        signer = None
        self.believed = Believed(None)
        if settings.signed:
            require_signatures()
            signer = require_key(settings.key_file) if settings.write else find_key(settings.key_file)
            known = [WriterKey.parse(text) for text in settings.writers.values()]
            self.believed = Believed(by_id([*known, *([signer.public] if signer else [])]))
        self.writer = Writer(settings, backend, signer, self.counts)

    # Reading -----------------------------------------------------------------------------

    def fetch_file(
        self, store: Store, sha256: str, size: int | None = None, *, fresh: bool = False
    ) -> Path | None:
        """Return the file with that digest, brought into *store*; `None` where it cannot be had.

        Args:
            store: receives it.
            sha256: the digest.
            size: the size that it should have, where known.
            fresh: true to ask again, though this command has asked before.
        """
        if fresh:
            self._absent.discard(f"cas/{sha256}")
        most = self.settings.limits.most_bytes if size is None else size
        try:
            with store.scratch() as scratch:
                path = scratch / sha256
                count = self._ask(f"cas/{sha256}", lambda transfer: self._into(path, sha256, most, transfer))
                if count is None:
                    return None
                found = store.adopt_file(path, sha256, verified=True)
        except StorageError as error:
            # The build needs the disk too, and says so itself where it cannot do without.
            self.reading.open(str(error))
            return None
        self.counts.add(hits=1, bytes_read=count)
        return found

    def fetch_record(self, kind: str, key: str, *, fresh: bool = False) -> bytes | None:
        """Return the record of *kind* and *key* as JSON text; `None` where there is none that counts.

        Args:
            kind: the kind.
            key: the digest of all inputs.
            fresh: true to ask again, though this command has asked before.
        """
        if kind not in TRAVELLING:
            return None
        place = place_of(kind, key)
        if fresh:
            self._records.pop(place, None)
            self._absent.discard(place)
        if place in self._records:
            return self._records[place]
        body = self._ask(place, lambda transfer: self._entry(place, transfer))
        if body is None:
            return None
        try:
            record = decode_entry(body, kind, key, self.believed)
        except RefusedEntryError as error:
            self._refuse(place, str(error), error.writer)
            return None
        self.counts.add(hits=1, bytes_read=len(body))
        self._records[place] = record
        return record

    def _into(self, path: Path, sha256: str, most: int, transfer: TransferProgress) -> int | None:
        """Write the file of that digest to *path*; return its size, or `None` where the server has none."""
        digest = new_sha256()
        with path.open("wb") as stream:

            def take(data: bytes) -> None:
                if transfer.count > most:
                    raise _OtherContentError(f"it has more than {most:,} bytes")
                digest.update(data)
                stream.write(data)

            if not self.backend.get(f"cas/{sha256}", take, transfer):
                return None
            stream.flush()
            os.fsync(stream.fileno())  # a record that names it may be synced
        if digest.hexdigest() != sha256:
            raise _OtherContentError(f"its SHA-256 is {digest.hexdigest()}")
        return transfer.count

    def _entry(self, place: str, transfer: TransferProgress) -> bytes | None:
        pieces: list[bytes] = []

        def take(data: bytes) -> None:
            if transfer.count > MOST_ENTRY_BYTES:
                raise _OtherContentError(f"it has more than {MOST_ENTRY_BYTES:,} bytes")
            pieces.append(data)

        return b"".join(pieces) if self.backend.get(place, take, transfer) else None

    def _ask(self, place: str, call: Callable[[TransferProgress], T | None]) -> T | None:
        """Return what *call* gets from *place*; `None` for what is not there or is not as it should be."""
        if not self.reading.closed or place in self._absent:
            return None
        with self._lock:
            self._active += 1
        began = time.monotonic()
        found: T | None = None
        try:
            found = self._twice(call)
        except _OtherContentError as error:
            self._refuse(place, str(error))
            self.reading.fail(RemoteFailure(f"it sent something else than what was asked for: {error}"))
        except RemoteFailure as failure:
            self.reading.fail(failure)
        else:
            self.reading.succeeded()
            if found is None:
                self.counts.add(misses=1)
        finally:
            with self._lock:
                among, self._active = self._active, self._active - 1
        if found is None:
            self._absent.add(place)
            self.reading.spend((time.monotonic() - began) / among)
        return found

    def _twice(self, call: Callable[[TransferProgress], T | None]) -> T | None:
        """Return what *call* gets, at the second attempt where the first one failed at once."""
        began = time.monotonic()
        try:
            return watched(call, self.settings.limits)
        except RemoteFailure as failure:
            if failure.final or time.monotonic() - began > _SOON_S:
                raise
        time.sleep(_SOON_S / 5)
        return watched(call, self.settings.limits)

    def _refuse(self, place: str, why: str, writer: str = "") -> None:
        """Count what the server sent as refused; warn once for each unknown writer, once of other faults."""
        self.counts.add(refused=1)
        emit("store.remote.refused", place=place, because=why, writer=writer)
        if not writer:
            self.writer.replace(place)  # what is made here instead takes its place
        with self._lock:
            told = writer in self._told
            self._told.add(writer)
        if told:
            return
        shown = writer[:16] if writer.isalnum() else "?"
        if writer:
            of = "without a signature" if writer == "unsigned" else f"of the writer {shown}"
            warn(
                f"records {of} in the remote store do not count: {why} "
                "(docs/many-machines.md, 'Who is believed')",
                writer=shown,
            )
        else:
            warn(f"the remote store sent something that is not used ({place[:20]}…: {why})", place=place)

    # Writing -----------------------------------------------------------------------------

    def offer_record(self, store: Store, kind: str, key: str) -> None:
        """Have the record of *kind* and *key* in *store*, and the files that it names, written in time."""
        if kind in TRAVELLING:
            self.writer.offer(store, Item(kind, key))

    def offer_file(self, store: Store, sha256: str) -> None:
        """Have the file with that digest in *store* written in time."""
        self.writer.offer(store, Item(FILE, sha256))

    def push(self, store: Store) -> RemoteReport:
        """Write every record of *store* that travels and the files that it names, however long that takes."""
        for kind in sorted(TRAVELLING):
            for path in sorted((store.records / kind).glob("*/*.json")):
                self.offer_record(store, kind, path.stem)
        report, before = self.finish(store, limit_s=float("inf")), -1
        while report.waiting not in {0, before} and not report.stopped:  # more than the queue holds
            report, before = self.finish(store, limit_s=float("inf")), report.waiting
        return report

    def finish(self, store: Store, *, limit_s: float | None = None) -> RemoteReport:
        """Wait until everything is written, for some time; return what the tier did so far.

        What is not written by then goes on being written, and waits in *store* for the next command.

        Args:
            store: holds what is to be written.
            limit_s: longest wait, in seconds; that of the settings by default.
        """
        limit_s = self.settings.limits.flush_s if limit_s is None else limit_s
        self._late = not self.writer.flush(store, limit_s)
        return self.report(store)

    def close(self, store: Store, *, wait: bool = True) -> None:
        """End writing, after a last `finish` unless an earlier one was in vain, or not to *wait* at all."""
        if wait and not self._late and not self.writer.stopped:
            self.finish(store)
        self.writer.stop()

    def report(self, store: Store) -> RemoteReport:
        """Return what the tier did so far."""
        counts = self.counts
        return RemoteReport(
            url=self.settings.url,
            hits=counts.hits,
            misses=counts.misses,
            refused=counts.refused,
            bytes_read=counts.bytes_read,
            written=counts.written,
            bytes_written=counts.bytes_written,
            waiting=sum(1 for _ in Outbox.of(store.home, self.settings.url).items()),
            stopped=self.reading.reason or self.writer.breaker.reason,
        )


class _OtherContentError(Exception):
    """The server sent an object that is not what was asked for."""
