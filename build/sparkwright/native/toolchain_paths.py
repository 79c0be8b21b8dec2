"""Classify the files that a compiler reads: of the hashed sources, of the toolchain, or of neither.

The toolchain's key covers every file of the toolchain, so those are not recorded one by one.
Compilers spell such files in several ways: through the links of the work folder, through those of a
CUDA toolkit that itself consists of links, or (GCC, where that is shorter) with all links resolved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sparkwright.native.model import Toolchain

_LINKED = ("cuda", "torch", "python")
_HASHED = ("source", "deps")
# Of the compiler and the C library; no package owns /usr/local/include.
_SYSTEM = re.compile(r"/usr/(include|lib/gcc(-cross)?|\w+-linux-gnu\w*)/")


@dataclass(frozen=True)
class Reader:
    """Classifier of the paths in dependency files of one work folder.

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
        real = os.path.realpath(path)
        return real in self._linked_files or real.startswith((*self._covered, *self._linked_folders))

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
    def _real(self) -> tuple[str, ...]:
        chain = self.toolchain
        return tuple(os.path.realpath(path) for path in (chain.cuda, chain.torch, chain.python_include))

    @cached_property
    def _covered(self) -> tuple[str, ...]:
        folders = (*self._real, *self.toolchain.headers)
        return (*(f"{self._root}{name}/" for name in _LINKED), *(f"{path}/" for path in folders))

    @cached_property
    def _links(self) -> frozenset[str]:
        """The targets of the links inside the toolchain."""
        return frozenset(os.path.realpath(path) for root in self._real for path in _links_below(root))

    @cached_property
    def _linked_files(self) -> frozenset[str]:
        return frozenset(path for path in self._links if os.path.isfile(path))  # noqa: PTH113

    @cached_property
    def _linked_folders(self) -> tuple[str, ...]:
        return tuple(f"{path}/" for path in self._links - self._linked_files)


def _links_below(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield entry.path
            elif entry.is_dir():
                yield from _links_below(entry.path)
