"""The remote tier: read on a local miss, and written as soon as something is made.

Every file is hashed before it enters the local store, and every record is held against its key and its
writer's signature. Whatever the server does, the caller gets a good result or none. The first request that
fails ends reading, or writing, for the rest of the command.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import TypeVar

from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.base.events import emit, warn
from sparkwright.store.remote.client import (
    OtherContentError,
    RemoteClient,
    RemoteFailure,
    RemoteSettings,
    read_remote_settings,
)
from sparkwright.store.remote.entries import (
    MOST_ENTRY_BYTES,
    NAMING_FILES,
    TRAVELLING,
    RefusedEntryError,
    WriterKey,
    decode_entry,
    encode_entry,
    find_key,
    place_of,
    public_of,
    require_key,
)

T = TypeVar("T")

_PROBE = b"sparkwright store status\n"
_DIGEST = re.compile(rb'"sha256": ?"([0-9a-f]{64})"')
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass
class RemoteReport:
    """The remote tier's part in a command: files and records, for people and for JSON.

    Attributes:
        refused: those that were not what was asked for, or of unknown writers.
        stopped: why it was left alone for the rest of the command; empty if it was not.
    """

    url: str
    hits: int = 0
    misses: int = 0
    refused: int = 0
    bytes_read: int = 0
    written: int = 0
    bytes_written: int = 0
    stopped: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON-ready values, keys in kebab case."""
        return {name.replace("_", "-"): value for name, value in asdict(self).items()}


