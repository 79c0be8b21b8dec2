"""Dependencies' sources, by content: the origin of a tree does not matter, only its id.

Start reading at `gather_sources`. The sources that upstream's CMake project would download are fetched
into the store's repository and laid out from there; CMake downloads nothing. A source that cannot be
fetched prevents only the extensions that need it: a stand-in lets CMake configure all the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from sparkwright.base.errors import DigestError, FetchError, NotInStoreError, RefError, SparkwrightError
from sparkwright.base.events import emit, task
from sparkwright.git.remotes import fetch, list_remote
from sparkwright.git.repository import Repository, TreeEntry, open_repository
from sparkwright.git.trees import FileEntry, import_files
from sparkwright.lock.check import require_native
from sparkwright.lock.model import Lock, Package, SourcePin, named
from sparkwright.native.model import SourceTree
from sparkwright.native.packages import below, open_package, read_members
from sparkwright.upstream.archive import EXECUTABLE, REGULAR
from sparkwright.upstream.releases import Access

_KIND = "source-tree"
_FULL_ID = 40
_SUBMODULE = "160000"
_STAND_IN = "STANDS-IN"  # git keeps no empty folder, and CMake needs one


@dataclass(frozen=True)
class _Wanted:
    """One requested source, with its entries of the lock."""

    name: str
    pin: SourcePin
    repository: str

    @property
    def unknown(self) -> str:
        """The reason that it is missing although nothing tried to fetch it: the lock has no tree of it."""
        if not self.pin.paths:
            return "nothing is compiled from it"
        return (
            f"the lock has no tree of {self.name} {self.pin.ref[:12]} yet: 'sparkwright lock bump' writes it "
            f"where {self.repository} can be reached, or from a clone with --copy {self.name}=FOLDER"
        )


class _UnavailableError(Exception):
    """One origin cannot provide a source; another may."""


def gather_sources(
    lock: Lock, access: Access, *, wanted: Iterable[str] | None = None
) -> dict[str, SourceTree]:
    """Return the sources called *wanted*, fetched where they are missing; all of the lock's by default.

    The store, a package and the git remote are tried in this order, and only the tree that the lock pins is
    accepted. If none of them has it, the tree of the lock's candidate is looked for in the same way.
    """
    found: dict[str, SourceTree] = {}
    for source in _wanted(lock, wanted):
        with task(f"source {source.name}"):
            found[source.name] = _gather(access, source)
        if found[source.name].missing and source.pin.tree is not None:
            emit("source.missing", name=source.name, why=found[source.name].missing)
    return found


def find_sources(lock: Lock, access: Access) -> dict[str, SourceTree] | None:
    """Return the result of `gather_sources` if nothing has to be fetched for it, else `None`."""
    found: dict[str, SourceTree] = {}
    for source in _wanted(lock, None):
        here = _from_store(access, source)
        if here is None and source.pin.tree is None:
            here = _candidate(access, source, source.unknown)
        if here is None and source.pin.trees:
            return None
        found[source.name] = here or _stand_in(access, source, source.unknown)
    return found


def _wanted(lock: Lock, names: Iterable[str] | None) -> Iterator[_Wanted]:
    native = require_native(lock)
    for name in native.sources if names is None else names:
        pin = named(native.sources, name, "source that kernels are compiled from")
        declared = None if pin.mount else lock.sources.get(name)
        yield _Wanted(name, pin, pin.repository or (declared.repository if declared else ""))


def _gather(access: Access, source: _Wanted) -> SourceTree:
    if (found := _from_store(access, source)) is not None:
        return found
    failures: list[str] = [source.unknown] if source.pin.tree is None else []
    for bring in (_from_package, _from_git) if source.pin.tree is not None else ():
        try:
            return bring(access, source)
        except _UnavailableError as error:
            failures += [str(error)] if str(error) else []
        except SparkwrightError as error:
            failures.append(str(error))
    why = "; ".join(failures)
    return _candidate(access, source, why, fetching=True) or _stand_in(access, source, why)


def _candidate(access: Access, source: _Wanted, why: str, *, fetching: bool = False) -> SourceTree | None:
    """Return the candidate for a source that is missing for the reason *why*.

    It is fetched only if an extension can be compiled from it.
    """
    candidate = source.pin.candidate
    if candidate is None:
        return None
    other = replace(source, pin=structs.replace(source.pin, ref=candidate.ref, tree=candidate.tree))
    found = _from_store(access, other)
    if found is None and fetching and candidate.tree in source.pin.trees:
        try:
            found = _from_git(access, other)
        except (_UnavailableError, SparkwrightError) as error:
            emit("source.missing", name=source.name, why=f"its candidate {candidate.ref}: {error}")
    return None if found is None else structs.replace(found, missing=why)


def _stand_in(access: Access, source: _Wanted, why: str) -> SourceTree:
    paths = (_STAND_IN, *source.pin.stand_in)
    tree = import_files(access.repository, [(path, FileEntry(REGULAR, b"")) for path in paths])
    access.repository.keep(_ref(tree), tree)
    return SourceTree(name=source.name, tree=tree, origin="stand-in", at_hand=False, missing=why)


def _ref(tree: str) -> str:
    return f"refs/sparkwright/sources/{tree}"


# The ways to get one ------------------------------------------------------------------------


def _from_store(access: Access, source: _Wanted) -> SourceTree | None:
    """Return the tree that an earlier run fetched."""
    tree = source.pin.tree
    record = access.store.find_record(_KIND, tree) if tree else None
    if tree is None or record is None or not access.repository.has(tree):
        return None
    return SourceTree(name=source.name, tree=tree, origin=str(record.get("origin", "the store")))


def _from_package(access: Access, source: _Wanted) -> SourceTree:
    """Return the tree in a wheel."""
    package, inner = source.pin.package, source.pin.folder
    if package is None:
        raise _UnavailableError
    tree = packaged_tree(access, package, inner, source.pin.paths)
    return _verified(access, source, tree, f"{package.project} {package.version}")


def _from_git(access: Access, source: _Wanted) -> SourceTree:
    """Return the tree at the git remote: one commit, and of its files only the requested ones.

    It is fetched into a separate partial repository.
    """
    address = source.repository
    if not address:
        raise _UnavailableError("the lock names no git repository for it")
    if access.settings.offline and not address.startswith("file://"):
        raise NotInStoreError(f"{source.name} is not in the store", because="the network is off")
    tree = _import(access.repository, read_revision(access, address, source.pin.ref, source.pin.paths).files)
    return _verified(access, source, tree, f"{address} at {source.pin.ref[:12]}")


@dataclass(frozen=True)
class Revision:
    """The files of one commit of a dependency."""

    files: dict[str, FileEntry]
    submodules: dict[str, str]


def read_revision(access: Access, address: str, ref: str, paths: Iterable[str]) -> Revision:
    """Return *paths* of the commit or tag *ref* at *address*; only these are transferred, if possible."""
    pin = SourcePin(ref=ref, paths=tuple(paths))
    with access.store.scratch() as scratch:
        try:
            return _read_remote(scratch / "parts", address, pin, whole=False)
        except (FetchError, RefError):  # a server may refuse to serve files by their ids
            return _read_remote(scratch / "whole", address, pin, whole=True)


def read_clone(folder: Path, ref: str, paths: Iterable[str]) -> Revision:
    """Return *paths* of the commit or tag *ref* in the user's repository *folder*, a clone or a bare one.

    Nothing is fetched from it, so it may be partial as long as it has these files.
    """
    place = folder / ".git"
    if place.is_file():  # a submodule's, or that of a further work tree (gitrepository-layout(5))
        place = folder / place.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    repository = Repository(place if place.is_dir() else folder)
    try:
        return _revision(repository, repository.tree_of(ref), paths)
    except RefError as error:
        raise FetchError(
            f"{folder} does not have {ref}", because=error.because,
            next_step=f"fetch it there: git -C {folder} fetch origin {ref}",
        ) from error  # fmt: skip
    finally:
        repository.close()


def keep_source(access: Access, files: Mapping[str, FileEntry], origin: str) -> str:
    """Put a source's *files* into the store, for later builds; return the git id of their tree."""
    tree = _import(access.repository, files)
    access.repository.keep(_ref(tree), tree)
    access.store.put_record(_KIND, tree, {"origin": origin})
    return tree


