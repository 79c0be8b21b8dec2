"""Differences between two recordings, each with a name, and the list of those that are intended."""

from __future__ import annotations

import difflib
import fnmatch
import math
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCURACY = 1e-9
"""Relative and absolute tolerance of numbers: sums may be added up in another order."""
ABSENT = "(absent)"
FAILED = "(failed)"
# Entries of lists are compared by what names them, so that one that comes or goes moves no other.
_NAMES = ("name", "carry", "check", "part", "flag", "variable", "member", "path", "file", "what", "id")
_WIDTH = 150


@dataclass(frozen=True)
class Difference:
    """One value that is not what was recorded.

    Attributes:
        name: the item and the path of the value in it.
    """

    name: str
    before: Any
    after: Any

    def __str__(self) -> str:
        """Return one line, and the lines that differ of a longer text."""
        if isinstance(self.before, str) and isinstance(self.after, str) and "\n" in self.before + self.after:
            lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=0)
            changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
            return "\n".join([self.name, *(f"    {line[:_WIDTH]}" for line in changed[:6])])
        width = 2000 if self.failed else _WIDTH
        return f"{self.name}: {_short(self.before)} -> {_short(self.after, width)}"

    @property
    def failed(self) -> bool:
        """Tell if the item could not be made."""
        return self.name.endswith(f"/{FAILED}")


def _short(value: Any, width: int = _WIDTH) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= width else f"{text[:width]}…"


def differences(name: str, before: Any, after: Any) -> Iterator[Difference]:
    """Yield every difference of *after* from *before*, named by its path below *name*."""
    before, after = _keyed(before), _keyed(after)
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from differences(f"{name}/{key}", before.get(key, ABSENT), after.get(key, ABSENT))
    elif not _equal(before, after):
        yield Difference(name, before, after)


def _equal(before: Any, after: Any) -> bool:
    if isinstance(before, bool) or isinstance(after, bool):
        return before is after
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        return math.isclose(before, after, rel_tol=ACCURACY, abs_tol=ACCURACY)
    return type(before) is type(after) and bool(before == after)


def _keyed(value: Any) -> Any:
    """Return a list as a mapping: by its entries' names where each has its own, else by numbers."""
    if not isinstance(value, list) or not value:
        return value
    if all(isinstance(one, dict) for one in value):
        for key in _NAMES:
            names = [one.get(key) for one in value]
            if all(isinstance(name, str) for name in names) and len({*names}) == len(names):
                order = {"(order)": " ".join(map(str, names))}
                return {**{str(one[key]): one for one in value}, **order}
    return {f"{number:03}": one for number, one in enumerate(value)}


@dataclass
class Accepted:
    """Differences that a step of the slimming intends.

    Attributes:
        reasons: by a pattern of names, as `fnmatch` reads it.
        words: what a text has in place of other words, by such a pattern: no further change is accepted.
        used: number of differences by pattern.
    """

    reasons: dict[str, str]
    words: dict[str, tuple[str, str]]
    used: dict[str, int]

    @classmethod
    def read(cls, path: Path) -> Accepted:
        """Return the list in the file at *path*: ``[[accepted]]`` with names and a reason each.

        An entry may have ``words``: those before and those in their place.
        """
        listed = tomllib.loads(path.read_text(encoding="utf-8")).get("accepted", []) if path.exists() else []
        entries = [(name, entry) for entry in listed for name in entry["names"]]
        reasons = {name: str(entry["reason"]).strip() for name, entry in entries}
        if len(reasons) < len(entries) or not all(reasons.values()):
            raise SystemExit(f"{path}: a name is given twice, or a reason is missing")
        words = {name: (*entry["words"],) for name, entry in entries if "words" in entry}
        return cls(reasons, words, dict.fromkeys(reasons, 0))

    def take(self, found: Iterable[Difference]) -> list[Difference]:
        """Return those of *found* that are not accepted; count the others."""
        left: list[Difference] = []
        for one in found:
            matching = [pattern for pattern in self.reasons if self._matches(pattern, one)]
            for pattern in matching:
                self.used[pattern] += 1
            left += [] if matching else [one]
        return left

    def _matches(self, pattern: str, one: Difference) -> bool:
        if not fnmatch.fnmatchcase(one.name, pattern):
            return False
        return pattern not in self.words or str(one.before).replace(*self.words[pattern]) == one.after

    def unused(self, items: Iterable[str]) -> list[str]:
        """Return the patterns about one of *items* that no difference matched."""
        names = [*items]
        return [
            pattern
            for pattern, count in self.used.items()
            if not count and any(fnmatch.fnmatchcase(name, pattern.partition("/")[0]) for name in names)
        ]
