"""Trees read, compared and edited in this process.

A merge looks at a handful of paths in a dozen trees of several thousand files. Starting git for
each look costs more than the look; a tree object is a short list, so it is read once through the
repository's long-lived reader and kept.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.base.errors import RefError
from sparkwright.store import storing

FOLDER = "40000"
LINK = "120000"
SUBMODULE = "160000"


@dataclass(frozen=True)
class TreeEntry:
    """A file in a tree: its mode (``100644``, ``100755``, ``120000``, ``160000``) and blob id."""

    mode: str
    blob: str


Node = dict[str, TreeEntry]
"""One tree object: name to entry; a folder has mode ``40000`` and a tree's id."""


@dataclass
class ObjectReader:
    """Reads objects through GitPython (one ``cat-file`` for all), and writes loose ones.

    Attributes:
        loose: gitdb's store of loose objects in the same repository.
    """

    database: Any
    loose: Any
    _nodes: dict[str, Node] = field(default_factory=dict)
    _files: dict[str, dict[str, TreeEntry]] = field(default_factory=dict)

    def read(self, object_id: str) -> bytes:
        """Return the bytes of an object.

        Raises:
            RefError: there is no such object.
        """
        try:
            data: bytes = self.database.stream(bytes.fromhex(object_id)).read()
        except (ValueError, KeyError) as error:
            raise RefError(f"object {object_id} is not in the store", because=str(error)) from error
        return data

    def write(self, kind: str, data: bytes) -> str:
        """Write an object of *kind*; returns its id.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        from gitdb import IStream  # noqa: TID251

        with storing("writing to the repository"):
            stored = self.loose.store(IStream(kind.encode(), len(data), io.BytesIO(data)))
        return str(stored.hexsha.decode())

    def node(self, tree: str) -> Node:
        """Return the tree object with that id."""
        if tree not in self._nodes:
            self._nodes[tree] = dict(_parse(self.read(tree)))
        return self._nodes[tree]

    def entry(self, tree: str, path: str) -> TreeEntry | None:
        """Return the file at *path* in *tree*, or `None`."""
        *folders, name = path.split("/")
        for folder in folders:
            below = self.node(tree).get(folder)
            if below is None or below.mode != FOLDER:
                return None
            tree = below.blob
        found = self.node(tree).get(name)
        return None if found is None or found.mode == FOLDER else found

    def files(self, tree: str) -> dict[str, TreeEntry]:
        """Return every file below *tree* by path; the answer is the caller's own."""
        if tree not in self._files:
            self._files[tree] = dict(self.walk(tree))
        return dict(self._files[tree])

    def walk(self, tree: str, prefix: str = "") -> Iterator[tuple[str, TreeEntry]]:
        """Yield every file below *tree*, with its path."""
        for name, entry in self.node(tree).items():
            if entry.mode == FOLDER:
                yield from self.walk(entry.blob, f"{prefix}{name}/")
            else:
                yield f"{prefix}{name}", entry

    def compare(
        self, old: str, new: str, prefix: str = ""
    ) -> Iterator[tuple[str, TreeEntry | None, TreeEntry | None]]:
        """Yield files that differ: (path, entry in *old*, entry in *new*); equal subtrees are not entered."""
        before, after = self.node(old), self.node(new)
        for name in sorted({*before, *after}):
            left, right = before.get(name), after.get(name)
            if left == right:
                continue
            path = f"{prefix}{name}"
            if left and right and left.mode == right.mode == FOLDER:
                yield from self.compare(left.blob, right.blob, f"{path}/")
                continue
            if left and right and FOLDER not in {left.mode, right.mode}:
                yield path, left, right
                continue
            yield from ((found, entry, None) for found, entry in self._below(left, path))
            yield from ((found, None, entry) for found, entry in self._below(right, path))

    def _below(self, entry: TreeEntry | None, path: str) -> Iterator[tuple[str, TreeEntry]]:
        if entry is None:
            return
        if entry.mode == FOLDER:
            yield from self.walk(entry.blob, f"{path}/")
        else:
            yield path, entry

    def edit(self, tree: str | None, files: Mapping[str, TreeEntry | None]) -> str | None:
        """Return *tree* with *files* put in or (for `None`) taken out; `None` for a tree without files."""
        node = {} if tree is None else dict(self.node(tree))
        deeper: dict[str, dict[str, TreeEntry | None]] = {}
        for path, entry in files.items():
            name, _, rest = path.partition("/")
            if rest:
                deeper.setdefault(name, {})[rest] = entry
            elif entry is None:
                node.pop(name, None)
            else:
                node[name] = entry
        for name, below in deeper.items():
            present = node.get(name)
            subtree = present.blob if present is not None and present.mode == FOLDER else None
            edited = self.edit(subtree, below)
            if edited is not None:
                node[name] = TreeEntry(FOLDER, edited)
            elif subtree is not None:  # a file of that name has nothing below it to take out
                del node[name]
        return self.write("tree", serialise(node)) if node else None


def _parse(data: bytes) -> Iterator[tuple[str, TreeEntry]]:
    position = 0
    while position < len(data):
        space = data.index(b" ", position)
        end = data.index(b"\0", space)
        name = data[space + 1 : end].decode(errors="surrogateescape")
        yield name, TreeEntry(data[position:space].decode(), data[end + 1 : end + 21].hex())
        position = end + 21


def serialise(node: Node) -> bytes:
    """Return the tree object of *node*; git sorts a folder as if its name ended with a slash."""
    lines = []
    for name, entry in node.items():
        raw = name.encode(errors="surrogateescape")
        line = entry.mode.encode() + b" " + raw + b"\0" + bytes.fromhex(entry.blob)
        lines.append((raw + (b"/" if entry.mode == FOLDER else b""), line))
    return b"".join(line for _, line in sorted(lines))