def packaged_tree(
    access: Access, package: Package, folder: str, paths: Iterable[str], *, in_parts: bool = False
) -> str:
    """Return the git id of the tree that *paths* of *folder* in *package* are.

    Only these are transferred with *in_parts*, if the server can send parts of a file; the wheel's digest
    is verified without.
    """
    prefix = f"{folder}/" if folder else ""
    wanted = below(paths, prefix)
    with open_package(access, package, wanted if in_parts else None) as wheel:
        files = {
            member.path.removeprefix(prefix): FileEntry(member.mode, b"".join(member.chunks))
            for member in read_members(wheel, wanted)
        }
    return _import(access.repository, files)


def _read_remote(folder: Path, address: str, pin: SourcePin, *, whole: bool) -> Revision:
    """Return the files of *pin* by path, fetched into *folder*: the *whole* commit, or only them."""
    repository = open_repository(folder)
    try:
        commit = _commit(repository, address, pin.ref)
        fetch(repository, address, [commit], filter_="" if whole else "blob:none")
        tree = repository.tree_of(commit)
        if not whole and (blobs := _chosen(repository.files(tree), pin.paths)):
            fetch(repository, address, sorted({entry.blob for entry in blobs.values()}))
        return _revision(repository, tree, pin.paths)
    finally:
        repository.close()


