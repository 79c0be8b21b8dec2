"""Files of the lock into the store: resumed when interrupted, verified before they are used.

Of a large wheel, `fetch_members` brings some members without the rest, where the server can send parts of a
file. A zip archive names its members at its end, so three requests find and bring what is wanted: the end,
the list, the members. They are written where they belong in a file of the wheel's full size whose other bytes
are holes; any zip reader takes it for the wheel as long as it stays with those members. As the wheel's digest
cannot be computed then, the caller has to verify what it unpacks.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sparkwright.base.digests import copy_hashed
from sparkwright.base.errors import (
    ArchiveError,
    DigestError,
    FetchError,
    NotInStoreError,
    SparkwrightError,
    StorageError,
)
from sparkwright.base.events import Task, emit, task
from sparkwright.lock.model import Artifact
from sparkwright.store.disk import storing
from sparkwright.store.paths import Store
from sparkwright.upstream.index import IndexFile, local_path, locate, locate_in_commit, remote_size
from sparkwright.upstream.network import IndexSettings, InterruptedFetch, fetch_failed, open_session, retrying

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

    *otherwise* tells those who have no network where else it may come from; *address* is its own, where no
    index lists it.

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
    store.share(artifact.sha256)
    return path


def adopt_copy(store: Store, path: Path, artifact: Artifact) -> Path:
    """Copy the user's own file at *path* into the store as *artifact*."""
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
    """Give the plain file at *path*; a named pipe would be waited for, and a device may have no end."""
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
    """Transfer *file*, of which no index states a digest, to *path*, which must not exist."""
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


# Some members of a wheel -----------------------------------------------------------------------------


_END = 1 << 16  # holds the end record with the longest comment (APPNOTE.TXT 4.3.16), and most lists
_GAP = 1 << 16  # members that are closer than this are fetched with what lies between them


class _NoRangesError(Exception):
    """The server sends whole files only."""


@contextlib.contextmanager
def fetch_members(
    store: Store, artifact: Artifact, wanted: Callable[[str], bool], settings: IndexSettings
) -> Iterator[Path]:
    """Give a file that reads like the wheel *artifact*, with at least the members that are *wanted*.

    It is the whole wheel, verified by its digest, where the store has that or the server sends
    nothing less. Otherwise it is gone after the block, and the caller verifies the members.

    Raises:
        NotInStoreError: the network is off, and the store does not hold the wheel.
        FetchError: no index has it, or it could not be transferred.
        DigestError: the index has another file of that name, or the whole wheel is another.
        ArchiveError: it is no zip archive.
    """
    if found := store.find_intact(artifact.sha256, remote=False):
        yield found
        return
    if settings.offline:
        raise NotInStoreError(
            f"{artifact.filename} is not in the store {store.home}",
            because="the network is off", next_step="run once without --offline",
        )  # fmt: skip
    file = locate(artifact, settings)
    if local_path(file.url):
        yield fetch_artifact(store, artifact, settings)
        return
    with store.scratch() as scratch:
        partial = scratch / artifact.filename
        try:
            with open_session(settings) as session:
                _fetch(_Source(session, file.url, artifact, settings), partial, wanted)
        except _NoRangesError:
            emit("fetch.whole", what=artifact.filename, reason="its server does not send parts of files")
            partial = fetch_artifact(store, artifact, settings)
        yield partial


@dataclass(frozen=True)
class _Source:
    """A file on a server."""

    session: requests.Session
    url: str
    artifact: Artifact
    settings: IndexSettings

    def bring(self, sink: BinaryIO, start: int, end: int, progress: Task) -> None:
        """Write the bytes from *start* up to *end* to their place in *sink*, in as many tries as it takes."""
        import requests

        position = start

        def go_on() -> None:
            nonlocal position
            if position == end:
                return
            headers = {"Accept-Encoding": "identity", "Range": f"bytes={position}-{end - 1}"}
            timeout = self.settings.timeout_s
            with self.session.get(self.url, headers=headers, timeout=timeout, stream=True) as response:
                self._require_range(response, position)
                sink.seek(position)
                for chunk in response.iter_content(_CHUNK):
                    part = chunk[: end - position]
                    sink.write(part)
                    position += len(part)
                    progress.advance(len(part))
            if position < end:
                raise InterruptedFetch(f"it ended {end - position} bytes early")

        what = f"parts of {self.artifact.filename}"
        with storing(f"writing {what}"):
            try:
                retrying(self.settings, what, progress=lambda: position)(go_on)
            except (SparkwrightError, _NoRangesError):
                raise
            except Exception as error:
                if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
                    raise  # the disk's
                raise fetch_failed(self.artifact.filename, error) from error

    def _require_range(self, response: requests.Response, start: int) -> None:
        response.raise_for_status()
        stated = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if response.status_code != 206 or stated is None:  # noqa: PLR2004 - Partial Content
            raise _NoRangesError
        if int(stated[2]) != self.artifact.size:
            raise _other_size(self.artifact, stated[2])
        if int(stated[1]) != start:
            raise InterruptedFetch("the server sent another range than was asked for")


def _fetch(source: _Source, partial: Path, wanted: Callable[[str], bool]) -> None:
    artifact = source.artifact
    with partial.open("w+b") as sink, task(f"fetch parts of {artifact.filename}", unit="B") as progress:
        sink.truncate(artifact.size)
        start = max(0, artifact.size - _END)
        source.bring(sink, start, artifact.size, progress)
        first = _list_start(sink, artifact, start)
        if first < start:
            source.bring(sink, first, start, progress)
        for begin, end in _spans(sink, artifact, wanted, first):
            source.bring(sink, begin, min(end, first), progress)


def _list_start(sink: BinaryIO, artifact: Artifact, start: int) -> int:
    """Return the offset of the archive's list of members (APPNOTE.TXT 4.3.16), *start* that of the copy."""
    sink.seek(start)
    tail = sink.read()
    place = tail.rfind(b"PK\x05\x06")
    size, offset = (int.from_bytes(tail[place + at : place + at + 4], "little") for at in (12, 16))
    if place < 0 or offset + size > artifact.size or offset == 0xFFFFFFFF:  # noqa: PLR2004 - zip64
        raise _NoRangesError  # nothing that we read in parts; whole, its digest decides
    return offset


def _spans(
    sink: BinaryIO, artifact: Artifact, wanted: Callable[[str], bool], end: int
) -> list[tuple[int, int]]:
    """Return (start, end) of the bytes to fetch, neighbours joined: each member up to the next."""
    sink.flush()
    sink.seek(0)
    try:
        with zipfile.ZipFile(sink) as archive:
            members = sorted(archive.infolist(), key=lambda info: info.header_offset)
    except zipfile.BadZipFile as error:
        raise ArchiveError(f"{artifact.filename} is damaged", because=str(error)) from error
    starts = [info.header_offset for info in members] + [end]
    spans: list[tuple[int, int]] = []
    for info, start, stop in zip(members, starts, starts[1:], strict=False):
        if not wanted(info.filename):
            continue
        if spans and start - spans[-1][1] <= _GAP:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    return spans
