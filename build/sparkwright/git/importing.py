"""Files into trees, with one ``git fast-import`` process however many files there are."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.errors import ProcessError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sparkwright.git.repository import Repository

__all__ = ["FileEntry", "blob_id", "import_files", "patch_trees"]

_WHO = b"sparkwright <sparkwright@localhost> 946684800 +0000"


@dataclass(frozen=True)
class FileEntry:
    """A file's mode (``100644``, ``100755`` or ``120000``) and bytes."""

    mode: str
    data: bytes


def blob_id(data: bytes) -> str:
    """The id that git gives to a blob of *data*."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 - git's object ids are SHA-1


def import_files(repository: Repository, files: Iterable[tuple[str, FileEntry]]) -> str:
    """Write *files* (path, content) to the store as one tree; returns its id."""
    wanted = dict(files)
    if not wanted:  # fast-import has no name for the tree of a commit without files
        return repository.command("mktree", stdin=b"").text
    return _run(repository, [(None, wanted)])[0]


def patch_trees(
    repository: Repository, patches: Sequence[tuple[str, Mapping[str, FileEntry | None]]]
) -> list[str]:
    """For each (base commit, path to new content or `None` for deleted): the id of the changed tree."""
    return _run(repository, patches) if patches else []


def _run(
    repository: Repository, patches: Sequence[tuple[str | None, Mapping[str, FileEntry | None]]]
) -> list[str]:
    """One commit a patch, then ask for each commit's tree and forget the refs."""
    prefix = f"refs/sparkwright/import/{os.getpid()}-{os.urandom(6).hex()}"
    stream: list[bytes] = [b"feature done\n"]
    for number, (base, files) in enumerate(patches, start=1):
        stream += [b"commit %s/%d\n" % (prefix.encode(), number), b"mark :%d\n" % number]
        stream += [b"committer %s\ndata 0\n" % _WHO]
        if base is not None:
            stream.append(b"from %s\n" % base.encode())
        for path, entry in files.items():
            stream += _file_commands(path, entry)
        stream.append(b"\n")  # a blank line ends the commit, and with it the mark becomes usable
    numbers = range(1, len(patches) + 1)
    stream += [b'ls :%d ""\n' % number for number in numbers]
    # The refs were only needed to hang commits on; resetting them to nothing removes them.
    stream += [b"reset %s/%d\nfrom %s\n\n" % (prefix.encode(), number, b"0" * 40) for number in numbers]
    stream.append(b"done\n")
    done = repository.command(
        "fast-import", "--quiet", "--date-format=raw", "--depth=0", stdin=b"".join(stream)
    )
    trees = [line.split()[2] for line in done.text.splitlines() if line.startswith("040000 tree ")]
    if len(trees) != len(patches):
        raise ProcessError("git fast-import did not answer as expected", because=done.text[:400])
    return trees


def _file_commands(path: str, entry: FileEntry | None) -> list[bytes]:
    name = _quote(path)
    if entry is None:
        return [b"D %s\n" % name]
    header = b"M %s inline %s\ndata %d\n" % (entry.mode.encode(), name, len(entry.data))
    return [header, entry.data, b"\n"]


def _quote(path: str) -> bytes:
    raw = path.encode(errors="surrogateescape")
    escaped = raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + escaped + b'"'
