"""Files of the lock into the store: resumed when interrupted, verified before they are used."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sparkwright.base.digests import copy_hashed
from sparkwright.base.errors import DigestError, FetchError, NotInStoreError, SparkwrightError, StorageError
from sparkwright.base.events import Task, emit, task
from sparkwright.lock.model import Artifact
from sparkwright.store import Store, storing
from sparkwright.upstream.commit_index import locate_in_commit
from sparkwright.upstream.index import IndexFile, local_path, locate, remote_size
from sparkwright.upstream.network import InterruptedFetch, fetch_failed, open_session, retrying
from sparkwright.upstream.settings import IndexSettings

if TYPE_CHECKING:
    import requests


MOST_WHEEL_BYTES = 2 << 30
"""Bytes of a wheel of which nothing that is trusted states the size."""
_CHUNK = 1 << 16  # small enough that a dropped connection costs little of what had come


def fetch_artifact(
    store: Store, artifact: Artifact, settings: IndexSettings, *, otherwise: str = "", address: str = ""
) -> Path:
    """Return the file *artifact* in the store, fetched from the remote tier or an index if it is not there.

    A run that is interrupted leaves what it got in the store's ``partial`` folder, and the next
    one asks for the rest (RFC 9110, "Range Requests"). Two runs at once download once.

    Args:
        store: where it goes.
        artifact: the file.
        settings: how to reach the index.
        otherwise: where else it may come from, for the message to those who have no network.
        address: its address, where no index lists it.

    Raises:
        NotInStoreError: the network is off, and the store does not hold it.
        FetchError: no index has it, or it could not be transferred.
        DigestError: what came is not what the lock names.
        StorageError: the disk is full or not writable.
    """
    if found := store.find_intact(artifact.sha256, size=artifact.size):
        return found
    if settings.offline:
        raise NotInStoreError(
            f"{artifact.filename} (sha256 {artifact.sha256}) is not in the store {store.home}",
            because="the network is off",
            next_step=f"run once without --offline{otherwise}",
        )
    with store.lock(f"download-{artifact.sha256}", f"the download of {artifact.filename}"):
        if found := store.find_intact(artifact.sha256, remote=False):
            return found
        path = _download(store, artifact, settings, address)
    store.share(artifact.sha256, download=True)
    return path


def adopt_copy(store: Store, path: Path, artifact: Artifact) -> Path:
    """Copy the user's own file at *path* into the store as *artifact*.

    Raises:
        FetchError: it is no plain file, or cannot be read.
        DigestError: it is not the file that the lock names.
    """
    if found := store.find_intact(artifact.sha256, size=artifact.size):
        return found
    with store.scratch() as scratch, storing(f"copying {path}"):
        copy = scratch / artifact.filename
        with _opened(path) as source, copy.open("wb") as target:
            size = os.fstat(source.fileno()).st_size
            if size != artifact.size:
                raise _other_size(artifact, str(size))
            # It may grow meanwhile, so no more is taken than the lock names.
            copy_hashed(source, target, most=artifact.size)
        return _adopt(store, copy, artifact)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Give the plain file at *path*; a named pipe would be waited for, and a device may have no end.

    Raises:
        FetchError: it is no plain file, or cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise FetchError(f"{path} could not be read", because=(error.strerror or "").lower()) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FetchError(f"{path} could not be taken", because="it is no plain file")
    with os.fdopen(handle, "rb") as stream:
        yield stream


def _download(store: Store, artifact: Artifact, settings: IndexSettings, address: str) -> Path:
    if address:
        file = IndexFile(artifact.filename, address, artifact.sha256, artifact.size, False, False)  # noqa: FBT003
    else:
        file = locate_in_commit(artifact, settings) if artifact.commit else locate(artifact, settings)
    if source := local_path(file.url):
        return adopt_copy(store, source, artifact)
    partial = store.partial / artifact.sha256
    resumed = _size(partial)
    _fill(file, artifact, partial, settings)
    try:
        return _adopt(store, partial, artifact)
    except DigestError:
        if not resumed:
            raise
        # The part that an earlier run left may be what is wrong: its machine may have lost power.
        emit("fetch.restarted", what=artifact.filename, reason="what an earlier run left was damaged")
        _fill(file, artifact, partial, settings)
        return _adopt(store, partial, artifact)


def transfer(file: IndexFile, path: Path, settings: IndexSettings) -> None:
    """Transfer *file*, of which no index states a digest, to *path*, which must not exist.

    Raises:
        FetchError: its size is not stated, or more than a wheel has, or it could not be transferred.
        StorageError: the disk is full or not writable.
    """
    size = remote_size(file, settings)
    if size > MOST_WHEEL_BYTES:
        raise FetchError(
            f"{file.filename} was not fetched",
            because=f"it has {size} bytes, and no wheel has more than {MOST_WHEEL_BYTES >> 30} GiB",
            next_step="look at what is there, or give the file itself",
        )
    _fill(file, Artifact(filename=file.filename, sha256="", size=size), path, settings)


def _adopt(store: Store, path: Path, artifact: Artifact) -> Path:
    try:
        return store.adopt_file(path, artifact.sha256)
    except DigestError as error:
        raise DigestError(
            f"{artifact.filename} is not the file that the lock names",
            because=error.because, next_step=error.next_step,
        ) from error  # fmt: skip


def _fill(file: IndexFile, artifact: Artifact, partial: Path, settings: IndexSettings) -> None:
    """Bring *partial* to the artifact's full size, with as many requests as it takes."""
    _require_space(artifact, partial)
    what = f"download {artifact.filename}"
    with (
        open_session(settings) as session,
        task(what, total=artifact.size, unit="B", done=_size(partial)) as progress,
    ):
        transfer = _Transfer(session, file.url, artifact, partial, progress, settings.timeout_s)
        try:
            retrying(settings, what, progress=lambda: _size(partial))(transfer.go_on)
        except SparkwrightError:
            raise
        except Exception as error:
            raise fetch_failed(artifact.filename, error) from error


