"""Check which Python files of a wheel the oldest supported Python cannot compile, with ruff."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet

from sparkwright.base import process

_MINORS = range(7, 15)
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)  # a stack that overflowed
# Errors of CPython's compiler beyond its grammar: late __future__ imports, too many starred
# targets, and break, continue, yield, return, bare except, nonlocal and global out of place.
_RULES = "E9,F404,F622,F701,F702,F704,F706,F707,PLE0117,PLE0118"


def floor_of(requires_python: str) -> str:
    """Return the oldest Python 3 that the PEP 440 specifier *requires_python* allows, such as ``3.10``."""
    allowed = SpecifierSet(requires_python)
    return next((f"3.{minor}" for minor in _MINORS if allowed.contains(f"3.{minor}.99")), f"3.{_MINORS[-1]}")


def syntax_errors(folder: Path, floor: str) -> Sequence[tuple[str, str]]:
    """Return the syntax errors that the Python *floor* finds in the files in *folder*.

    Returns:
        The file's name, and the line with the reason, for each error.

    Raises:
        ProcessError: ruff itself failed.
    """
    return _errors(folder, sorted(path.name for path in folder.iterdir()), floor)


def _errors(folder: Path, files: Sequence[str], floor: str) -> Sequence[tuple[str, str]]:
    """Return the errors among *files*; a file that crashes ruff, as deep nesting does, is one too."""
    from ruff.__main__ import find_ruff_bin

    if not files:
        return []
    # One thread, so that ruff never reads several files that take gigabytes at once.
    done = process.run(
        [find_ruff_bin(), "check", "--isolated", "--no-cache", "--ignore-noqa", "--select", _RULES,
         "--target-version", "py" + floor.replace(".", ""), "--output-format", "json", *files],
        cwd=folder, env={**os.environ, "RAYON_NUM_THREADS": "1"}, accept=(0, 1, *_CRASHES),
    )  # fmt: skip
    if done.status in _CRASHES:
        if len(files) == 1:
            return [(files[0], "no line: it cannot be parsed, its nesting is too deep")]
        half = len(files) // 2
        return [*_errors(folder, files[:half], floor), *_errors(folder, files[half:], floor)]
    found: list[Mapping[str, object]] = json.loads(done.stdout)
    return [(os.path.basename(str(one["filename"])), _reason(one)) for one in found]  # noqa: PTH119


def _reason(error: Mapping[str, object]) -> str:
    location = error.get("location")
    line = location.get("row") if isinstance(location, dict) else "?"
    return f"line {line}: {error.get('message')}"
