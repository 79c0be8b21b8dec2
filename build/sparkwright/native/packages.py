"""Wheels of the lock as folders in the store: fetched by digest, unpacked once, shared by all runs.

The second half chooses those with compilers, headers and libraries for another torch, and for the CUDA that
it pins.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import (
    ArchiveError,
    DigestError,
    FetchError,
    LockMismatchError,
    ToolError,
    WheelError,
)
from sparkwright.base.events import task
from sparkwright.git.repository import TreeEntry
from sparkwright.git.trees import tree_id
from sparkwright.lock.bump import Decision
from sparkwright.lock.check import CUDA_RELEASE, exact_pins
from sparkwright.lock.model import Artifact, Package, Toolkit
from sparkwright.store.paths import Store
from sparkwright.upstream.archive import EXECUTABLE, MAX_MEMBERS, REGULAR, bad_component
from sparkwright.upstream.download import fetch_artifact, fetch_members
from sparkwright.upstream.index import IndexFile, listing, project_of
from sparkwright.upstream.releases import Access, as_artifact

if TYPE_CHECKING:
    from packaging.version import Version

    Allowed = Callable[[Version], bool]

# Part of the folder's name: raised when unpacking changes.
_RULES = 1
# torch's largest library has 0.9 GB on x86-64; all of its unpacked files, 2 GB.
_MAX_FILE_BYTES = 2 << 30
_MAX_TOTAL_BYTES = 6 << 30
_CHUNK = 1 << 20


def package_key(package: Package) -> str:
    """Return the digest of all that decides the unpacked files of *package*."""
    return digest_of([_RULES, package.sha256, sorted(package.folders), package.tree])


def find_package(store: Store, package: Package) -> Path | None:
    """Return the folder that *package* is unpacked in, or `None`."""
    folder = _folder(store, package)
    return folder if store.claim(folder) else None


def unpack_package(access: Access, package: Package) -> Path:
    """Return the folder with the files of *package*, laid out as in the wheel; fetch it if it is missing.

    Files are read-only, and executable where the wheel's entries are.
    """
    store = access.store
    if found := find_package(store, package):
        return found
    name = package_key(package)[:16]
    with store.lock(f"package-{name}", f"unpacking {package.filename}"):
        if found := find_package(store, package):
            return found
        with store.scratch() as scratch, task(f"unpack {package.filename}"):
            with open_package(access, package) as wheel:
                _write(wheel, package, scratch / "package")
            return store.publish_folder(scratch / "package", _folder(store, package))


def open_package(
    access: Access, package: Package, wanted: Callable[[str], bool] | None = None
) -> contextlib.AbstractContextManager[Path]:
    """Return the wheel of *package*, with at least the members that are unpacked; see `fetch_members`.

    *wanted* are the members that are needed instead, where the caller verifies these.
    """
    if wanted is None and package.tree is None:
        return contextlib.nullcontext(fetch_artifact(access.store, _artifact(package), access.settings))
    return fetch_members(access.store, _artifact(package), wanted or _is_wanted(package), access.settings)


def measured_tree(access: Access, package: Package) -> str:
    """Return the git id of the tree that the folders of *package* unpack to; nothing is kept.

    Only these members are transferred, if the server can send parts of a file.
    """
    wanted = _is_wanted(package)
    with fetch_members(access.store, _artifact(package), wanted, access.settings) as wheel:
        files: dict[str, TreeEntry] = {}
        for member in read_members(wheel, wanted):
            digest = _blob_digest(member.size)
            for chunk in member.chunks:
                digest.update(chunk)
            files[member.path] = TreeEntry(member.mode, digest.hexdigest())
    require_folders(package, files)
    return tree_id(files)


def require_folders(package: Package, names: Iterable[str]) -> None:
    """Refuse a *package* of which a folder holds none of the members called *names*."""
    names = list(names)
    for folder in package.folders:
        if not any(map(below([folder]), names)):
            raise LockMismatchError(
                f"{package.filename} has no {folder}",
                because="its files have moved since the pinned version",
                next_step=f"list them with unzip -l {package.filename}, and correct upstream.lock",
            )


def _blob_digest(size: int) -> hashlib._Hash:
    return hashlib.sha1(b"blob %d\0" % size)  # noqa: S324 - git's object ids are SHA-1


class PackageMember(NamedTuple):
    """One file of a wheel: its path, its git mode, its size in bytes, and its bytes piece by piece."""

    path: str
    mode: str
    size: int
    chunks: Iterator[bytes]


def read_members(wheel: Path, wanted: Callable[[str], bool]) -> Iterator[PackageMember]:
    """Yield each *wanted* member of *wheel*, in order; read its bytes before the next one."""
    with _damage_reported(wheel.name), zipfile.ZipFile(wheel) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir() and wanted(info.filename)]
        _require_sane(infos, wheel.name)
        for info in infos:
            mode = EXECUTABLE if info.external_attr >> 16 & stat.S_IXUSR else REGULAR
            yield PackageMember(info.filename, mode, info.file_size, _chunks(archive, info, wheel.name))


def _chunks(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Iterator[bytes]:
    with _damage_reported(name), archive.open(info) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


@contextlib.contextmanager
def _damage_reported(name: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ArchiveError(
            f"{name} is damaged", because=str(error) or type(error).__name__, next_step="fetch it again"
        ) from error


def program_in(folder: Path, name: str) -> Path:
    """Return the program *name* in the unpacked package *folder*.

    Wheels hold a program in their package folder, or among the scripts to be installed (PEP 427).
    """
    found = sorted(path for path in folder.glob(f"**/{name}") if path.is_file())
    if len(found) != 1:
        raise ToolError(
            f"the package for {name} is not as expected",
            because=f"{folder} holds {len(found)} programs of that name",
            next_step="look at [native.toolkit.builder] in the lock",
        )
    return found[0]


def _artifact(package: Package) -> Artifact:
    return Artifact(filename=package.filename, sha256=package.sha256, size=package.size)


def _folder(store: Store, package: Package) -> Path:
    return store.toolchains / "packages" / package_key(package)[:32]


def below(paths: Iterable[str], prefix: str = "") -> Callable[[str], bool]:
    """Return what tells if a name is one of *paths* behind *prefix*, or in a folder among them."""
    whole = {f"{prefix}{path}" for path in paths}
    folders = tuple(f"{path}/" for path in whole)
    return lambda name: name in whole or name.startswith(folders)


def _is_wanted(package: Package) -> Callable[[str], bool]:
    return below(package.folders) if package.folders else lambda _: True


def _require_sane(infos: Sequence[zipfile.ZipInfo], name: str) -> None:
    """Refuse members that cannot be written below a folder, each once."""
    seen: set[str] = set()
    folders: set[str] = set()
    for info in infos:
        path = info.filename
        for part in path.split("/"):
            if why := bad_component(part):
                raise _refused(name, f"the path {path!r} is not safe: {why}")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise _refused(name, f"{path!r} is a link")
        if info.file_size > _MAX_FILE_BYTES:
            raise _refused(name, f"{path!r} has {info.file_size} bytes, more than {_MAX_FILE_BYTES}")
        if path in seen:
            raise _refused(name, f"the path {path!r} is there twice")
        seen.add(path)
        folders.update(path[:at] for at, letter in enumerate(path) if letter == "/")
    if doubled := seen & folders:
        raise _refused(name, f"{min(doubled)!r} is both a file and a folder")
    if len(infos) > MAX_MEMBERS or sum(info.file_size for info in infos) > _MAX_TOTAL_BYTES:
        raise _refused(name, f"it unpacks to more than {MAX_MEMBERS} files or {_MAX_TOTAL_BYTES} bytes")


def _refused(name: str, why: str) -> ArchiveError:
    return ArchiveError(
        f"{name} was refused", because=why, next_step="do not unpack it by other means: find out its origin"
    )


def _write(wheel: Path, package: Package, folder: Path) -> None:
    """Write the members of *package* that are wanted below *folder*."""
    folder.mkdir()
    written: dict[str, TreeEntry] = {}
    for member in read_members(wheel, _is_wanted(package)):
        target = folder / member.path
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = _blob_digest(member.size)
        with target.open("wb") as sink:
            for chunk in member.chunks:
                sink.write(chunk)
                digest.update(chunk)
        target.chmod(0o555 if member.mode == EXECUTABLE else 0o444)
        written[member.path] = TreeEntry(member.mode, digest.hexdigest())
    if package.tree is not None and (found := tree_id(written)) != package.tree:
        raise DigestError(
            f"{package.filename} does not unpack to the tree in the lock",
            because=f"its tree is {found}, not {package.tree}",
            next_step="do not use it before you know which changed: the file on the index or the lock",
        )


# Packages for another torch ------------------------------------------------------------------------

_TORCH = "torch"


@dataclass
class PackageShelf:
    """The package index, each project asked for once, and the files that were chosen from it."""

    access: Access
    _listed: dict[str, list[tuple[Version, IndexFile]]] = field(default_factory=dict)
    _made: dict[tuple[str, str], Package] = field(default_factory=dict)

    def listing(self, project: str) -> list[tuple[Version, IndexFile]]:
        """Return the files of *project*; see `sparkwright.upstream.index.listing`."""
        if project not in self._listed:
            self._listed[project] = listing(project, self.access.settings)
        return self._listed[project]

    def newest(self, old: Package, machine: str, allowed: Allowed, wanted: str) -> Package:
        """Return the newest *allowed* version of the project of *old*, with the folders that it had.

        The tags of *old* choose among the files of a version; *wanted* says in an error what *allowed* tells.
        """
        project = project_of(old.filename)
        usable = [
            (version, file)
            for version, file in self.listing(project)
            if not file.is_sdist
            and not file.yanked
            and allowed(version)
            and _fits(file.filename, old, machine)
        ]
        if not usable:
            raise FetchError(
                f"there is no {project} {wanted} for {machine}",
                because="the package index lists no such wheel with the tags of the present one",
                next_step="pin the release without its toolkit: sparkwright lock bump VERSION --keep-native",
            )
        best = max(version for version, _ in usable)
        files = sorted(
            (file for version, file in usable if version == best),
            key=lambda file: (_platform(file.filename) != _platform(old.filename), file.filename),
        )
        return self._package(files[0], old)

    def _package(self, file: IndexFile, old: Package) -> Package:
        if (file.filename, file.sha256) == (old.filename, old.sha256):
            return old
        key = (file.filename, " ".join(old.folders))
        if key not in self._made:
            artifact = as_artifact(file, self.access.settings)
            package = Package(filename=artifact.filename, sha256=artifact.sha256, size=artifact.size)
            package = structs.replace(package, folders=_moved(old, package))
            with task(f"look into {package.filename}"):
                self._made[key] = self._measured(package, old)
        return self._made[key]

    def _measured(self, package: Package, old: Package) -> Package:
        if old.tree is not None:
            return structs.replace(package, tree=measured_tree(self.access, package))
        if package.folders:
            require_folders(package, _names(self.access, package))
        return package


def next_toolkit(access: Access, old: Toolkit, torch: str) -> tuple[Toolkit, list[Decision]]:
    """Return the toolkit to compile against *torch* with, and what is left to decide about it.

    The versions of CUDA's packages are those that torch's own release package of CUDA pins; other
    programs are the newest of the same major version.
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    shelf = PackageShelf(access)
    exactly = Version(torch)
    torches = {
        machine: shelf.newest(packages[_TORCH], machine, exactly.__eq__, torch)
        for machine, packages in old.target.items()
        if _TORCH in packages
    }
    pin = _cuda_pin({machine: _metadata(access, package) for machine, package in torches.items()})
    release = shelf.newest(old.release, "any", Version(pin).__eq__, pin)
    pins = exact_pins(_metadata(access, release))

    def chosen(machine: str, name: str, package: Package) -> Package:
        if name == _TORCH:
            return torches[machine]
        if (pinned := pins.get(project_of(package.filename))) is not None:
            versions = SpecifierSet(f"=={pinned}")
            return shelf.newest(package, machine, lambda found: found in versions, pinned)
        major = Version(package.version).major
        return shelf.newest(
            package, machine, lambda found: found.major == major and not found.is_prerelease, f"{major}.*"
        )

    tables = [
        {
            machine: {name: chosen(machine, name, package) for name, package in packages.items()}
            for machine, packages in table.items()
        }
        for table in (old.builder, old.target)
    ]
    new = structs.replace(
        old, cuda=".".join(pin.split(".")[:2]), release=release, builder=tables[0], target=tables[1]
    )
    return new, _link_only(old, new)


