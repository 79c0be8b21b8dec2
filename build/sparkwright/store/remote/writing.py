"""Write behind: a few threads bring new results to the remote tier while the work goes on."""

from __future__ import annotations

import queue
import re
import threading
import time
from contextvars import copy_context
from typing import TYPE_CHECKING

from sparkwright.base.digests import sha256_file
from sparkwright.base.events import emit, task
from sparkwright.store.remote.backend import RemoteFailure, TransferProgress
from sparkwright.store.remote.entries import MOST_ENTRY_BYTES, NAMING_FILES, encode_entry, place_of
from sparkwright.store.remote.outbox import FILE, Item, Outbox
from sparkwright.store.remote.watch import Breaker

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.store.paths import Store
    from sparkwright.store.remote.backend import RemoteBackend
    from sparkwright.store.remote.keys import MachineKey
    from sparkwright.store.remote.settings import RemoteSettings
    from sparkwright.store.remote.tier import RemoteCounts

_THREADS = 4
_MOST_QUEUED = 10_000
_LOOK_S = 0.05
_DIGEST = re.compile(rb'"sha256": ?"([0-9a-f]{64})"')


class Writer:
    """Writes items of the outbox, a record only after the files that it names."""

    def __init__(
        self,
        settings: RemoteSettings,
        backend: RemoteBackend,
        signer: MachineKey | None,
        counts: RemoteCounts,
    ) -> None:
        limits = settings.limits
        self.breaker = Breaker(f"writing to the remote store {settings.url}", limits.failures, float("inf"))
        self._settings, self._backend, self._signer, self._counts = settings, backend, signer, counts
        self._queue: queue.Queue[tuple[Store, Item]] = queue.Queue(_MOST_QUEUED)
        self._queued: set[Item] = set()
        self._there: set[str] = set()
        self._wrong: set[str] = set()
        self._pending = 0
        self._threads = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()

    @property
    def active(self) -> bool:
        """Tell if anything is written at all."""
        return self._settings.write and self.breaker.closed

    def replace(self, place: str) -> None:
        """Write what belongs at *place* though there is something: that is damaged."""
        with self._lock:
            self._wrong.add(place)
            self._there.discard(place)

    def offer(self, store: Store, item: Item) -> None:
        """Write *item* of *store* soon; where the queue is full, at the end or in the next command."""
        if not self._settings.write:
            return
        try:
            if not Outbox.of(store.home, self._settings.url).add(item):
                return
        except OSError:  # the disk is full: the build will say so, and the item can be pushed later
            return
        self._enqueue(store, item)

    @property
    def stopped(self) -> bool:
        """Tell if `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Begin nothing more, and give up what is being written."""
        self._stop.set()

    def flush(self, store: Store, limit_s: float) -> bool:
        """Write what waits in *store*, for *limit_s* seconds at most; return true when nothing is left."""
        if not self.active:
            return True
        deadline = time.monotonic() + limit_s
        for item in Outbox.of(store.home, self._settings.url).items():
            self._enqueue(store, item)
        if not self._pending:
            return True
        total = self._pending
        with task("write to the remote store", total=total, unit="entries") as progress:
            while self._pending and self.breaker.closed and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
                if total - self._pending > progress.done:
                    progress.advance(total - self._pending - progress.done)
        if self._pending and self.breaker.closed:
            emit("store.remote.unfinished", waiting=self._pending)
        return not self._pending

    def _enqueue(self, store: Store, item: Item) -> None:
        with self._lock:
            if item in self._queued or not self.active or self._stop.is_set():
                return
            try:
                self._queue.put_nowait((store, item))
            except queue.Full:
                return
            self._queued.add(item)
            self._pending += 1
            if self._threads < _THREADS:
                self._threads += 1
                # A thread starts without our context, and so without those who listen to events.
                threading.Thread(
                    target=copy_context().run, args=(self._work,), daemon=True, name="remote store, writing"
                ).start()

    def _work(self) -> None:
        while not self._stop.is_set():
            store, item = self._queue.get()
            try:
                if self.active and self._write(store, item):
                    Outbox.of(store.home, self._settings.url).remove(item)
                    self.breaker.succeeded()
            except RemoteFailure as failure:
                if self._stop.is_set():
                    return  # it was given up, and those who listened to events may be gone
                self.breaker.fail(failure)
                if failure.object_only:
                    Outbox.of(store.home, self._settings.url).remove(item)
            except (OSError, ValueError) as error:  # what cannot be read, went meanwhile or is damaged
                if not self._stop.is_set():
                    emit("store.remote.failure", what=self.breaker.what, because=type(error).__name__)
            finally:
                with self._lock:
                    self._queued.discard(item)
                    self._pending -= 1

    def _write(self, store: Store, item: Item) -> bool:
        """Write *item*, unless it is not in *store* any more; return true when nothing is left to do."""
        if item.kind == FILE:
            self._write_file(store, item.key)
            return True
        path = store.record_path(item.kind, item.key)
        if not path.is_file():
            return True
        record = path.read_bytes()
        if item.kind in NAMING_FILES:
            for digest in dict.fromkeys(_DIGEST.findall(record)):
                self._write_file(store, digest.decode())
        entry = encode_entry(item.kind, item.key, record, self._signer)
        if len(entry) <= MOST_ENTRY_BYTES:
            self._put(place_of(item.kind, item.key), entry)
        return True

    def _write_file(self, store: Store, sha256: str) -> None:
        """Write the file with that digest, if *store* has it undamaged and the server has none."""
        place, path = f"cas/{sha256}", store.file_path(sha256)
        if place in self._there or not path.is_file():
            return
        if path.stat().st_size > self._settings.limits.most_bytes:
            return
        if place in self._wrong or not self._backend.has(place):
            if sha256_file(path) != sha256:
                return
            self._put(place, path)
        with self._lock:
            self._there.add(place)
            self._wrong.discard(place)

    def _put(self, place: str, content: bytes | Path) -> None:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        self._backend.put(place, content, TransferProgress(cancelled=self._stop))
        self._counts.add(written=1, bytes_written=size)
