"""The unit cache: an object that was compiled from the same command and the same files is not compiled again.

It works like ccache's direct mode, with git's blob ids in place of file hashes: the trees to be compiled
name every file's content already, so a look-up opens one record and no source.

The objects of one command and source are kept under one key, as a list of *manifests*: the files that the
compiler read, and for each recorded state of those files the resulting object. A state holds

- the blob ids of all files read below ``source/`` and ``deps/``;
- for the base name of every file read, the toolchain's included, which paths of that name there are in
  the trees that the command searches or that a file was read from: a header that appears earlier on the
  include path takes another's place, and must have one of these names. A dependency that comes or goes
  changes nothing for the units that do not name it;
- the same for every name that a file below these folders checks with ``__has_include``: a compiler does
  not report the files that it looked for and did not find.

Not covered: a name given to ``__has_include`` by a macro, or checked by a header of the toolchain; a
header that appears in a folder which is no part of the trees, such as ``/usr/local/include``. A unit that
*reads* such a file is left out of the cache.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes, sha256_file
from sparkwright.base.events import emit, warn
from sparkwright.git.repository import Repository
from sparkwright.git.trees import blob_id
from sparkwright.native.configure import Reader
from sparkwright.native.model import WORK, Cost, Unit
from sparkwright.store.paths import Store

# Part of the key: raised when the meaning of the records below changes.
_RULES = 2
_KIND = "unit"
_MOST_MANIFESTS = 4
_MOST_STATES = 16
_LINK = "120000"

_ASKED = re.compile(rb"has_include\w*\s*\(\s*[<\"]([^>\"\n]+)[>\"]", re.IGNORECASE)
_EMBEDS = (b".incbin", b"#embed")


@dataclass(frozen=True)
class UnitFiles:
    """The files of the trees that are compiled.

    Attributes:
        blobs: git blob id by path relative to the work folder, such as ``source/csrc/ops.h``; generated
            files included, links left out.
    """

    blobs: Mapping[str, str]

    @classmethod
    def of(cls, repository: Repository, tree: str) -> UnitFiles:
        """Return the files of *tree*, git's id of one with ``source`` and ``deps``."""
        entries = repository.files(tree)
        return cls({path: entry.blob for path, entry in entries.items() if entry.mode != _LINK})

    @cached_property
    def roots(self) -> frozenset[str]:
        """The trees: ``source``, and each folder of ``deps``."""
        return frozenset(map(_root_of, self.blobs))

    @cached_property
    def _marks(self) -> dict[frozenset[str], _Marks]:
        """The parts of `state` by the trees that a command searches, as far as they are computed."""
        return {}

    def state(self, unit: Unit, paths: Iterable[str], names: Iterable[str]) -> str | None:
        """Return the digest of *paths*' content, and of the places of their base names and of *names*.

        `None` where one of *paths* does not exist any more.
        """
        paths = tuple(paths)
        roots = _searched(unit, self.roots) | set(map(_root_of, paths))
        if (marks := self._marks.get(roots)) is None:
            marks = self._marks[roots] = _Marks.of(self.blobs, roots)
        try:
            read = "".join(map(marks.of_path.__getitem__, paths))
        except KeyError:
            return None
        places = "\0".join(map(marks.of_name.get, names, repeat("")))
        return sha256_bytes(f"{read}\0{places}".encode())


@dataclass(frozen=True)
class _Marks:
    """The parts of a state for a path, and for a base name.

    Attributes:
        of_path: each path's blob id, and the other paths of its base name.
        of_name: digest of the paths of each base name.
    """

    of_path: Mapping[str, str]
    of_name: Mapping[str, str]

    @classmethod
    def of(cls, blobs: Mapping[str, str], roots: frozenset[str]) -> _Marks:
        """Return the marks of *blobs*, of which only those below *roots* can shadow each other."""
        within = {path: blob for path, blob in blobs.items() if _root_of(path) in roots}
        places: dict[str, list[str]] = {}
        for path in sorted(within):
            places.setdefault(posixpath.basename(path), []).append(path)
        of_name = {name: sha256_bytes(os.fsencode("\n".join(paths))) for name, paths in places.items()}
        return cls({path: blob + of_name[posixpath.basename(path)] for path, blob in within.items()}, of_name)


def _root_of(path: str) -> str:
    """Return the tree that *path* is in: ``source``, ``deps/cutlass``."""
    first, _, rest = path.partition("/")
    return first if first != "deps" else f"deps/{rest.partition('/')[0]}"


def _searched(unit: Unit, roots: frozenset[str]) -> frozenset[str]:
    """Return those of *roots* that *unit*'s command names: as include folder, forced include or macro."""
    words = "\0".join((*unit.argv, ""))
    named = (root for root in roots if re.search(rf"{re.escape(f'{WORK}/{root}')}[/\0\"]", words))
    return frozenset({_root_of(unit.source), *named})