@dataclass(frozen=True)
class _Transfer:
    """One file on its way from *url* into *partial*."""

    session: requests.Session
    url: str
    artifact: Artifact
    partial: Path
    progress: Task
    timeout_s: float

    def go_on(self) -> None:
        """Make one request for what is still missing."""
        start = _size(self.partial)
        if start > self.artifact.size:
            self.partial.unlink()
            start = 0
        if start == self.artifact.size:
            return
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with self.session.get(self.url, headers=headers, timeout=self.timeout_s, stream=True) as response:
            self.progress.done = self._agreed_start(response, start)
            self._write(response)
        if self.progress.done < self.artifact.size:
            raise InterruptedFetch(f"it ended after {self.progress.done} of {self.artifact.size} bytes")

    def _agreed_start(self, response: requests.Response, start: int) -> int:
        """Return the byte from which on *response* has the file: *start*, or 0 where ranges are ignored."""
        if response.status_code == 416:  # noqa: PLR2004 - Range Not Satisfiable
            self.partial.unlink(missing_ok=True)
            raise InterruptedFetch("the server has no such range; starting over")
        response.raise_for_status()
        if response.status_code == 206:  # noqa: PLR2004 - Partial Content
            stated = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if stated is None or int(stated[1]) != start:
                self.partial.unlink(missing_ok=True)
                raise InterruptedFetch("the server sent another range than was asked for; starting over")
            total = stated[2]
        else:
            start, total = 0, response.headers.get("Content-Length", "*")
        if total.isdigit() and int(total) != self.artifact.size:
            raise _other_size(self.artifact, total)
        return start

    def _write(self, response: requests.Response) -> None:
        keeping = f"writing {self.artifact.filename} (what has come is kept for the next run)"
        mode = "ab" if self.progress.done else "wb"
        with storing(keeping), self.partial.open(mode, buffering=0) as sink:
            for chunk in response.iter_content(_CHUNK):
                if self.progress.done + len(chunk) > self.artifact.size:
                    raise _other_size(self.artifact, "more")
                sink.write(chunk)
                self.progress.advance(len(chunk))


def _other_size(artifact: Artifact, size: str) -> DigestError:
    return DigestError(
        f"{artifact.filename} is not the file that the lock names",
        because=f"it has {size} bytes, not {artifact.size}",
        next_step="do not use it; sparkwright lock check compares upstream.lock with the release",
    )


def _require_space(artifact: Artifact, partial: Path) -> None:
    with storing("making the store's folder for downloads"):
        partial.parent.mkdir(parents=True, exist_ok=True)
    missing = artifact.size - _size(partial)
    free = shutil.disk_usage(partial.parent).free
    if free < missing:
        raise StorageError(
            f"{artifact.filename} was not downloaded",
            because=f"it needs {missing >> 20} MiB more, and {partial.parent} has {free >> 20} MiB free",
            next_step="free some space, or point SPARKWRIGHT_HOME to a larger disk",
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
