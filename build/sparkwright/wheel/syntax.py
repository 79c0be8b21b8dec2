"""Check which Python files of a wheel the oldest supported Python cannot compile, with ruff and a cache."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from packaging.specifiers import SpecifierSet

from sparkwright.base import process
from sparkwright.base.config import Model
from sparkwright.base.digests import digest_of
from sparkwright.store import Store

_MINORS = range(7, 15)
_KIND = "compiles"
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)  # a stack that overflowed
# Errors of CPython's compiler beyond its grammar: late __future__ imports, too many starred
# targets, and break, continue, yield, return, bare except, nonlocal and global out of place.
_RULES = "E9,F404,F622,F701,F702,F704,F706,F707,PLE0117,PLE0118"


def floor_of(requires_python: str) -> str:
    """Return the oldest Python 3 that the PEP 440 specifier *requires_python* allows, such as ``3.10``."""
    allowed = SpecifierSet(requires_python)
    return next((f"3.{minor}" for minor in _MINORS if allowed.contains(f"3.{minor}.99")), f"3.{_MINORS[-1]}")


class _Compiling(Model, frozen=True):
    """SHA-256 of files in which no syntax error was found."""

    files: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SyntaxCheck:
    """Find the files that an old Python cannot compile; cache the others by content.

    Attributes:
        floor: the Python, such as ``3.10``.
        store: keeps the cache; `None` checks every file every time.
    """

    floor: str
    store: Store | None = None

    @cached_property
    def known(self) -> frozenset[str]:
        """SHA-256 of the files of the latest wheel that compile."""
        found = self.store and self.store.find_record_as(_Compiling, _KIND, self._key)
        return found.files if found else frozenset()

    def remember(self, files: Iterable[str]) -> None:
        """Cache that the files with these SHA-256 compile, in place of the former ones."""
        kept = frozenset(files)
        if self.store is not None and kept != self.known:
            self.store.put_record(_KIND, self._key, {"files": sorted(kept)})

    @property
    def _key(self) -> str:
        return digest_of([_RULES, version("ruff"), self.floor])

    def errors(self, folder: Path) -> Sequence[tuple[str, str]]:
        """Return the errors among the files in *folder*.

        Returns:
            The file's name, and the line with the reason, for each error.

        Raises:
            ProcessError: ruff itself failed.
        """
        return self._errors(folder, sorted(path.name for path in folder.iterdir()))

    def _errors(self, folder: Path, files: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Return the errors among *files*; a file that crashes ruff, as deep nesting does, is one too."""
        from ruff.__main__ import find_ruff_bin

        if not files:
            return []
        # One thread, so that ruff never reads several files that take gigabytes at once.
        done = process.run(
            [find_ruff_bin(), "check", "--isolated", "--no-cache", "--ignore-noqa", "--select", _RULES,
             "--target-version", "py" + self.floor.replace(".", ""), "--output-format", "json", *files],
            cwd=folder, env={**os.environ, "RAYON_NUM_THREADS": "1"}, accept=(0, 1, *_CRASHES),
        )  # fmt: skip
        if done.status in _CRASHES:
            if len(files) == 1:
                return [(files[0], "no line: it cannot be parsed, its nesting is too deep")]
            half = len(files) // 2
            return [*self._errors(folder, files[:half]), *self._errors(folder, files[half:])]
        found: list[Mapping[str, object]] = json.loads(done.stdout)
        return [(os.path.basename(str(one["filename"])), _reason(one)) for one in found]  # noqa: PTH119


def _reason(error: Mapping[str, object]) -> str:
    location = error.get("location")
    line = location.get("row") if isinstance(location, dict) else "?"
    return f"line {line}: {error.get('message')}"