class RemoteTier:
    """A server that shares results and downloads between machines."""

    def __init__(self, settings: RemoteSettings) -> None:
        self.settings = settings
        self.client = RemoteClient(settings)
        self.report = RemoteReport(settings.url)
        self._signer = require_key(settings.key_file) if settings.write else find_key(settings.key_file)
        known = [WriterKey.parse(text, writer) for writer, text in settings.writers.items()]
        known += [public_of(self._signer)] if self._signer else []
        self.writers: Mapping[str, WriterKey] = {one.id: one for one in known}
        self._stopped: dict[str, str] = {}
        self._known: dict[str, bytes | None] = {}
        self._there: set[str] = set()
        self._wrong: set[str] = set()
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def fetch_file(self, sha256: str, path: Path, size: int | None = None, *, fresh: bool = False) -> bool:
        """Write the file with that digest to *path*; return false where it cannot be had.

        See `Store.find_file`.
        """
        most = self.settings.limits.most_bytes if size is None else size
        count = self._ask(f"cas/{sha256}", lambda: self._into(path, sha256, most), fresh=fresh)
        if count is not None:
            self._count(hits=1, bytes_read=count)
        return count is not None

    def stop_reading(self, why: str) -> None:
        """Read nothing more in this command."""
        self._stop("reading from", why)

    def fetch_record(self, kind: str, key: str, *, fresh: bool = False) -> bytes | None:
        """Return the record of *kind* and *key* as JSON text; `None` where there is none that counts.

        With *fresh* it is asked for again, though this command has asked before.
        """
        if kind not in TRAVELLING:
            return None
        place = place_of(kind, key)
        if not fresh and self._known.get(place) is not None:
            return self._known[place]
        body = self._ask(place, lambda: self._entry(place), fresh=fresh)
        if body is None:
            return None
        try:
            record = decode_entry(body, kind, key, self.writers)
        except RefusedEntryError as error:
            self._refuse(place, str(error), error.writer)
            return None
        self._count(hits=1, bytes_read=len(body))
        self._known[place] = record
        return record

    def _into(self, path: Path, sha256: str, most: int) -> int | None:
        """Write the file of that digest to *path*; return its size, or `None` where the server has none."""
        digest, count = new_sha256(), 0
        with path.open("wb") as stream:

            def take(data: bytes) -> None:
                nonlocal count
                count += len(data)
                if count > most:
                    raise OtherContentError(f"it has more than {most:,} bytes")
                digest.update(data)
                stream.write(data)

            if not self.client.get(f"cas/{sha256}", take):
                return None
            stream.flush()
            os.fsync(stream.fileno())  # a record that names it may be synced
        if digest.hexdigest() != sha256:
            raise OtherContentError(f"its SHA-256 is {digest.hexdigest()}")
        return count

    def _entry(self, place: str) -> bytes | None:
        body = bytearray()

        def take(data: bytes) -> None:
            body.extend(data)
            if len(body) > MOST_ENTRY_BYTES:
                raise OtherContentError(f"it has more than {MOST_ENTRY_BYTES:,} bytes")

        return bytes(body) if self.client.get(place, take) else None

    def _ask(self, place: str, call: Callable[[], T | None], *, fresh: bool) -> T | None:
        """Return what *call* gets from *place*; `None` for what is not there or is not as it should be."""
        if "reading from" in self._stopped or (place in self._known and not fresh):
            return None
        found: T | None = None
        try:
            found = call()
            if found is None:
                self._count(misses=1)
        except OtherContentError as error:
            self._refuse(place, str(error))
        except RemoteFailure as failure:
            self._stop("reading from", str(failure))
        if found is None:  # and no sooner: other threads may wait for the same
            self._known[place] = None
        return found

    def _refuse(self, place: str, why: str, writer: str = "") -> None:
        """Count what the server sent as refused; warn once for each unknown writer, once of other faults."""
        self._count(refused=1)
        emit("store.remote.refused", place=place, because=why, writer=writer)
        if not writer:
            self._wrong.add(place)  # what is made here instead takes its place
        with self._lock:
            told = writer in self._told
            self._told.add(writer)
        if told:
            return
        shown = writer[:16] if writer.isalnum() else "?"
        if writer:
            of = "without a signature" if writer == "unsigned" else f"of the writer {shown}"
            warn(
                f"records {of} in the remote store do not count: {why} (docs/store.md, 'Who is believed')",
                writer=shown,
            )
        else:
            warn(f"the remote store sent something that is not used ({place[:20]}…: {why})", place=place)

    def write_record(self, kind: str, key: str, record: bytes, file_path: Callable[[str], Path]) -> None:
        """Write the *record* of *kind* and *key*, if it travels, after the files that it names.

        *file_path* returns where the file of a digest is in the local store, if it is there.
        """
        if kind not in TRAVELLING or not self._writing or not _KEY.fullmatch(key) or self._signer is None:
            return
        if kind in NAMING_FILES:
            for digest in map(bytes.decode, dict.fromkeys(_DIGEST.findall(record))):
                self.write_file(digest, file_path(digest))
        entry = encode_entry(kind, key, record, self._signer)
        if len(entry) <= MOST_ENTRY_BYTES:
            self._put(place_of(kind, key), entry)

    def write_file(self, sha256: str, path: Path) -> None:
        """Write the file at *path*, if it is there undamaged and the server has none of that digest."""
        place = f"cas/{sha256}"
        if not self._writing or place in self._there or not path.is_file():
            return
        if path.stat().st_size > self.settings.limits.most_bytes:
            return
        try:
            there = place not in self._wrong and self.client.has(place)
        except RemoteFailure as failure:
            self._stop("writing to", str(failure))
            return
        if there or (sha256_file(path) == sha256 and self._put(place, path)):
            self._there.add(place)

    @property
    def _writing(self) -> bool:
        return self.settings.write and "writing to" not in self._stopped

    def _put(self, place: str, content: bytes | Path) -> bool:
        """Write *content* to *place*; return if that was done."""
        if not self._writing:
            return False
        try:
            self.client.put(place, content)
        except RemoteFailure as failure:
            if failure.object_only:
                emit("store.remote.failure", place=place, because=str(failure))
            else:
                self._stop("writing to", str(failure))
            return False
        self._wrong.discard(place)
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        self._count(written=1, bytes_written=size)
        return True

    def _count(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.report, name, getattr(self.report, name) + amount)

    def _stop(self, what: str, why: str) -> None:
        """Ask nothing more of that kind for the rest of the command, and say so once."""
        with self._lock:
            if what in self._stopped:
                return
            self._stopped[what] = why
            self.report.stopped = self.report.stopped or why
        warn(f"{what} the remote store {self.settings.url} stops for the rest of this command: {why}")

    def examine(self) -> dict[str, object]:
        """Return the state of the server: can it be read and written, and does it return what it was given.

        A small object is looked for, written where that is allowed, and read. ``read`` and ``write`` are
        ``yes``, ``off`` by the settings, or why it cannot be done.
        """
        place, settings = f"cas/{sha256_bytes(_PROBE)}", self.settings
        there, read = self._tried(place)
        write = read if settings.write else "off"
        if settings.write and read == "yes":
            try:
                self.client.put(place, _PROBE)
                there, read = self._tried(place)
                if read == "yes" and there != _PROBE:
                    read = "it does not give back what was written"
            except RemoteFailure as failure:
                write = str(failure)
        names = {text: name for name, text in settings.writers.items()}
        return {
            "remote": settings.url,
            "read": read,
            "write": write,
            "writers": [f"{names.get(key.text, 'this machine')} {key.id}" for key in self.writers.values()],
        }

    def _tried(self, place: str) -> tuple[bytes | None, str]:
        """Return what is at *place*, and ``yes`` or why that cannot be read."""
        try:
            return self._entry(place), "yes"
        except RemoteFailure as failure:
            return None, str(failure)


def open_tier(url: str = "") -> RemoteTier | None:
    """Return the tier that the user configured, or that of *url*; `None` without any."""
    settings = read_remote_settings(url)
    return None if settings is None else RemoteTier(settings)
