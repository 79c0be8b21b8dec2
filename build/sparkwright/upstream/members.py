"""Some members of a large wheel without the rest of it, where the server can send parts of a file.

A zip archive names its members at its end, so three requests find and bring what is wanted: the
end, the list, the members. They are written where they belong in a file of the wheel's full size
whose other bytes are holes; any zip reader takes it for the wheel as long as it stays with those
members. As the wheel's digest cannot be computed then, the caller has to verify what it unpacks.
"""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sparkwright.base.errors import ArchiveError, DigestError, NotInStoreError, SparkwrightError
from sparkwright.base.events import Task, emit, task
from sparkwright.lock.model import Artifact
from sparkwright.store import Store, storing
from sparkwright.upstream.download import fetch_artifact
from sparkwright.upstream.index import local_path, locate
from sparkwright.upstream.network import InterruptedFetch, fetch_failed, open_session, retrying
from sparkwright.upstream.settings import IndexSettings

if TYPE_CHECKING:
    import requests


_CHUNK = 1 << 16
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

    Args:
        store: where the wheel may be, and where scratch space is.
        artifact: the wheel.
        wanted: whether a member of that name is needed.
        settings: how to reach the index.

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
                if isinstance(error, OSError) and not _is_transfer(error):
                    raise  # the disk's
                raise fetch_failed(self.artifact.filename, error) from error

    def _require_range(self, response: requests.Response, start: int) -> None:
        response.raise_for_status()
        stated = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if response.status_code != 206 or stated is None:  # noqa: PLR2004 - Partial Content
            raise _NoRangesError
        if int(stated[2]) != self.artifact.size:
            raise DigestError(
                f"{self.artifact.filename} is not the file that the lock names",
                because=f"it has {stated[2]} bytes, not {self.artifact.size}",
                next_step="do not use it; look at the package index and at the lock",
            )
        if int(stated[1]) != start:
            raise InterruptedFetch("the server sent another range than was asked for")


def _is_transfer(error: OSError) -> bool:
    """Tell if *error* is the network's and not the disk's: requests' errors are `OSError` too."""
    import requests

    return isinstance(error, requests.RequestException)


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
