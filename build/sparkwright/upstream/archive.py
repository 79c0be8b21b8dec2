"""A safe reader of source distributions.

An sdist is a gzipped tar with one top folder (PEP 625). Nothing is ever unpacked by name: each
entry is checked and handed over as bytes, and what could write outside its tree, or could not be
told apart in a git tree, is refused.
"""

from __future__ import annotations

import contextlib
import gzip
import posixpath
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple, cast

from sparkwright.base.digests import CHUNK
from sparkwright.base.errors import ArchiveError
from sparkwright.git.trees import outward_link

# Git's file modes (gitformat-index(5)).
REGULAR = "100644"
EXECUTABLE = "100755"
SYMLINK = "120000"

# Far above any release of vLLM (0.33.0: 9,629 members, 137 MB, 7 MB the largest), and far below
# what would fill a disk or a memory.
MAX_MEMBERS = 200_000
MAX_FILE_BYTES = 256 << 20
MAX_TOTAL_BYTES = 1 << 30
MAX_PATH_BYTES = 1024

# What `tarfile` raises on headers that it cannot understand; among them is `UnicodeError`.
_IN_HEADERS = (ValueError, LookupError)

_END_MARK_BYTES = 1024  # two blocks of zeros end a tar archive (POSIX pax, "ustar Interchange Format")


class ArchiveEntry(NamedTuple):
    """One file of a tree: its path, its git mode and its bytes (of a symlink: its target)."""

    path: str
    mode: str
    data: bytes


def read_sdist(path: Path) -> Iterator[ArchiveEntry]:
    """Yield every file of the sdist at *path*, in its order, with the top folder taken off.

    Faults are raised when they are reached: use nothing before the iteration has ended.

    Raises:
        ArchiveError: it is damaged, absurdly large, or holds an entry that is not a plain file,
            folder or inward symbolic link with a name that is safe everywhere.
    """
    tree = _Tree(path.name)
    with (
        _damage_reported(path),
        path.open("rb") as raw,
        _Unpacked(raw, path.name) as stream,
        tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:") as tar,
    ):
        for number, member in enumerate(tar, start=1):
            if number > MAX_MEMBERS:
                raise _refused(path.name, f"it has more than {MAX_MEMBERS} members")
            if member.isdir():
                tree.place_folder(member.name)
            else:
                yield _entry(tar, member, tree)
        _expect_end(stream, tar.offset, path.name)
    if (link := outward_link(tree.links)) is not None:
        raise _outside(path.name, link, tree.links[link])


def bad_component(part: str) -> str | None:
    """Return what is wrong with *part* as one component of a path in a git tree, or `None`."""
    if part in {"", ".", ".."}:
        return f"a component is {part!r}"
    if _is_like_git(part):
        return "a component is '.git', or what some file system takes for it"
    if "\\" in part or any(ord(char) < ord(" ") or char == "\x7f" for char in part):
        return "it holds a backslash or a control character"
    try:
        part.encode()
    except UnicodeEncodeError:
        return "it is not UTF-8"
    return None


# HFS+ leaves these out of names (git's utf8.c, next_hfs_char).
_UNSEEN = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])


def _is_like_git(part: str) -> bool:
    """Tell whether a file system takes *part* for ``.git``, by git's own rules for HFS+ and NTFS.

    NTFS knows it by a short name too, leaves dots and spaces at the end away, and what follows a colon
    names a stream of the same file.
    """
    plain = part.translate(_UNSEEN).casefold().partition(":")[0].rstrip(" .")
    return plain in {".git", "git~1"}


