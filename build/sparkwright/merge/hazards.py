"""Clean is not correct: what a three-way merge can get wrong without a conflict.

*Flaws* are beyond doubt and make the engine refuse the carry: Python that no longer compiles, and
a definition that stands twice although each side had it once. *Hazards* are reported: functions that
both sides changed since the base.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from sparkwright.merge.report import Hazard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkwright.git import Entry, Repository

__all__ = ["Sides", "examine", "find_both_sides", "find_flaws"]

_LINE_END = re.compile(r"\r\n|\r|\n")  # where Python ends a line, unlike str.splitlines
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Sides:
    """Tree ids of one merge."""

    base: str
    ours: str
    theirs: str
    merged: str


def examine(repository: Repository, sides: Sides) -> tuple[tuple[str, ...], tuple[Hazard, ...]]:
    """Flaws (in words) and hazards of a clean merge, over the Python files that it changed."""
    flaws: list[str] = []
    hazards: list[Hazard] = []
    paths = [path for path in repository.changed(sides.ours, sides.merged) if path.endswith(".py")]
    if not paths:
        return (), ()
    entries = {
        tree: repository.files(tree, paths) for tree in (sides.base, sides.ours, sides.theirs, sides.merged)
    }
    for path in paths:
        merged = _text(repository, entries[sides.merged].get(path))
        ours, theirs = entries[sides.ours].get(path), entries[sides.theirs].get(path)
        if merged is None:
            continue
        # A file that only one side changed is that side's file: it can neither double nor mix.
        mixed = ours is not None and theirs is not None and ours != entries[sides.base].get(path)
        our_text = _text(repository, ours) if mixed else None
        their_text = _text(repository, theirs) if mixed else None
        flaws += find_flaws(path, merged, our_text, their_text)
        base = _text(repository, entries[sides.base].get(path)) if mixed else None
        if base is not None and our_text is not None and their_text is not None:
            hazards += find_both_sides(path, base, our_text, their_text)
    return tuple(flaws), tuple(hazards)


def _text(repository: Repository, entry: Entry | None) -> bytes | None:
    return None if entry is None else repository.blob(entry.blob)


def find_flaws(path: str, merged: bytes, ours: bytes | None, theirs: bytes | None) -> list[str]:
    """What is plainly broken in *merged*; the two sides are `None` when only one changed the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an escape that upstream misspelt: no flaw of the merge
            compile(merged, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return [f"{path} does not compile after a clean merge: {error}"]
    if ours is None or theirs is None:
        return []
    before = [Counter(dict(_counts(side))) for side in (ours, theirs)]
    return [
        f"{path} defines {name} {count} times after a clean merge"
        for name, count in _counts(merged)
        if count > 1 and count > max(side[name] for side in before)
    ]


def find_both_sides(path: str, base: bytes, ours: bytes, theirs: bytes) -> list[Hazard]:
    """Functions of *path* whose text both sides changed since the base, innermost only."""
    old, left, right = (_functions(text) for text in (base, ours, theirs))
    both = [
        name
        for name, text in old.items()
        if name in left and name in right and left[name] != text and right[name] != text
    ]
    inner = [name for name in both if not any(other.startswith(f"{name}.") for other in both)]
    return [Hazard(kind="both-sides", path=path, name=name) for name in inner]


def _counts(source: bytes) -> list[tuple[str, int]]:
    """How often each undecorated definition stands in *source*, by qualified name.

    Decorated ones are left out: overloads, setters and registrations repeat names rightly.
    """
    return list(Counter(name for name, node in _definitions(source) if not node.decorator_list).items())


def _functions(source: bytes) -> dict[str, str]:
    """Text of each function by qualified name."""
    lines = _LINE_END.split(source.decode(errors="replace"))
    return {
        name: "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for name, node in _definitions(source)
        if not isinstance(node, ast.ClassDef)
    }


def _definitions(source: bytes) -> list[tuple[str, Definition]]:
    try:
        return _parse(hashlib.sha256(source).digest(), _Source(source))
    except (SyntaxError, ValueError):
        return []  # a side that did not compile before the merge has nothing to compare


@dataclass(frozen=True, eq=False)
class _Source:
    """Carries the text past the cache, whose key is the digest alone."""

    text: bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Source)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=64)
def _parse(_digest: bytes, source: _Source) -> list[tuple[str, Definition]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(_walk(ast.parse(source.text), ""))


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            name = f"{prefix}{child.name}"
            yield name, child
            yield from _walk(child, f"{name}.")
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _walk(child, prefix)
