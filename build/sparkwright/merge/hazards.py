"""Clean is not correct: what a three-way merge can get wrong without a conflict.

*Flaws* are beyond doubt and make the engine refuse the carry: Python that no longer compiles, what
stands twice although each side had it once, and names that one side uses and the other took away.
*Hazards* are reported for a person to look at. All is judged by difference: what is wrong on one of
the sides already is not of the merge.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.git.repository import Repository
from sparkwright.merge.modules import Call, Import, Module, Signature, Thing
from sparkwright.merge.report import Hazard
from sparkwright.merge.resolved import misfits
from sparkwright.merge.sides import Side, Sides, changed_python, is_text
from sparkwright.store.paths import Store

_RECORD = "examined"
_RULES = ("hazards.py", "modules.py", "resolved.py", "sides.py")


class Examined(Model, frozen=True):
    """The findings on one clean merge.

    Attributes:
        flaws: reasons to refuse it.
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


# Between files ------------------------------------------------------------------------------------

_DEFINED = re.compile(rb"\b(?:def|class)[ \t]++(\w++)")
_CALLED = re.compile(rb"\b(\w++)[ \t]*+(?:\[[^\[\]\n]*+\])?+\(")
_MOST_PLACES = 20  # of a name defined in more files than that, the called definition is unknown
_COMMON = frozenset(name for kind in (str, bytes, list, dict, set, object) for name in dir(kind))


def missing_imports(base: Side, ours: Side, theirs: Side, merged: Side) -> list[str]:
    """Return a flaw for each name that a file imports, and finds on its own side but not in *merged*."""
    flaws: list[str] = []
    paths = changed_python(ours, merged)
    others = changed_python(base, ours)
    gone = _gone(ours, merged, paths) if others else ()
    if gone:  # what the other side changed may import them, though the change did not reach those files
        mentions = re.compile(
            rb"\b(?:" + b"|".join(re.escape(name.encode()) for name in sorted(gone)) + rb")\b"
        )
        paths += [path for path in others if path not in paths and mentions.search(merged.text(path))]
    for path in paths:
        found, left = merged.module(path), ours.module(path)
        for entry in sorted(found.imports) if found is not None else ():
            module = _absolute(entry, path)
            side = ours if left is not None and entry in left.imports else theirs
            if not module or merged.sources(module, entry.name) == side.sources(module, entry.name):
                continue
            if not merged.holds(module, entry.name) and side.holds(module, entry.name):
                named = f"{entry.name} from {module}" if entry.name else module
                flaws.append(f"{path} imports {named} after a clean merge, and it is not there any more")
    return flaws


def _gone(ours: Side, merged: Side, paths: list[str]) -> set[str]:
    """Return names, of modules too, that *paths* have in *ours* and not in *merged*."""
    names: set[str] = set()
    for path in paths:
        before, after = ours.module(path), merged.module(path)
        if before is not None and after is None:
            names.add(path.removesuffix("/__init__.py").removesuffix(".py").rpartition("/")[2])
        if before is not None:
            names |= before.bound - (after.bound if after is not None else frozenset())
    return names


def _absolute(entry: Import, path: str) -> str:
    """Return the full name of the module that *entry* of the file *path* names."""
    if not entry.level:
        return entry.module
    folders = path.split("/")[: -entry.level]
    return ".".join([*folders, *([entry.module] if entry.module else [])])


def lost_calls(base: Side, ours: Side, theirs: Side, merged: Side) -> list[Hazard]:
    """Return a hazard for each new call of one side that no longer fits what the other left of the callee.

    Callees are told by the last part of their name alone, so a call fits if any definition of that name
    takes it; where the text names the callee itself, `misfits` looks at that one. The carry's few files are
    read first: they name the few that matter among upstream's.
    """
    mine, other = changed_python(base, theirs), changed_python(base, ours)
    calls = [(path, call) for path in mine for call in _new_calls(base, theirs, path)]
    names = {call.name for _, call in calls} - _COMMON
    places = _words(_DEFINED, base, other, names)
    few = [path for paths in places.values() if len(paths) <= _MOST_PLACES for path in paths]
    found = [*_lost(calls, _changed(base, ours, few), merged), *misfits(base, theirs, merged, mine, other)]
    old = _changed(base, theirs, mine) if other else {}
    callers = [path for path in other if ours.words(_CALLED, path) & old.keys()]
    if len(callers) > _MOST_PLACES:  # common names; it takes reading all files to tell which are
        rare = {name for name, paths in _everywhere(merged, old.keys()).items() if len(paths) <= _MOST_PLACES}
        callers = [path for path in callers if ours.words(_CALLED, path) & rare]
    if callers:
        calls = [(path, call) for path in callers for call in _new_calls(base, ours, path)]
        found += [*_lost(calls, old, merged), *misfits(base, ours, merged, callers, mine)]
    return list(dict.fromkeys(found))


