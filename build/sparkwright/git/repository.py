"""The store's bare repository, and the few plumbing commands that everything else uses."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparkwright.base.errors import ProcessError, RefError, ToolError
from sparkwright.base.process.run import Completed, run, which
from sparkwright.store.disk import hold, storing, write_atomically

OLDEST_GIT = (2, 38)

# One fixed identity and moment: commit ids then depend on content and order alone.
IDENTITY = "sparkwright <sparkwright@localhost>"
MOMENT = 946684800
WHO = f"{IDENTITY} {MOMENT} +0000"

# Settings that change what git computes are pinned here rather than left to its defaults.
_SETTINGS = {
    "core.attributesFile": os.devnull,
    "core.compression": "1",
    "core.quotePath": "false",
    "diff.algorithm": "histogram",
    "diff.renames": "true",
    "fetch.fsckObjects": "false",
    # What comes is taken as one pack, whole or not at all. By default, few objects are unpacked as they come,
    # the commit first, and one that was cut off is here from then on, without its files.
    "fetch.unpackLimit": "1",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "merge.conflictStyle": "zdiff3",
    "merge.directoryRenames": "conflict",
    "merge.renameLimit": "7000",
    "merge.renames": "true",
    "protocol.allow": "never",
    "protocol.file.allow": "always",
    "protocol.https.allow": "always",
    "protocol.ssh.allow": "always",
}


def as_argument(path: str) -> str:
    """Return a tree's *path* so that its bytes reach git unchanged in any locale."""
    return os.fsdecode(path.encode(errors="surrogateescape"))


# git reports it in its message alone, which LC_ALL keeps English.
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|Out of diskspace", re.IGNORECASE)


