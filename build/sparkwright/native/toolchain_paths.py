"""What a compiler's file is: of the sources that we hash, of the toolchain, or of neither.

The toolchain's key stands for every file of the toolchain, so those need not be recorded one by one.
Compilers spell such files in several ways: through the links of the work folder, through those of a
CUDA toolkit that is itself put together from links, or (GCC, where that is shorter) with all links
resolved.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkwright.native.model import Toolchain

_LINKED = ("cuda", "torch", "python")
_HASHED = ("source", "deps")
# Of the compiler and the C library; /usr/local/include is nobody's.
_SYSTEM = re.compile(r"/usr/(include|lib/gcc(-cross)?|\w+-linux-gnu\w*)/")


@dataclass(frozen=True)
class Reader:
    """A compiler at work in one folder, whose dependency files are to be understood.

    Attributes:
        work: the work folder, with no link in its own path.
        toolchain: what ``cuda/``, ``torch/`` and ``python/`` in it lead to.
        told: units that the user was told of, because they read something else.
    """

    work: Path
    toolchain: Toolchain
    told: list[str] = field(default_factory=list, compare=False)

    def hashed(self, path: str) -> str | None:
        """*path* relative to the work folder if it is in a tree of sources there, else `None`.

        A file that is reached through a link has two names and is none of them.
        """
        place = os.path.normpath(path)
        if not place.startswith(self._hashed) or os.path.realpath(path) != place:
            return None
        return place[len(self._root) :]

    def covered(self, path: str) -> bool:
        """Whether the toolchain's key stands for the file at *path*."""
        if ".." in path:
            path = os.path.realpath(path)
        if path.startswith(self._covered) or _SYSTEM.match(path):
            return True
        real = os.path.realpath(path)
        return real in self._linked_files or real.startswith((*self._covered, *self._linked_folders))

    def absolute(self, path: str) -> str:
        """*path* as seen from the folder that commands run in."""
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
        return (*(f"{self._root}{name}/" for name in _LINKED), *(f"{path}/" for path in self._real))

    @cached_property
    def _links(self) -> frozenset[str]:
        """Where the links inside the toolchain lead to."""
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
