"""Copies of folders on the second of two machines: an environment, its Python, models.

A file is sent unless it is there, and gets its name there once it is whole; ssh sees that it arrives as sent.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.base.errors import ClusterError
from sparkwright.base.events import task
from sparkwright.base.process.session import Dialogue
from sparkwright.base.text import human_size
from sparkwright.serve.peer import Peer, refusal

_PIECE = 1 << 20
_LISTED_S, _DONE_S, _ENDS_S = 900.0, 900.0, 30.0
_LARGE = 64 << 20
_BLOBS = "blobs"


@dataclass(frozen=True)
class CopiedFile:
    """A file to copy.

    Attributes:
        path: below the folder.
        mtime: in nanoseconds; one of another time there is another file.
        named: its name is a digest of what is in it, so that its time does not count.
    """

    path: str
    source: Path
    size: int
    mtime: int
    mode: int
    named: bool = False

    def pieces(self) -> Iterator[bytes]:
        """Yield what is in it.

        Raises:
            ClusterError: it was cut meanwhile.
        """
        with self.source.open("rb") as stream:
            left = self.size
            while left and (piece := stream.read(min(left, _PIECE))):
                left -= len(piece)
                yield piece
            if left:
                raise ClusterError(
                    f"{self.source} cannot be copied", because="it was cut meanwhile", next_step="start again"
                )
            if self.size >= _LARGE:  # what the page cache holds of weights, a Spark's card lacks
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Copied:
    """Files and links of a folder; links by their paths with their targets."""

    files: tuple[CopiedFile, ...]
    links: tuple[tuple[str, str], ...] = ()


def list_tree(folder: Path) -> Copied:
    """Return the tree of an environment or a Python, without bytecode."""
    files, links = [], []
    for parent, folders, names in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        for name in (*folders, *names):
            place = Path(parent, name)
            path = str(place.relative_to(folder))
            if place.is_symlink():
                links.append((path, str(place.readlink())))
            elif name in names:
                files.append(_file(place, path))
    return Copied(tuple(files), tuple(links))


def list_model(folder: Path, root: Path) -> Copied:
    """Return the model in *folder* by its paths below *root*: itself, or its repository in the hub's cache.

    In a repository, a snapshot's names are links to what is stored under its digest; elsewhere links are
    replaced by what they lead to.
    """
    files: dict[str, CopiedFile] = {}
    links = []
    below = root.resolve()
    for place in sorted(path for path in folder.rglob("*") if path.is_file()):
        path, real = str(place.relative_to(root)), place.resolve()
        if root != folder and place.is_symlink() and real.is_relative_to(below):
            links.append((path, str(place.readlink())))
            path = str(real.relative_to(below))
        files[path] = _file(real, path)
    if root != folder:
        for place in (path for path in (root / "refs").rglob("*") if path.is_file()):
            files[str(place.relative_to(root))] = _file(place, str(place.relative_to(root)))
    return Copied(tuple(files.values()), tuple(links))


def _file(place: Path, path: str) -> CopiedFile:
    found, named = place.stat(), path.split("/", 1)[0] == _BLOBS
    return CopiedFile(path, place, found.st_size, found.st_mtime_ns, found.st_mode & 0o777, named=named)


def copy(peer: Peer, what: str, folder: str, copied: Copied, stop: threading.Event) -> None:
    """Bring *copied* into the *folder* there; *stop* ends it early.

    Raises:
        ClusterError: the disk there is full, or the connection broke.
    """
    listed = {
        "folder": folder,
        "links": copied.links,
        "files": [
            {"path": one.path, "size": one.size, "mtime": one.mtime, "mode": one.mode, "named": one.named}
            for one in copied.files
        ],
    }
    with Dialogue(peer.argv("receive"), patience_s=_ENDS_S) as there:
        there.send(json.dumps(listed).encode() + b"\n")
        told = _told(peer, what, there, _LISTED_S)
        wanted = [copied.files[at] for at in told["missing"]]
        missing = sum(one.size for one in wanted)
        if missing > told["free"]:
            raise _full(peer, what, f"{human_size(missing)} are missing, and {human_size(told['free'])} free")
        with task(f"copy {what} to {peer.host.shown}", total=missing, unit="B") as progress:
            for one in wanted:
                for piece in one.pieces():
                    if stop.is_set() or not there.send(piece):
                        break
                    progress.advance(len(piece))
            _told(peer, what, there, 0.0 if stop.is_set() else _DONE_S)


def _told(peer: Peer, what: str, there: Dialogue, seconds: float) -> dict[str, Any]:
    """Return the next line of JSON.

    Raises:
        ClusterError: it tells of an error, or none came.
    """
    try:
        while (line := there.line(seconds)) is not None:
            if line.startswith(b"{"):
                told: dict[str, Any] = json.loads(line)
                if "error" not in told:
                    return told
                if told["full"]:
                    raise _full(peer, what, told["error"])
                raise ClusterError(
                    f"{what} cannot be copied to {peer.host.shown}",
                    because=told["error"],
                    next_step="start again: files that are whole there are not sent again",
                )
    except EOFError:
        ended = there.end()
        raise refusal(peer.host, ended.status, ended.stderr) from None
    raise ClusterError(
        f"{what} was not copied to {peer.host.shown}",
        because="it does not answer",
        next_step="start again: files that are whole there are not sent again",
    )


def _full(peer: Peer, what: str, because: str) -> ClusterError:
    return ClusterError(
        f"{peer.host.shown} has no room for {what}",
        because=because,
        next_step=f"free some there; copies are in {peer.facts.home} and {peer.facts.hub}",
    )