def _lost(
    calls: Iterable[tuple[str, Call]], old: Mapping[str, Mapping[str, Signature]], merged: Side
) -> Iterator[Hazard]:
    """Give a hazard for each of *calls*, by path, that fits what its callee took and nothing that is left."""
    calls = [
        (path, call)
        for path, call in calls
        if any(took.fits(call) for took in old.get(call.name, {}).values()) and merged.entry(path) is not None
    ]
    if not calls:
        return
    left = _definitions(merged, {call.name for _, call in calls})
    foreign = _called(merged, {call.name for _, call in calls} - left.keys(), {path for path, _ in calls})
    for path, call in calls:
        takers = left[call.name]
        if call.name not in foreign and not any(taker is None or taker.fits(call) for taker in takers):
            name = next(name for name, took in old[call.name].items() if took.fits(call))
            yield Hazard(kind="signature" if takers else "removed", path=path, name=name)


def _changed(base: Side, definer: Side, paths: Iterable[str]) -> dict[str, dict[str, Signature]]:
    """Return, by name and qualified name, what functions of *paths* took in *base* that *definer* changed."""
    found: dict[str, dict[str, Signature]] = defaultdict(dict)
    for path in dict.fromkeys(paths):
        before, after = base.module(path), definer.module(path)
        for qualified, took in before.signatures.items() if before is not None else ():
            name = qualified.rpartition(".")[2]
            if name not in _COMMON and (after is None or after.signatures.get(qualified) != took):
                found[name][qualified] = took
    return found


def _definitions(merged: Side, names: AbstractSet[str]) -> dict[str, list[Signature | None]]:
    """Return what everything called one of *names* takes in *merged*; `None` where its text does not say."""
    found: dict[str, list[Signature | None]] = defaultdict(list)
    for name, paths in _everywhere(merged, names).items():
        if len(paths) > _MOST_PLACES:
            found[name].append(None)
            continue
        for module in filter(None, map(merged.module, paths)):
            for thing in module.counts:
                if thing.kind == "definition" and thing.name.rpartition(".")[2] == name:
                    found[name].append(module.signatures.get(thing.name))
    return found


def _called(merged: Side, names: AbstractSet[str], besides: AbstractSet[str]) -> set[str]:
    """Return those of *names* that other files than *besides* call, though *merged* has no such function.

    They are another package's, such as a tensor's methods.
    """
    paths = [path for path in _shipped(merged) if path not in besides]
    return {name for name in names if any(name in merged.words(_CALLED, path) for path in paths)}


def _everywhere(merged: Side, names: AbstractSet[str]) -> dict[str, list[str]]:
    """Return, for each of *names* that *merged* defines, the paths of the files that do."""
    return _words(_DEFINED, merged, _shipped(merged), names)


def _shipped(side: Side) -> list[str]:
    return [path for path in side.repository.files(side.tree) if path.endswith(".py") and not is_text(path)]


def _new_calls(base: Side, caller: Side, path: str) -> Iterable[Call]:
    """Return the calls that *caller* has at *path* and *base* has not."""
    before, after = base.module(path), caller.module(path)
    if after is None:
        return ()
    return after.calls if before is None else after.calls - before.calls


def _words(
    pattern: re.Pattern[bytes], side: Side, paths: Iterable[str], names: AbstractSet[str]
) -> dict[str, list[str]]:
    """Return, for each of *names* that *pattern* finds, the paths of its files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths if names else ():
        for word in side.words(pattern, path) & names:
            found[word].append(path)
    return found