def _revision(repository: Repository, tree: str, paths: Iterable[str]) -> Revision:
    files = repository.files(tree)
    return Revision(
        {
            path: FileEntry(entry.mode, repository.blob(entry.blob))
            for path, entry in _chosen(files, paths).items()
        },
        {path: entry.blob for path, entry in files.items() if entry.mode == _SUBMODULE},
    )


def _chosen(files: Mapping[str, TreeEntry], paths: Iterable[str]) -> dict[str, TreeEntry]:
    wanted = below(paths)
    return {path: entry for path, entry in files.items() if wanted(path) and entry.mode != _SUBMODULE}


def _commit(repository: Repository, address: str, ref: str) -> str:
    """Return the commit of *ref*, a commit or a tag, at *address*."""
    if len(ref) == _FULL_ID:
        return ref
    tag = f"refs/tags/{ref}"
    found = list_remote(repository, address, [tag]).get(tag)
    if found is None:
        raise FetchError(f"{address} has no tag {ref}", next_step="look at [native.sources] in the lock")
    return found.commit


# Verification --------------------------------------------------------------------------------


def _import(repository: Repository, files: Mapping[str, FileEntry]) -> str:
    """Return the tree of *files*, none of them executable: not every archive records that mode."""
    plain = {
        path: FileEntry(REGULAR, entry.data) if entry.mode == EXECUTABLE else entry
        for path, entry in files.items()
    }
    return import_files(repository, plain.items())


def _verified(access: Access, source: _Wanted, tree: str, origin: str) -> SourceTree:
    """Record and return the source with that *tree*."""
    if tree != source.pin.tree:
        raise DigestError(
            f"{source.name} from {origin} is not what the lock names",
            because=f"its tree is {tree}, not {source.pin.tree}",
            next_step="do not use it before you know which is right",
        )
    access.repository.keep(_ref(tree), tree)
    access.store.put_record(_KIND, tree, {"origin": origin})
    return SourceTree(name=source.name, tree=tree, origin=origin)