class _State(Model, frozen=True):
    """One state of the files that a manifest names, and the object compiled from it."""

    state: str
    sha256: str
    size: int
    cost: Cost


class _Manifest(Model, frozen=True):
    """The files that were read, the other base names that count, and the states, newest first."""

    paths: tuple[str, ...]
    names: tuple[str, ...]
    states: tuple[_State, ...]


class UnitRecord(Model, frozen=True):
    """All manifests of one key, newest first: what was read, and which object came of it."""

    manifests: tuple[_Manifest, ...] = ()


def unit_key(unit: Unit, files: UnitFiles, toolchain_key: str) -> str:
    """Return the key of *unit*'s command and source, whatever headers that includes."""
    return digest_of([_RULES, unit.argv, toolchain_key, unit.source, files.blobs.get(unit.source)])


def find_object(store: Store, unit: Unit, files: UnitFiles, toolchain_key: str) -> str | None:
    """Return the SHA-256 of an object in the store that compiling *unit* would give, or `None`."""
    key = unit_key(unit, files, toolchain_key)
    here = None
    for record in store.find_records_as(UnitRecord, _KIND, key):
        for manifest in record.manifests:
            now = files.state(unit, manifest.paths, manifest.names)
            for known in manifest.states:
                if known.state == now and store.find_file(known.sha256, size=known.size):
                    if here is not None:  # another machine compiled it
                        _extend(store, key, (record,), share=False)
                    return known.sha256
        here = record
    return None


def missing_units(store: Store, units: Iterable[Unit], files: UnitFiles, toolchain_key: str) -> list[Unit]:
    """Return those of *units* that have to be compiled, in their order."""
    return [unit for unit in units if find_object(store, unit, files, toolchain_key) is None]


def record_object(
    store: Store,
    unit: Unit,
    files: UnitFiles,
    toolchain_key: str,
    *,
    reader: Reader,
    depfile: Path,
    object_path: Path,
    cost: Cost,
) -> tuple[str, bool]:
    """Store an object that was just compiled, for later builds that would compile the same.

    *object_path* stays where it is; *reader* distinguishes files of the toolchain from files of the trees.

    Returns:
        its SHA-256, and whether later builds find it. They do not if the unit read a file that neither the
        trees nor the toolchain's key cover; the first unit that does so causes a warning.
    """
    sha256, size = _keep(store, object_path)
    try:
        paths, names = _classify(unit, files, reader, read_depfile(depfile))
    except (_NotCoveredError, OSError) as error:
        emit("unit.not-cached", unit=unit.name, because=str(error))
        if not reader.told:
            reader.told.append(unit.name)
            warn(f"{unit.name} will be compiled every time: {error}", unit=unit.name)
        return sha256, False
    state = files.state(unit, paths, names)
    assert state is not None  # noqa: S101 - every path is known here
    key = unit_key(unit, files, toolchain_key)
    made = _State(state=state, sha256=sha256, size=size, cost=cost)
    new = UnitRecord(manifests=(_Manifest(paths=paths, names=names, states=(made,)),))
    # What other machines recorded meanwhile is kept, so that writing this one there loses none of it.
    known = store.find_records_as(UnitRecord, _KIND, key, fresh=True)
    _extend(store, key, (*known, new), share=True)
    return sha256, True


def unit_record(store: Store, key: str) -> UnitRecord | None:
    """Return all that this machine recorded under *key*, for `adopt_record` on another one."""
    return store.find_record_as(UnitRecord, _KIND, key)


def adopt_record(
    store: Store, unit: Unit, files: UnitFiles, toolchain_key: str, *, record: UnitRecord, sha256: str
) -> bool:
    """Record what another machine made of *unit*; return if it is the object for the files as they are here.

    *record* and *sha256* are what it states; the store or its remote tier has the object.
    """
    for manifest in record.manifests:
        now = files.state(unit, manifest.paths, manifest.names)
        for state in manifest.states:
            if (state.state, state.sha256) == (now, sha256) and store.find_file(sha256, size=state.size):
                mine = _Manifest(paths=manifest.paths, names=manifest.names, states=(state,))
                key = unit_key(unit, files, toolchain_key)
                _extend(store, key, (UnitRecord(manifests=(mine,)),), share=True)
                return True
    return False


def _extend(store: Store, key: str, records: Iterable[UnitRecord], *, share: bool) -> None:
    """Add the states in *records* to the record of *key*, those of the last one in front."""
    with store.lock(f"units-{key[:2]}", "the cache of objects"):
        merged = store.find_record_as(UnitRecord, _KIND, key) or UnitRecord()
        for record in records:
            merged = _joined(merged, record)
        store.put_record(_KIND, key, to_builtins(merged), share=share)


class _NotCoveredError(Exception):
    """A unit read a file that no key covers."""


