"""The tree that a build works on, and the folder that it is laid out in."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sparkwright.git.repository import Repository, TreeEntry
from sparkwright.git.trees import check_out
from sparkwright.lock.native import SourcePin
from sparkwright.native.model import WORK, Inputs, Toolchain
from sparkwright.store import Store

CMAKE_INPUTS = ("CMakeLists.txt", "cmake", "csrc")
"""The files of upstream's CMake project. ``setup.py`` and ``rust`` decide other parts of the wheel."""

_FOLDER = "40000"
_LINKED = ("cuda", "torch", "python")
_HASHED = ("source", "deps")
# Of the compiler and the C library; no package owns /usr/local/include.
_SYSTEM = re.compile(r"/usr/(include|lib/gcc(-cross)?|\w+-linux-gnu\w*)/")


def native_tree(repository: Repository, inputs: Inputs, pins: Mapping[str, SourcePin]) -> str:
    """Return the git id of the compiled tree: ``source/`` and one folder for each dependency in ``deps/``.

    It names every byte of the sources that a build reads, whatever their origin.

    Args:
        repository: the store's repository.
        inputs: the merged tree and the dependencies' sources.
        pins: the lock's pins of those, with their mounts.
    """
    top = repository.objects.node(inputs.tree)
    entries = {f"source/{name}": top[name] for name in CMAKE_INPUTS if name in top}
    # A mounted source goes into the folder of another one, so that one has to be there first.
    for name in sorted(inputs.sources, key=lambda name: (bool(pins[name].mount), name)):
        source, mount = inputs.sources[name], pins[name].mount
        place = mount.replace(":", "/", 1) if mount else name
        entries[f"deps/{place}"] = TreeEntry(_FOLDER, source.tree)
    tree: str | None = None
    for path, entry in entries.items():
        tree = repository.objects.edit(tree, {path: entry})
    return tree or repository.objects.write("tree", b"")


@dataclass(frozen=True)
class Workspace:
    """A folder laid out for a build; see `sparkwright.native`."""

    root: Path
    toolchain: Toolchain

    @property
    def source(self) -> Path:
        """The native inputs of the merged tree."""
        return self.root / "source"

    @property
    def build(self) -> Path:
        """Objects and extensions; every command runs here."""
        return self.root / "build"

    def expand(self, argv: tuple[str, ...]) -> list[str]:
        """Return a recorded command with this folder in place of its placeholder."""
        return [part.replace(WORK, str(self.root)) for part in argv]

    def abstract(self, text: str) -> str:
        """Return *text* with the placeholder for this folder, and for the targets of its links."""
        for place, name in self._places():
            text = text.replace(place, f"{WORK}/{name}" if name else WORK)
        return text

    def _places(self) -> list[tuple[str, str]]:
        """Return the paths of this folder's parts in a tool's output, with their names, longest first."""
        links = [(os.path.realpath(path), name) for name, path in _links(self.toolchain).items()]
        return sorted([(str(self.root), ""), *links], key=lambda place: -len(place[0]))


def _links(toolchain: Toolchain) -> dict[str, Path]:
    return {"cuda": toolchain.cuda, "torch": toolchain.torch, "python": toolchain.python_include}


@contextlib.contextmanager
def open_workspace(
    store: Store, repository: Repository, tree: str, toolchain: Toolchain
) -> Iterator[Workspace]:
    """Yield a scratch folder with *tree*'s files and links to *toolchain*; remove it after the block.

    Args:
        store: provides scratch space.
        repository: holds *tree*.
        tree: as from `native_tree`, generated files included where there are any.
        toolchain: the targets of the links.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    with store.scratch() as scratch:
        # Tools resolve links in paths that they print; without any there is only one name for a file.
        root = scratch.resolve() / "work"
        check_out(repository, tree, root)
        for name, path in _links(toolchain).items():
            (root / name).symlink_to(path.resolve())
        (root / "deps").mkdir(exist_ok=True)
        (root / "build").mkdir()
        yield Workspace(root, toolchain)


@dataclass(frozen=True)
class Reader:
    """Classifier of the files that a compiler reads in one work folder: hashed, of the toolchain, or neither.

    The toolchain's key covers every file of the toolchain, so those are not recorded one by one. Compilers
    spell such files in several ways: through the links of the work folder, or (GCC, where that is shorter)
    with all links resolved.

    Attributes:
        work: the work folder, with no link in its path.
        toolchain: the targets of ``cuda/``, ``torch/`` and ``python/`` in it.
        told: units that caused a warning, because they read an uncovered file.
    """

    work: Path
    toolchain: Toolchain
    told: list[str] = field(default_factory=list, compare=False)

    def hashed(self, path: str) -> str | None:
        """Return *path* relative to the work folder if it is in a tree of sources there, else `None`.

        A file that is reached through a link has two names and counts as neither.
        """
        place = os.path.normpath(path)
        if not place.startswith(self._hashed) or os.path.realpath(path) != place:
            return None
        return place[len(self._root) :]

    def covered(self, path: str) -> bool:
        """Tell if the toolchain's key covers the file at *path*."""
        if ".." in path:
            path = os.path.realpath(path)
        if path.startswith(self._covered) or _SYSTEM.match(path):
            return True
        return os.path.realpath(path).startswith(self._covered)

    def absolute(self, path: str) -> str:
        """Return *path* as seen from the folder that commands run in."""
        return os.path.join(self._root, "build", path)  # noqa: PTH118 - a thousand for each unit

    @cached_property
    def _root(self) -> str:
        return f"{self.work}/"

    @cached_property
    def _hashed(self) -> tuple[str, ...]:
        return tuple(f"{self._root}{name}/" for name in _HASHED)

    @cached_property
    def _covered(self) -> tuple[str, ...]:
        chain = self.toolchain
        linked = (os.path.realpath(path) for path in (chain.cuda, chain.torch, chain.python_include))
        folders = (*linked, *chain.headers)
        return (*(f"{self._root}{name}/" for name in _LINKED), *(f"{path}/" for path in folders))
