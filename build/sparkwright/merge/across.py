"""Names that one side imports, and functions that it calls, and that the other side removed or changed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from sparkwright.merge.calls import Call, Signature
from sparkwright.merge.modules import Import
from sparkwright.merge.report import Hazard
from sparkwright.merge.resolved import misfits
from sparkwright.merge.sides import Side, changed_python
from sparkwright.merge.texts import is_text

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