@dataclass
class _Tree:
    """The paths read so far, and their bytes: refuses one that is unsafe, occurs twice or is too large."""

    name: str
    top: str | None = None
    total: int = 0
    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)

    def inside(self, member: str) -> str:
        """Return the path of *member* below the top folder, checked; empty for the top folder itself."""
        if len(member.encode(errors="surrogateescape")) > MAX_PATH_BYTES:
            raise _refused(self.name, f"a path is longer than {MAX_PATH_BYTES} bytes")
        parts = member.rstrip("/").split("/")
        for part in parts:
            if why := bad_component(part):
                raise _refused(self.name, f"the path {member!r} is not safe: {why}")
        if self.top is None:
            self.top = parts[0]
        if parts[0] != self.top:
            raise _refused(self.name, f"{member!r} is not below its top folder {self.top!r}")
        return "/".join(parts[1:])

    def place_folder(self, member: str) -> None:
        if path := self.inside(member):
            self._enter(path)

    def place_file(self, member: str, size: int = 0) -> str:
        path = self.inside(member)
        self.total += size
        if size > MAX_FILE_BYTES:
            raise _refused(self.name, f"{member!r} has {size} bytes, more than {MAX_FILE_BYTES}")
        if self.total > MAX_TOTAL_BYTES:
            raise _refused(self.name, f"its files have more than {MAX_TOTAL_BYTES} bytes, up to {member!r}")
        if not path:
            raise _refused(self.name, f"{member!r} is a file where its top folder should be")
        if path in self.files or path in self.folders:
            raise _refused(self.name, f"the path {member!r} is there twice")
        self._enter(posixpath.dirname(path))
        self.files.add(path)
        return path

    def _enter(self, folder: str) -> None:
        while folder and folder not in self.folders:
            if folder in self.files:
                raise _refused(self.name, f"{folder!r} is both a file and a folder")
            self.folders.add(folder)
            folder = posixpath.dirname(folder)


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo, tree: _Tree) -> ArchiveEntry:
    if member.issym():
        path = tree.place_file(member.name)
        tree.links[path] = member.linkname
        return ArchiveEntry(path, SYMLINK, _inward_target(path, member.linkname, tree.name).encode())
    if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE} or member.issparse():
        why = f"{member.name!r} is no file, folder or symbolic link (type {member.type!r})"
        raise _refused(tree.name, why)
    path = tree.place_file(member.name, member.size)
    stream = tar.extractfile(member)
    assert stream is not None  # noqa: S101 - tarfile gives one for every file
    return ArchiveEntry(path, EXECUTABLE if member.mode & 0o100 else REGULAR, stream.read())


def _inward_target(path: str, target: str, name: str) -> str:
    """Return *target*, if the symlink at *path* stays inside the tree called *name* with it."""
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    parts = resolved.split("/")
    if target.startswith("/") or not target or any(bad_component(part) for part in parts if part != "."):
        raise _outside(name, path, target)
    return target


def _outside(name: str, path: str, target: str) -> ArchiveError:
    return _refused(name, f"the link {path!r} leads to {target!r}, outside its tree")


class _Unpacked(gzip.GzipFile):
    """The unpacked stream, which refuses to grow past the limits, whatever its headers say."""

    def __init__(self, raw: IO[bytes], name: str) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self._archive = name

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MAX_FILE_BYTES:
            raise _refused(self._archive, f"a header asks for {size} bytes at once")
        data = super().read(size)
        if self.tell() > MAX_TOTAL_BYTES:
            raise _refused(self._archive, f"it unpacks to more than {MAX_TOTAL_BYTES} bytes")
        return data


def _expect_end(stream: _Unpacked, offset: int, name: str) -> None:
    """Make sure that the archive ends where its members do: `tarfile` takes any rubbish for the end."""
    stream.seek(offset)
    mark = stream.read(_END_MARK_BYTES)
    if len(mark) < _END_MARK_BYTES or any(mark):
        raise ArchiveError(f"{name} is damaged", because=f"it has no end mark at byte {offset}")
    while stream.read(CHUNK):  # reaching the end makes gzip compare its checksum
        pass


@contextlib.contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ArchiveError(f"{path.name} could not be read", because=f"{path} does not exist") from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, OverflowError, *_IN_HEADERS) as error:
        raise ArchiveError(
            f"{path.name} is damaged", because=str(error) or type(error).__name__,
            next_step="fetch it again",
        ) from error  # fmt: skip


def _refused(name: str, why: str) -> ArchiveError:
    return ArchiveError(
        f"{name} was refused", because=why, next_step="do not unpack it by other means: find out who made it"
    )