def git_environment() -> dict[str, str]:
    """Return the environment of every git process: no configuration of the user or the machine."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    # A proxy, an agent or a certificate is the machine's affair and not part of any result.
    for kept in ("GIT_SSL_CAINFO", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_PROXY_COMMAND"):
        if kept in os.environ:
            inherited[kept] = os.environ[kept]
    return {
        **inherited,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        # A path is a path, also where it looks like a pattern or begins like git's own magic words.
        "GIT_LITERAL_PATHSPECS": "1",
        # What is not in the store is missing; only `fetch` talks to a network.
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "LC_ALL": "C",
        "TZ": "UTC",
    }


# No attribute of an upstream tree may change the bytes that are written out, and none the merge.
ATTRIBUTES = (
    "* -text -ident -filter -working-tree-encoding !merge !conflict-marker-size !diff"
    " -export-subst -export-ignore\n"
)


def open_repository(path: Path) -> Repository:
    """Return the repository at *path*, made when missing."""
    repository = Repository(path)
    ready, attributes = path / "sparkwright-ready", path / "info" / "attributes"
    if ready.is_file() and _holds(attributes, ATTRIBUTES):
        return repository
    require_git()
    with hold(path.with_name(path.name + ".lock"), f"the repository {path}"), storing("making the store"):
        # A run that waited for the lock finds it made, and must not write to it while others use it.
        if not ready.is_file():
            repository.command("init", "--quiet", "--bare", "--template=", str(path), bare=False)
        if not _holds(attributes, ATTRIBUTES):
            write_atomically(attributes, ATTRIBUTES.encode())
        ready.touch()
    return repository


def _holds(path: Path, text: str) -> bool:
    """Tell whether the file at *path* is there and holds that *text*."""
    try:
        return path.read_bytes() == text.encode()
    except FileNotFoundError:
        return False


def require_git() -> str:
    """Return the output of ``git --version``."""
    text = run([which("git", hint="install git 2.38 or newer"), "--version"]).text
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_GIT:
        raise ToolError(
            f"{text or 'git'} is too old",
            because="git merge-tree --write-tree came with 2.38",
            next_step="install a newer git",
        )
    return text


@dataclass(frozen=True)
class Repository:
    """A bare repository, driven through git's plumbing."""

    path: Path

    def command(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        accept: Sequence[int] = (0,),
        env: Mapping[str, str] | None = None,
        bare: bool = True,
        timeout: float | None = None,
    ) -> Completed:
        """Run one git command in this repository; see `sparkwright.base.process.run.run`.

        Raises:
            StorageError: it found no space left.
            ProcessError: it failed in another way.
        """
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        where = ["--git-dir", str(self.path)] if bare else []
        try:
            return run(
                ["git", *settings, *where, *arguments],
                env={**git_environment(), **(env or {})},
                stdin=stdin,
                accept=accept,
                timeout=timeout,
            )
        except ProcessError as error:
            if not _DISK_FULL.search(error.because):
                raise
            with storing(f"git {arguments[0]}"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path)) from error

    @cached_property
    def _library(self) -> Any:
        import git  # noqa: TID251

        library = git.Repo(self.path, odbt=git.GitCmdObjectDB)
        # The library adds to our environment and takes nothing away, so what would send reads elsewhere
        # (as inside a hook, where git itself sets these) is set to what is right here.
        library.git.update_environment(
            **git_environment(),
            GIT_DIR=str(self.path),
            GIT_COMMON_DIR=str(self.path),
            GIT_OBJECT_DIRECTORY=str(self.path / "objects"),
            GIT_ALTERNATE_OBJECT_DIRECTORIES="",
            GIT_CONFIG_COUNT="0",
            GIT_CONFIG_PARAMETERS="",
            GIT_NAMESPACE="",
            GIT_SHALLOW_FILE="",
        )
        return library

    @cached_property
    def objects(self) -> ObjectReader:
        """Return objects read and written in this process, through GitPython."""
        from gitdb.db import LooseObjectDB  # noqa: TID251

        return ObjectReader(self._library.odb, LooseObjectDB(str(self.path / "objects")))

    def close(self) -> None:
        """End the processes that reads left running."""
        if "_library" in self.__dict__:
            self._library.close()

    def blob(self, object_id: str) -> bytes:
        """Return the bytes of a blob.

        Raises:
            RefError: there is no such object.
        """
        return self.objects.read(object_id)

    def has(self, object_id: str) -> bool:
        """Tell if an object with that id is here."""
        return self.command("cat-file", "-e", object_id, accept=(0, 1, 128)).status == 0

    def find(self, revision: str) -> str:
        """Return the id of the object that *revision* names; empty if there is none."""
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", revision)
        done = self.command(*words, accept=(0, 1, 128))
        return done.text if done.status == 0 else ""

    def tree_of(self, revision: str) -> str:
        """Return the tree id of a commit, tag or tree."""
        if found := self.find(f"{revision}^{{tree}}"):
            return found
        raise RefError(f"{revision} is not in the store", because="no tree of that name was fetched")

    def files(self, tree: str, paths: Iterable[str] | None = None) -> Mapping[str, TreeEntry]:
        """Return the files of *tree* by path: all of them, or those among *paths* that exist."""
        if paths is None:
            return self.objects.files(tree)
        found = {path: self.objects.entry(tree, path) for path in paths}
        return {path: entry for path, entry in found.items() if entry is not None}

    def changed(self, old: str, new: str) -> dict[str, tuple[TreeEntry | None, TreeEntry | None]]:
        """Return files that differ between two trees: path to (entry in *old*, entry in *new*)."""
        return {path: (before, after) for path, before, after in self.objects.compare(old, new)}

    def commit(self, tree: str, *, parents: Sequence[str] = (), message: str, seconds: int = MOMENT) -> str:
        """Write a commit with our fixed identity, dated *seconds* after 1970; returns its id."""
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
        lines += [f"{role} {IDENTITY} {seconds} +0000" for role in ("author", "committer")]
        return self.objects.write("commit", "\n".join([*lines, "", message, ""]).encode())

    def keep(self, ref: str, object_id: str) -> None:
        """Point *ref* at an object, so that no clean-up of git's can lose it."""
        self.command("update-ref", ref, object_id)

    def diff(self, old: str, new: str, *, context: int) -> bytes:
        """Return the change from tree *old* to tree *new* as a unified diff with full blob ids."""
        return self.command(
            "diff-tree", "-p", "-r", f"-U{context}", "--full-index", "--no-renames", "--no-color",
            "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", old, new, "--",
        ).stdout  # fmt: skip

    def line_counts(self, old: str, new: str) -> dict[str, tuple[int, int] | None]:
        """Return lines that tree *new* adds to and takes from *old*, by path; `None` for a binary file."""
        done = self.command("diff-tree", "-r", "-z", "--numstat", "--no-renames", "--no-textconv", old, new)
        counts: dict[str, tuple[int, int] | None] = {}
        for line in filter(None, done.stdout.decode(errors="surrogateescape").split("\0")):
            added, removed, path = line.split("\t", 2)
            counts[path] = None if added == "-" else (int(added), int(removed))
        return counts


# Objects, read and written in this process --------------------------------------------------------

# A merge looks at a handful of paths in a dozen trees of several thousand files. Starting git for
# each look costs more than the look; a tree object is a short list, so it is read once through the
# repository's long-lived reader and kept.

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
    _files: dict[str, Mapping[str, TreeEntry]] = field(default_factory=dict)

    def read(self, object_id: str) -> bytes:
        """Return the bytes of an object."""
        try:
            data: bytes = self.database.stream(bytes.fromhex(object_id)).read()
        except (ValueError, KeyError) as error:
            raise RefError(f"object {object_id} is not in the store", because=str(error)) from error
        return data

    def write(self, kind: str, data: bytes) -> str:
        """Write an object of *kind*; returns its id."""
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

    def files(self, tree: str) -> Mapping[str, TreeEntry]:
        """Return every file below *tree* by path."""
        if tree not in self._files:
            self._files[tree] = MappingProxyType(dict(self.walk(tree)))
        return self._files[tree]

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
            old_files, new_files = dict(self._below(left, path)), dict(self._below(right, path))
            for found in sorted({*old_files, *new_files}):
                yield found, old_files.get(found), new_files.get(found)

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
