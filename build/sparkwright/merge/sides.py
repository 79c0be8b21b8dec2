"""The trees of one merge, and the Python files in them, read when they are asked for."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sparkwright.git.repository import SUBMODULE, Repository, TreeEntry
from sparkwright.merge.modules import Module, fault_of, read_module

K = TypeVar("K")
V = TypeVar("V")

# By blob id: a patchset meets the same files again and again, and most differ in no merge.
_modules: dict[str, Module] = {}
_faults: dict[str, str] = {}
_words: dict[tuple[re.Pattern[bytes], str], frozenset[str]] = {}
_MOST_MODULES = 2_000
_MOST_WORDS = 20_000


def _kept(kept: dict[K, V], key: K, make: Callable[[], V], most: int) -> V:
    """Return what *kept* has under *key*, made now where it has none; the oldest of *most* makes way."""
    if key not in kept:
        while len(kept) >= most:
            del kept[next(iter(kept))]
        kept[key] = make()
    return kept[key]


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
        """Return the file at *path*, if there is one."""
        return self.repository.objects.entry(self.tree, path)

    def text(self, path: str) -> bytes:
        """Return the bytes of the file at *path*; none where there is no such file, or a submodule."""
        entry = self.entry(path)
        return b"" if entry is None or entry.mode == SUBMODULE else self.repository.blob(entry.blob)

    def module(self, path: str) -> Module | None:
        """Return the facts of the file at *path*, if there is one."""
        entry = self.entry(path)
        if entry is None:
            return None
        return _kept(_modules, entry.blob, lambda: read_module(self.text(path)), _MOST_MODULES)

    def fault(self, path: str) -> str:
        """Return why the file at *path* does not compile; nothing where it does."""
        entry = self.entry(path)
        if entry is None:
            return ""
        return _kept(_faults, entry.blob, lambda: fault_of(self.text(path)), _MOST_WORDS)

    def words(self, pattern: re.Pattern[bytes], path: str) -> frozenset[str]:
        """Return the words that *pattern* finds in the file at *path*."""
        entry = self.entry(path)
        if entry is None:
            return frozenset()

        def find() -> frozenset[str]:
            return frozenset(word.decode() for word in pattern.findall(self.text(path)) if word.isascii())

        return _kept(_words, (pattern, entry.blob), find, _MOST_WORDS)

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
