"""The dependencies' sources of another release: refs by its CMake files, trees from any reachable origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from sparkwright.base.errors import ConfigError, NotInStoreError, SparkwrightError
from sparkwright.base.events import emit, task
from sparkwright.lock import Lock
from sparkwright.lock.bump import Decision, bump_command
from sparkwright.lock.cmake_targets import listed_files
from sparkwright.lock.native import Package, SourcePin
from sparkwright.native.sources import Revision, keep_source, packaged_tree, read_clone, read_revision
from sparkwright.upstream import Access
from sparkwright.upstream.index import listing, project_of
from sparkwright.upstream.releases import as_artifact

_NEWEST = 3
"""Releases of a package that are compared with a source besides the present one."""


@dataclass
class NextSources:
    """The sources for the release that `lock` pins.

    Attributes:
        access: where trees come from and go to.
        lock: the new pin.
        texts: its CMake files by path.
        copies: the user's git repositories that have the commit, by source.
        decisions: what is left to a person.
        listings: the CMake files of the sources that were read, by source.
    """

    access: Access
    lock: Lock
    texts: Mapping[str, str]
    copies: Mapping[str, Path] = field(default_factory=dict)
    pins: dict[str, SourcePin] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    listings: dict[str, str] = field(default_factory=dict)
    _submodules: dict[str, dict[str, str]] = field(default_factory=dict)

    def move(self, old: Mapping[str, SourcePin]) -> NextSources:
        """Fill in the result from the *old* pins.

        Raises:
            ConfigError: a copy is of no source of the lock, or no repository.
            FetchError, RefError, ArchiveError: a copy does not have the pinned commit, or cannot be read.
        """
        mounted = {name: pin for name, pin in old.items() if pin.mount}
        known = {*self.lock.sources, *mounted}
        if unknown := sorted(self.copies.keys() - known):
            raise ConfigError(
                f"{unknown[0]} is no source of this release",
                because=f"its sources are {', '.join(sorted(known))}",
            )
        kept = [name for name in old if name in self.lock.sources]
        for name in [*kept, *(name for name in self.lock.sources if name not in old)]:
            with task(f"source {name}"):
                self.pins[name] = self._declared(name, old.get(name))
        for name, pin in mounted.items():
            if pin.mount.partition(":")[0] in self.pins:
                with task(f"source {name}"):
                    self.pins[name] = self._mounted(name, pin, old)
        self.pins = {name: self.pins[name] for name in [*old, *self.pins] if name in self.pins}
        return self

    def _declared(self, name: str, old: SourcePin | None) -> SourcePin:
        declared = self.lock.sources[name]
        listed = listed_files(name, self.texts.get(declared.declared_in, ""))
        if old is None:
            self.decisions.append(
                Decision(
                    f"native.sources.{name}",
                    "new with this release: nothing is compiled from it, upstream's binaries are used",
                    f"grep -n extension_target -A9 {declared.declared_in}",
                )
            )
            return SourcePin(ref=declared.ref, stand_in=listed)
        moved = old.stand_in and listed and set(listed) != set(old.stand_in)
        pin = structs.replace(old, ref=declared.ref, stand_in=listed if moved else old.stand_in)
        if not old.paths or (old.ref == declared.ref and old.tree and name not in self.copies):
            return pin
        return self._reached(name, old, pin, declared.repository)

    def _mounted(self, name: str, old: SourcePin, before: Mapping[str, SourcePin]) -> SourcePin:
        """Return the pin of a submodule: its commit is stated by the source that it is mounted in."""
        host, _, folder = old.mount.partition(":")
        if self.pins[host].ref == before[host].ref and old.tree and host not in self._submodules:
            return old
        if (commit := self._submodules.get(host, {}).get(folder)) is not None:
            if commit == old.ref and old.tree:
                return old
            return self._reached(name, old, structs.replace(old, ref=commit), old.repository)
        if name in self.copies:
            self._ask(name, "ref", f"git -C {self.copies[name]} rev-parse HEAD", "the copy does not state it")
            return self._reached(name, old, old, "")
        why = f"{host} moved, and its commit of {folder} is not known; nothing is compiled from it until then"
        self._ask(name, "ref", f"git ls-tree {self.pins[host].ref} {folder}", why)
        return structs.replace(old, tree=None)

    def _reached(self, name: str, old: SourcePin, pin: SourcePin, address: str) -> SourcePin:
        """Return *pin* with its tree, or without where nothing that has it can be reached."""
        try:
            origin, revision = self._read(name, pin, address)
        except SparkwrightError as error:
            if name in self.copies:
                raise
            emit("source.unreached", name=name, why=str(error))
            self._ask(
                name, "tree", bump_command(self.lock, [name]),
                f"{pin.ref[:12]} could not be had, so that upstream's binaries are used: {error}",
            )  # fmt: skip
            return structs.replace(pin, tree=None)
        self._submodules[name] = revision.submodules
        if (text := revision.files.get("CMakeLists.txt")) is not None:
            self.listings[name] = text.data.decode(errors="replace")
        gone = [path for path in pin.paths if not _has(revision, path)]
        for path in gone:
            self._ask(
                name, "paths", f"git ls-tree -r --name-only {pin.ref}", f"{path} is not in {pin.ref[:12]}"
            )
        tree = keep_source(self.access, revision.files, origin)
        paths = tuple(path for path in pin.paths if path not in gone)
        pin = structs.replace(pin, paths=paths, tree=tree)
        return self._with_package(name, old, pin)

    def _read(self, name: str, pin: SourcePin, address: str) -> tuple[str, Revision]:
        folder = self.copies.get(name)
        if folder is None:
            if self.access.settings.offline and not address.startswith("file://"):
                raise NotInStoreError(f"{name} is not in the store", because="the network is off")
            return f"{address} at {pin.ref[:12]}", read_revision(self.access, address, pin.ref, pin.paths)
        if not _is_repository(folder):
            raise ConfigError(
                f"{folder} is no clone of {name}", because="it is no git repository",
                next_step=f"git clone --bare ADDRESS {name}.git, and name that",
            )  # fmt: skip
        return f"{folder} at {pin.ref[:12]}", read_clone(folder, pin.ref, pin.paths)

    def _with_package(self, name: str, old: SourcePin, pin: SourcePin) -> SourcePin:
        """Return *pin* with a package that has the same files, if its project has released one."""
        if old.package is None:
            return pin
        for package in self._packages(old.package):
            with task(f"compare {package.filename}"):
                tree = packaged_tree(self.access, package, old.folder, pin.paths, in_parts=True)
            if tree == pin.tree:
                return structs.replace(pin, package=package)
        self._ask(
            name,
            "package",
            f"git show {pin.ref}:",
            f"no release of {old.package.project} has these files: from git",
        )
        return structs.replace(pin, package=None, folder="")

    def _packages(self, old: Package) -> Iterator[Package]:
        """Yield the present package and the newest ones of its project."""
        yield old
        if self.access.settings.offline:
            return
        usable = [
            (version, file)
            for version, file in listing(project_of(old.filename), self.access.settings)
            if not file.is_sdist and not file.yanked and file.filename.endswith("-any.whl")
        ]
        for _, file in sorted(usable, key=lambda one: one[0], reverse=True)[:_NEWEST]:
            artifact = as_artifact(file, self.access.settings)
            yield Package(filename=artifact.filename, sha256=artifact.sha256, size=artifact.size)

    def _ask(self, name: str, field_name: str, command: str, why: str) -> None:
        self.decisions.append(Decision(f"native.sources.{name}.{field_name}", why, command))


def _has(revision: Revision, path: str) -> bool:
    return any(found == path or found.startswith(f"{path}/") for found in revision.files)


def _is_repository(folder: Path) -> bool:
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())
