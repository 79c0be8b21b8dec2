"""Files into trees: whole ones with one ``git fast-import``, small changes in this process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkwright.base.errors import ProcessError
from sparkwright.git.repository import WHO, Repository
from sparkwright.git.trees import FOLDER, TreeEntry, serialise


@dataclass(frozen=True)
class FileEntry:
    """A file's mode (``100644``, ``100755`` or ``120000``) and bytes."""

    mode: str
    data: bytes


def blob_id(data: bytes) -> str:
    """Return the id that git gives to a blob of *data*."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 - git's object ids are SHA-1


def tree_id(files: Mapping[str, TreeEntry]) -> str:
    """Return the id that git gives to the tree of *files*, by path; nothing is written."""
    node: dict[str, TreeEntry] = {}
    below: dict[str, dict[str, TreeEntry]] = {}
    for path, entry in files.items():
        name, _, rest = path.partition("/")
        if rest:
            below.setdefault(name, {})[rest] = entry
        else:
            node[name] = entry
    node |= {name: TreeEntry(FOLDER, tree_id(inner)) for name, inner in below.items()}
    data = serialise(node)
    return hashlib.sha1(b"tree %d\0" % len(data) + data).hexdigest()  # noqa: S324 - as above


def import_files(repository: Repository, files: Iterable[tuple[str, FileEntry]]) -> str:
    """Write *files* (path, content) to the store as one tree; returns its id."""
    wanted = dict(files)
    if not wanted:  # fast-import has no name for the tree of a commit without files
        return repository.objects.write("tree", b"")
    ref = f"refs/sparkwright/import/{os.getpid()}-{os.urandom(6).hex()}".encode()
    stream: list[bytes] = [b"feature done\n"]
    stream += [b"commit %s\nmark :1\ncommitter %s\ndata 0\n" % (ref, WHO.encode())]
    for path, entry in wanted.items():
        stream += _file_commands(path, entry)
    # A blank line ends the commit. Its ref was only needed to hang it on; reset to nothing, it is gone.
    stream += [b"\n", b'ls :1 ""\n', b"reset %s\nfrom %s\n\n" % (ref, b"0" * 40), b"done\n"]
    done = repository.command(
        "fast-import", "--quiet", "--date-format=raw", "--depth=0", stdin=b"".join(stream)
    )
    fields = done.text.split()
    if fields[:2] != ["040000", "tree"]:
        raise ProcessError("git fast-import did not answer as expected", because=done.text[:400])
    return fields[2]


def patch_tree(repository: Repository, tree: str, files: Mapping[str, FileEntry | None]) -> str:
    """Return *tree* with *files* changed (path to new content, or `None` for deleted); returns the new id."""
    objects = repository.objects
    entries = {
        path: None if file is None else TreeEntry(file.mode, objects.write("blob", file.data))
        for path, file in files.items()
    }
    return objects.edit(tree, entries) or objects.write("tree", b"")


def _file_commands(path: str, entry: FileEntry) -> list[bytes]:
    header = b"M %s inline %s\ndata %d\n" % (entry.mode.encode(), _quote(path), len(entry.data))
    return [header, entry.data, b"\n"]


def _quote(path: str) -> bytes:
    raw = path.encode(errors="surrogateescape")
    escaped = raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + escaped + b'"'