def _classify(
    unit: Unit, files: UnitFiles, reader: Reader, read: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths below the hashed folders that *unit* read, and the other base names that count."""
    paths, names = set(), set()
    for spelled in read:
        path = reader.absolute(spelled)
        hashed = reader.hashed(path)
        if hashed is not None and hashed in files.blobs:
            paths.add(hashed)
        elif hashed is not None or not reader.covered(path):
            raise _NotCoveredError(f"it reads {spelled}, which is no part of the sources or the toolchain")
        names.add(posixpath.basename(path))
    if unit.source not in paths:
        raise _NotCoveredError("its dependency file does not name its source")
    for path in paths:
        names |= _asked_for((reader.work / path).read_bytes(), path, files.blobs[path])
    names -= {posixpath.basename(path) for path in paths}  # these count in any case
    return tuple(sorted(paths)), tuple(sorted(names))


def _asked_for(data: bytes, path: str, blob: str) -> set[str]:
    """Return the base names that the file at *path* checks with ``__has_include``.

    Raises:
        _NotCoveredError: it is not the file of that blob id, or embeds others in a way that no
            dependency file shows.
    """
    if blob_id(data) != blob:
        raise _NotCoveredError(f"{path} is not the file of the tree")
    for directive in _EMBEDS:
        if directive in data:
            raise _NotCoveredError(f"{path} embeds a file by {directive.decode()}")
    return {posixpath.basename(os.fsdecode(name)) for name in _ASKED.findall(data)}


def _keep(store: Store, object_path: Path) -> tuple[str, int]:
    """Copy an object into the store; return its digest and size."""
    with store.scratch() as scratch:
        copy = scratch / object_path.name
        shutil.copyfile(object_path, copy)
        # The record that will name it is synced, so it has to be on the disk before.
        with copy.open("rb") as stream:
            os.fsync(stream.fileno())
        sha256, size = sha256_file(copy), copy.stat().st_size
        store.adopt_file(copy, sha256, verified=True)
    return sha256, size


def _with(record: UnitRecord, paths: tuple[str, ...], names: tuple[str, ...], made: _State) -> UnitRecord:
    """Return *record* with one more state, in front, and without the oldest beyond the limits."""
    same = [entry for entry in record.manifests if (entry.paths, entry.names) == (paths, names)]
    others = [entry for entry in record.manifests if entry not in same]
    older = [known for entry in same for known in entry.states if known.state != made.state]
    manifest = _Manifest(paths=paths, names=names, states=(made, *older)[:_MOST_STATES])
    return UnitRecord(manifests=(manifest, *others)[:_MOST_MANIFESTS])


def _joined(older: UnitRecord, newer: UnitRecord) -> UnitRecord:
    """Return *older* with the states of *newer* in front."""
    for manifest in reversed(newer.manifests):
        for state in reversed(manifest.states):
            older = _with(older, manifest.paths, manifest.names, state)
    return older


# Dependency files ---------------------------------------------------------------------------------

# Make rules in which a compiler lists the files that it read (``-MD``). The dialect is GCC's
# (``libcpp/mkdeps.cc``, GNU Make "Rule Syntax"), which nvcc writes too: a backslash and a newline continue
# the line, ``\ `` is a space and ``\#`` a hash in a name, ``$$`` is a dollar. Before a space every backslash
# is doubled; anywhere else it is part of the name. A name that ends with a backslash cannot be told from one
# with a space, here as in Make.

# The colon that ends the targets is followed by a space or the end; one inside a name is not.
_COLON = re.compile(r":(?=\s|\Z)")
_WORD = re.compile(r"(?:\\[ \t\\]|[^ \t])+")
_QUOTED = re.compile(r"(\\+)([ \t#])")


def read_depfile(path: Path) -> tuple[str, ...]:
    """Return the prerequisites in the dependency file at *path*; see `parse_depfile`.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return parse_depfile(os.fsdecode(path.read_bytes()))


def parse_depfile(text: str) -> tuple[str, ...]:
    """Return the prerequisites of all rules in *text*, each once and in their order, as they are spelled.

    Targets are left out, and with them the rules without prerequisites that ``-MP`` adds.
    """
    found: dict[str, None] = {}
    for line in text.replace("\\\n", " ").split("\n"):
        colon = _COLON.search(line)
        if colon is not None:
            found.update(dict.fromkeys(_words(line[colon.end() :])))
    return tuple(found)


def _words(text: str) -> list[str]:
    # Nearly every file has only plain names, for which there is nothing faster.
    if text.isascii() and "\\" not in text and "$" not in text:
        return text.split()
    return [_QUOTED.sub(_unquote, word).replace("$$", "$") for word in _WORD.findall(text)]


def _unquote(found: re.Match[str]) -> str:
    slashes, mark = found.groups()
    return slashes[1:] + mark if mark == "#" else "\\" * (len(slashes) // 2) + mark
