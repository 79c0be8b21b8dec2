"""The ``[native]`` tables for another release: everything that a program can find out.

Start reading at `propose_native`. `next_toolkit` chooses the packages by torch's own pins, `NextSources`
finds the sources' refs by the release's CMake files and their trees at any reachable origin,
`next_extensions` reads the extensions that CMake declares. A value that a person has to decide becomes a
`Decision`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from sparkwright.base.errors import ConfigError, NotInStoreError, SparkwrightError
from sparkwright.base.events import emit, task
from sparkwright.lock.bump import Decision, bump_command
from sparkwright.lock.cmake import CMakeExtension, listed_files, oldest_gxx, read_extensions
from sparkwright.lock.model import ExtensionSpec, Lock, NativePin, Package, SourcePin
from sparkwright.native.packages import below, next_toolkit
from sparkwright.native.sources import Revision, keep_source, packaged_tree, read_clone, read_revision
from sparkwright.upstream.index import listing, project_of
from sparkwright.upstream.releases import Access, as_artifact, is_clone


class NativeProposal(NamedTuple):
    """``[native]`` for another release, and what a person has to decide about it."""

    native: NativePin
    decisions: tuple[Decision, ...]


def propose_native(
    access: Access,
    lock: Lock,
    old: NativePin,
    texts: Mapping[str, str],
    *,
    copies: Mapping[str, Path] | None = None,
) -> NativeProposal:
    """Return the tables *old* moved to the release that *lock* pins.

    Binaries and costs stay those of the release that they were measured on, until something is compiled.
    A candidate is attested by the wheel of its own release, and goes with that.

    *texts* are the release's CMake files by path, *copies* the user's clones by source.
    """
    toolkit, toolkit_decisions = next_toolkit(access, old.toolkit, lock.release.torch)
    sources = NextSources(access, lock, texts, copies or {}).move(old.sources)
    extensions, extension_decisions = next_extensions(lock, sources, old.extensions)
    pins = sources.pins
    if old.release != lock.release.version:
        pins = {name: structs.replace(pin, candidate=None) for name, pin in pins.items()}
    measured = old.measured or old.release
    native = structs.replace(
        old,
        release=lock.release.version,
        toolkit=toolkit,
        sources=pins,
        extensions=extensions,
        oldest_gxx=oldest_gxx(texts),
        measured="" if measured == lock.release.version else measured,
    )
    return NativeProposal(native, (*toolkit_decisions, *sources.decisions, *extension_decisions))


# Dependencies' sources ----------------------------------------------------------------------------

_NEWEST = 3
"""Releases of a package that are compared with a source besides the present one."""


@dataclass
class NextSources:
    """The sources for the release that `lock` pins.

    Attributes:
        copies: the user's git repositories that have the commit, by source.
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
        """Fill in the result from the *old* pins."""
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
            commit: str | None = old.ref
        else:
            commit = self._submodules.get(host, {}).get(folder)
        if commit is not None:
            if commit == old.ref and old.tree and name not in self.copies:
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
        gone = [path for path in pin.paths if not any(map(below([path]), revision.files))]
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
        if not is_clone(folder):
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


# Extensions ---------------------------------------------------------------------------------------


def next_extensions(
    lock: Lock, sources: NextSources, old: Mapping[str, ExtensionSpec]
) -> tuple[dict[str, ExtensionSpec], list[Decision]]:
    """Return the extensions to compile for the release of *lock*, and what is left to decide.

    An extension without device code that the project itself defines is added; one that is defined nowhere
    any more goes. What a new extension with device code is compiled from, a person has to read.
    """
    declared = read_extensions(sources.texts)
    kept: dict[str, ExtensionSpec] = {}
    decisions: list[Decision] = []
    for name, spec in old.items():
        if name in declared:
            kept[name] = structs.replace(
                spec, member=declared[name].member, host_only=declared[name].host_only
            )
        elif _defined_in_a_source(name, spec, sources):
            kept[name] = spec
        else:
            decisions.append(
                Decision(
                    f"native.extensions.{name}",
                    "no CMake file defines it any more: upstream's wheel has what replaced it",
                    f"grep -rn {name} CMakeLists.txt cmake vllm",
                )
            )
    # The project's own extensions are in its root's file, and so is what several of them share.
    by_file = {source.declared_in: name for name, source in lock.sources.items() if "/" in source.declared_in}
    for name, found in declared.items():
        if name in old:
            continue
        if found.host_only and found.abi3 and found.declared_in not in by_file:
            kept[name] = ExtensionSpec(member=found.member, host_only=True)
        elif decision := _undecided(found, by_file.get(found.declared_in), sources):
            decisions.append(decision)
    return kept, decisions


def _defined_in_a_source(name: str, spec: ExtensionSpec, sources: NextSources) -> bool:
    """Tell if one of the sources of *spec* brings a CMake project that defines it, as far as known."""
    for source in spec.sources:
        pin = sources.pins.get(source)
        if pin is not None and "CMakeLists.txt" in pin.paths:
            text = sources.listings.get(source)
            return text is None or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
    return False


def _undecided(found: CMakeExtension, source: str | None, sources: NextSources) -> Decision | None:
    """Return the decision about a new extension; `None` where its source was decided to be left alone."""
    asked = {decision.key for decision in sources.decisions}
    if source is not None and f"native.sources.{source}" not in asked:
        return None
    return Decision(
        f"native.extensions.{found.name}",
        "new with this release, with device code: upstream's binary is used"
        + (f"; it is compiled from {source}" if source else ""),
        f"grep -n '{found.name}' -B40 {found.declared_in}",
    )
