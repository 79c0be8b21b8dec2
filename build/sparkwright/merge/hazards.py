"""Clean is not correct: what a three-way merge can get wrong without a conflict.

*Flaws* are beyond doubt and make the engine refuse the carry: Python that no longer compiles, what
stands twice although each side had it once, and names that one side uses and the other took away.
*Hazards* are reported for a person to look at. All is judged by difference: what is wrong on one of
the sides already is not of the merge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.git import Repository
from sparkwright.merge.across import lost_calls, missing_imports
from sparkwright.merge.modules import Module, Thing
from sparkwright.merge.report import Hazard
from sparkwright.merge.sides import Side, Sides
from sparkwright.store import Store

_RECORD = "examined"
_RULES = ("across.py", "calls.py", "hazards.py", "modules.py", "resolved.py", "sides.py", "texts.py")


class Examined(Model, frozen=True):
    """The findings on one clean merge.

    Attributes:
        flaws: reasons to refuse it.
        hazards: functions for a person to look at.
    """

    flaws: tuple[str, ...] = ()
    hazards: tuple[Hazard, ...] = ()


def examine(repository: Repository, sides: Sides, store: Store | None = None) -> Examined:
    """Return the findings on a clean merge, over the Python files that it changed.

    Four tree ids determine them, so *store* keeps them under these: a merge that was examined before is
    neither read nor parsed again.
    """
    paths = [path for path in repository.changed(sides.ours, sides.merged) if path.endswith(".py")]
    if not paths:
        return Examined()
    key = digest_of({"rules": _rules(), "trees": [sides.base, sides.ours, sides.theirs, sides.merged]})
    found = None if store is None else store.find_record_as(Examined, _RECORD, key)
    if found is None:
        found = _examine(repository, sides, paths)
        if store is not None:
            store.put_record(_RECORD, key, to_builtins(found))
    return found


@cache
def _rules() -> str:
    """Return a digest of the detectors and of Python, which determine findings as the trees do."""
    folder = Path(__file__).parent
    return digest_of([sys.version, *(sha256_bytes((folder / name).read_bytes()) for name in _RULES)])


def _examine(repository: Repository, sides: Sides, paths: Sequence[str]) -> Examined:
    base, ours, theirs, merged = (
        Side(repository, tree) for tree in (sides.base, sides.ours, sides.theirs, sides.merged)
    )
    flaws: list[str] = []
    hazards: list[Hazard] = []
    for path in paths:
        if merged.entry(path) is None:
            continue
        if fault := merged.fault(path):
            flaws.append(f"{path} does not compile after a clean merge: {fault}")
            continue
        # A file that only one side changed is that side's file: it can neither double nor mix.
        if ours.entry(path) == base.entry(path):
            continue
        found, left, right = merged.module(path), ours.module(path), theirs.module(path)
        if found is None or left is None or right is None:
            continue
        flaws += _undefined(path, found, left, right)
        for thing, same in _doubled(found, left, right):
            if same:
                hazards.append(Hazard(kind="doubled", path=path, name=thing.name))
            else:
                flaws.append(_told(path, thing, found))
        if (old := base.module(path)) is not None:
            hazards += _both_sides(path, old, left, right)
    flaws += missing_imports(base, ours, theirs, merged)
    hazards += lost_calls(base, ours, theirs, merged)
    return Examined(flaws=tuple(flaws), hazards=tuple(hazards))


def _undefined(path: str, merged: Module, ours: Module, theirs: Module) -> list[str]:
    """Return a flaw for each global that *merged* uses without having it, as neither side does."""
    if merged.open:
        return []
    names = sorted(merged.unbound - ours.unbound - theirs.unbound)
    return [f"{path} uses {name} after a clean merge, and nothing there defines it" for name in names]


def _doubled(merged: Module, ours: Module, theirs: Module) -> Iterator[tuple[Thing, bool]]:
    """Give what stands more often in *merged* than on either side, and whether with one value alone.

    Names that a side repeats already are repeated rightly, as overloads, setters and branches are; of them
    only plain definitions count. So is ``_``, the name of what is registered and never called by name.
    """
    for thing, count in merged.counts.items():
        before = max(ours.counts[thing], theirs.counts[thing])
        plain = max(ours.plain[thing], theirs.plain[thing])
        more = count > 1 and before <= 1 and thing.name.rpartition(".")[2].strip("_")
        if more or (merged.plain[thing] > 1 and merged.plain[thing] > plain):
            yield thing, len(merged.values.get(thing, ())) == 1


def _told(path: str, thing: Thing, merged: Module) -> str:
    count = merged.counts[thing]
    return f"{path} defines {thing.name} {count} times after a clean merge"


def _both_sides(path: str, base: Module, ours: Module, theirs: Module) -> list[Hazard]:
    """Return a hazard for each function whose text both sides changed since the base, innermost only."""
    old, left, right = base.functions, ours.functions, theirs.functions
    both = [
        name
        for name, text in old.items()
        if name in left and name in right and left[name] != text and right[name] != text
    ]
    inner = [name for name in both if not any(other.startswith(f"{name}.") for other in both)]
    return [Hazard(kind="both-sides", path=path, name=name) for name in inner]