def _link_only(old: Toolkit, new: Toolkit) -> list[Decision]:
    if old.cuda == new.cuda or not old.link_only:
        return []
    return [
        Decision(
            "native.toolkit.link-only",
            f"kept from CUDA {old.cuda}: CUDA {new.cuda} may number its libraries otherwise",
            f"python -m pip download --no-deps {CUDA_RELEASE}[all]=={new.release.version}",
        )
    ]


def _cuda_pin(torches: dict[str, bytes]) -> str:
    """Return the version of CUDA's release package that each machine's torch pins."""
    pins = {machine: exact_pins(metadata).get(CUDA_RELEASE) for machine, metadata in torches.items()}
    found = set(pins.values())
    if len(found) != 1 or None in found:
        raise LockMismatchError(
            "the toolkit for this torch cannot be told",
            because="; ".join(
                f"torch for {machine} pins {CUDA_RELEASE} {pin or 'nowhere'}" for machine, pin in pins.items()
            ),
            next_step="pin the release without its toolkit: sparkwright lock bump VERSION --keep-native",
        )
    return str(found.pop())


def _metadata(access: Access, package: Package) -> bytes:
    """Return METADATA out of a wheel, of which nothing else is transferred."""
    name = f"{package.project}-{package.version}.dist-info/METADATA"
    try:
        with (
            fetch_members(access.store, _artifact(package), name.__eq__, access.settings) as wheel,
            zipfile.ZipFile(wheel) as archive,
        ):
            return archive.read(name)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WheelError(f"{package.filename} could not be read", because=str(error).strip("'\"")) from error


