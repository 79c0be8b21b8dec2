"""Packages with compilers, headers and libraries for another torch, and for the CUDA that it pins."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import structs

from sparkwright.base.errors import FetchError, LockMismatchError, WheelError
from sparkwright.base.events import task
from sparkwright.lock.bump import Decision
from sparkwright.lock.check import CUDA_RELEASE, exact_pins
from sparkwright.lock.model import Artifact, Package, Toolkit
from sparkwright.native.packages import measured_tree, require_folders
from sparkwright.upstream.download import fetch_members
from sparkwright.upstream.index import IndexFile, listing, project_of
from sparkwright.upstream.releases import Access, as_artifact

if TYPE_CHECKING:
    from packaging.version import Version

    Allowed = Callable[[Version], bool]

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

        Raises:
            FetchError: there is none for *machine*.
            LockMismatchError: it lacks a folder of the present one.
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

    Raises:
        FetchError: the index lacks a package, or did not answer.
        LockMismatchError: torch pins no CUDA, or another one on each machine.
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


def _artifact(package: Package) -> Artifact:
    return Artifact(filename=package.filename, sha256=package.sha256, size=package.size)


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
