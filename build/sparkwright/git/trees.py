"""Write trees of files, check trees out, merge three of them, and pack one for another repository.

A whole tree is written with one ``git fast-import``, a small change of one in this process.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import ArchiveError, ProcessError
from sparkwright.git.remotes import check_object_id
from sparkwright.git.repository import FOLDER, WHO, Repository, TreeEntry, serialise


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


# A tree as read-only files on disk ----------------------------------------------------------------

_SYMLINK = "120000 "


def check_out(repository: Repository, tree: str, folder: Path, *, under: str = "") -> None:
    """Write the files of *tree* into the empty *folder*.

    With *under*, only that folder of the tree is written, at its place.
    """
    check_object_id(tree)
    _refuse_outward_links(repository, tree)
    folder.mkdir(parents=True, exist_ok=True)
    index = folder.with_name(folder.name + ".index")
    env = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(folder)}
    try:
        if under:
            repository.command("read-tree", f"--prefix={under}/", f"{tree}:{under}", env=env)
        else:
            repository.command("read-tree", tree, env=env)
        repository.command("checkout-index", "--all", "--force", f"--prefix={folder}/", env=env)
    finally:
        index.unlink(missing_ok=True)


def _refuse_outward_links(repository: Repository, tree: str) -> None:
    """Refuse links that lead out of a tree that came by git: nothing else checks these."""
    listed = repository.command("ls-tree", "-r", "-z", tree).stdout.decode(errors="surrogateescape")
    links = {}
    for line in listed.split("\0"):
        entry, _, path = line.partition("\t")
        if entry.startswith(_SYMLINK):
            links[path] = repository.blob(entry.split()[2]).decode(errors="surrogateescape")
    if (outward := outward_link(links)) is not None:
        raise ArchiveError(
            f"the tree {tree[:12]} cannot be written to a folder",
            because=f"its link {outward!r} leads to {links[outward]!r}, outside",
            next_step="find out which commit or carry brought that link, and leave that out",
        )


def make_read_only(folder: Path) -> None:
    """Take the right to write away from *folder* and everything in it."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118 - thousands of files
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                os.chmod(path, mode & 0o555)  # noqa: PTH101
        os.chmod(parent, 0o555)  # noqa: PTH101, S103


# Symbolic links of a tree that lead out of it, also through one another ---------------------------

_MOST_HOPS = 40  # as many as Linux follows (path_resolution(7)); what needs more leads nowhere


def outward_link(links: Mapping[str, str]) -> str | None:
    """Return the path of a link that leads out of its tree, or `None`.

    *links* are the targets of all symbolic links of the tree, by path.
    """
    return next((path for path in links if _leads_out(path, links)), None)


def _leads_out(path: str, links: Mapping[str, str]) -> bool:
    """Follow the link at *path* as the kernel does, but for the names that are no links."""
    place: list[str] = []
    todo = path.split("/")[::-1]
    hops = 0
    while todo:
        part = todo.pop()
        if part == "..":
            if not place:
                return True
            place.pop()
        elif part not in {"", "."}:
            place.append(part)
            target = links.get("/".join(place))
            if target is not None:
                hops += 1
                if posixpath.isabs(target):
                    return True
                if hops > _MOST_HOPS:
                    return False
                place.pop()
                todo += target.split("/")[::-1]
    return False


# The three-way merge, with a base of our choice ---------------------------------------------------

# ``git merge-tree --write-tree`` finds the base from history, and ``--merge-base`` only came
# with git 2.40. A synthetic pair of commits with the wanted base as their only parent says the
# same to every git since 2.38.


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge.

    Attributes:
        tree: id of the merged tree; conflicted files hold conflict markers.
    """

    tree: str
    conflicts: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Tell if nothing conflicts."""
        return not self.conflicts


def merge_trees(repository: Repository, *, base: str, ours: str, theirs: str) -> MergeResult:
    """Merge the change from *base* to *theirs* into *ours*.

    *base* is a commit, the common ancestor; the others are trees.
    """
    our_side = repository.commit(ours, parents=[base], message="ours")
    their_side = repository.commit(theirs, parents=[base], message="theirs")
    options = ("--write-tree", "-z", "--name-only", "--no-messages")
    done = repository.command("merge-tree", *options, our_side, their_side, accept=(0, 1))
    tree, *names = done.stdout.decode(errors="surrogateescape").split("\0")
    conflicts = tuple(sorted(filter(None, names)))
    if bool(done.status) != bool(conflicts):
        raise ProcessError("git merge-tree contradicts itself", because=done.stderr or done.text[:400])
    return MergeResult(tree, conflicts)


# A tree as a pack, for another repository ---------------------------------------------------------


def pack_tree(repository: Repository, tree: str, target: Path) -> None:
    """Write a pack of *tree* and everything below it to *target*."""
    listed = repository.command("rev-list", "--objects", "--no-object-names", check_object_id(tree)).stdout
    target.write_bytes(repository.command("pack-objects", "--stdout", "-q", stdin=listed).stdout)


def unpack_tree(repository: Repository, pack: Path, tree: str) -> None:
    """Take the objects of *pack* into *repository*, and check that *tree* and all below it is there.

    Raises:
        ProcessError: it is no pack, is damaged, or lacks a part of the tree.
    """
    check_object_id(tree)
    repository.command("index-pack", "--stdin", "--strict", stdin=pack.read_bytes())
    repository.command("rev-list", "--objects", "--quiet", tree)