def _names(access: Access, package: Package) -> list[str]:
    with (
        fetch_members(access.store, _artifact(package), lambda _: False, access.settings) as wheel,
        zipfile.ZipFile(wheel) as archive,
    ):
        return archive.namelist()


def _platform(filename: str) -> str:
    return filename.removesuffix(".whl").rpartition("-")[2]


def _fits(filename: str, old: Package, machine: str) -> bool:
    """Tell if *filename* is for *machine* and for the interpreters of *old*."""
    python, abi, platform = filename.removesuffix(".whl").rsplit("-", 3)[1:]
    old_python, old_abi, _ = old.filename.removesuffix(".whl").rsplit("-", 3)[1:]
    same = (python, abi) == (old_python, old_abi) or (abi == old_abi == "none" and "py3" in python.split("."))
    here = all(
        tag.startswith(("manylinux", "linux")) and tag.endswith(machine) for tag in platform.split(".")
    )
    return same and (platform == "any" or here)


def _moved(old: Package, new: Package) -> tuple[str, ...]:
    """Return the folders of *old* as *new* calls them: some are named after the version."""
    short = [".".join(package.version.split(".")[:2]) for package in (old, new)]
    alone = re.compile(rf"(?<![\d.]){re.escape(short[0])}(?![\d.])")
    return tuple(
        folder.replace(old.version, new.version) if old.version in folder else alone.sub(short[1], folder)
        for folder in old.folders
    )
