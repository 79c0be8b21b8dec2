"""The trees of one merge, and the Python files in them, read when they are asked for."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import lru_cache

from sparkwright.git.repository import SUBMODULE, Repository, TreeEntry
from sparkwright.merge.modules import Module, fault_of, read_module


# By blob id: a patchset meets the same files again and again, and most differ in no merge.
@lru_cache(maxsize=2_000)
def _module(repository: Repository, blob: str) -> Module:
    return read_module(repository.blob(blob))


@lru_cache(maxsize=20_000)
def _fault(repository: Repository, blob: str) -> str:
    return fault_of(repository.blob(blob))


@lru_cache(maxsize=20_000)
def _words(pattern: re.Pattern[bytes], repository: Repository, blob: str) -> frozenset[str]:
    return frozenset(word.decode() for word in pattern.findall(repository.blob(blob)) if word.isascii())


@dataclass(frozen=True)
class Sides:
    """Tree ids of one merge."""

    base: str
    ours: str
    theirs: str
    merged: str


@dataclass(frozen=True)
class Side:
    """One tree of a merge."""

    repository: Repository
    tree: str

    def entry(self, path: str) -> TreeEntry | None:
        """Return the file at *path*, if there is one, and no submodule."""
        entry = self.repository.objects.entry(self.tree, path)
        return None if entry is None or entry.mode == SUBMODULE else entry

    def text(self, path: str) -> bytes:
        """Return the bytes of the file at *path*; none where there is no such file."""
        entry = self.entry(path)
        return b"" if entry is None else self.repository.blob(entry.blob)

    def module(self, path: str) -> Module | None:
        """Return the facts of the file at *path*, if there is one."""
        entry = self.entry(path)
        return None if entry is None else _module(self.repository, entry.blob)

    def fault(self, path: str) -> str:
        """Return why the file at *path* does not compile; nothing where it does."""
        entry = self.entry(path)
        return "" if entry is None else _fault(self.repository, entry.blob)

    def words(self, pattern: re.Pattern[bytes], path: str) -> frozenset[str]:
        """Return the words that *pattern* finds in the file at *path*."""
        entry = self.entry(path)
        return frozenset() if entry is None else _words(pattern, self.repository, entry.blob)

    def holds(self, module: str, name: str) -> bool | None:
        """Tell if ``from module import name`` finds something; `None` where the tree has no such module."""
        folder = module.replace(".", "/")
        if name and name != "*" and self._file(f"{folder}/{name}") is not None:
            return True
        path = self._file(folder)
        found = None if path is None else self.module(path)
        if found is None:
            return None
        return name in {"", "*"} or name in found.bound or found.open

    def sources(self, module: str, name: str) -> tuple[TreeEntry | None, ...]:
        """Return the files that determine `holds` for *name* in *module*."""
        folder = module.replace(".", "/")
        stems = (folder, f"{folder}/{name}")
        return tuple(self.entry(f"{stem}{end}") for stem in stems for end in (".py", "/__init__.py"))

    def _file(self, stem: str) -> str | None:
        paths = (f"{stem}.py", f"{stem}/__init__.py")
        return next((path for path in paths if self.entry(path) is not None), None)


def changed_python(old: Side, new: Side) -> list[str]:
    """Return paths of the Python files that differ and are shipped."""
    changed = old.repository.changed(old.tree, new.tree)
    return [path for path in changed if path.endswith(".py") and not is_text(path)]


# Paths of tests and documents ---------------------------------------------------------------------

_TEXTS = (
    "tests/*", "*/tests/*", "docs/*", "examples/*", "benchmarks/*", ".github/*", ".buildkite/*", "*.md",
    "*.rst",
)  # fmt: skip
_IS_TEXT = re.compile("|".join(map(fnmatch.translate, _TEXTS)))


def is_text(path: str) -> bool:
    """Tell if *path* is a test or a document, and so neither shipped nor compiled."""
    return _IS_TEXT.match(path) is not None
