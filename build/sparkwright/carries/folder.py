"""A carry as it lies on disk: ``carries/<name>/`` with its TOML, patches and probe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec.structs import asdict, replace
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from sparkwright.base.config import load_toml, to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import ConfigError
from sparkwright.carries.model import CARRY_FORMAT, CarrySpec, ProbeSpec, Revision, Superseded
from sparkwright.carries.patch import Patch, parse_patch


@dataclass(frozen=True)
class Carry:
    """A carry and the folder that it was read from."""

    spec: CarrySpec
    folder: Path

    @property
    def name(self) -> str:
        """Return the carry's name, which is its folder's."""
        return self.spec.name

    def revision_for(self, version: str) -> Revision | None:
        """Return the revision nearest to upstream *version*: the newest not after it, else the oldest."""
        if not self.spec.revision:
            return None
        ordered = sorted(self.spec.revision, key=lambda revision: Version(revision.release))
        before = [r for r in ordered if Version(r.release) <= Version(version)]
        return before[-1] if before else ordered[0]

    def at(self, version: str) -> Carry:
        """Return the carry as it is at upstream *version*: its probe and the runner that it has then."""
        revision, probe = self.revision_for(version), self.spec.probe
        spec = self.spec
        if revision is not None and revision.runner is not None:
            spec = replace(spec, runner=revision.runner)
        if probe is None or not probe.later:
            return Carry(spec, self.folder)
        before = [later for later in probe.later if Version(later.release) <= Version(version)]
        chosen = replace(probe, later=())
        if before:
            newest = max(before, key=lambda later: Version(later.release))
            given = {name: value for name, value in asdict(newest).items() if value is not None}
            del given["release"]
            chosen = replace(chosen, **given)
        return Carry(replace(spec, probe=chosen), self.folder)

    def superseded_in(self, version: str) -> Superseded | None:
        """Return what supersedes the carry at upstream *version*, if anything does."""
        for entry in self.spec.superseded:
            if SpecifierSet(entry.releases).contains(version, prereleases=True):
                return entry
        return None

    @cached_property
    def _patches(self) -> dict[str, Patch]:
        return {}

    def patch(self, revision: Revision) -> Patch:
        """Return the parsed patch of *revision*.

        Raises:
            ConfigError: the file is missing.
            PatchError: it is not a patch that we accept.
        """
        if revision.patch not in self._patches:
            text = self._patch_text(revision)
            self._patches[revision.patch] = parse_patch(text, name=f"{self.name}/{revision.patch}")
        return self._patches[revision.patch]

    def paths(self, version: str) -> tuple[str, ...]:
        """Return the files that its revision for upstream *version* changes; none of a pull request's."""
        revision = self.revision_for(version)
        return () if revision is None else self.patch(revision).paths

    def lines(self, version: str) -> int:
        """Return how many lines it changes at upstream *version*; 0 of a pull request or where superseded."""
        revision = None if self.superseded_in(version) is not None else self.revision_for(version)
        return 0 if revision is None else self.patch(revision).lines

    def _patch_text(self, revision: Revision) -> bytes:
        path = self.folder / revision.patch
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise ConfigError(f"{path} could not be read", because="it does not exist") from error

    def patch_sha256(self, revision: Revision) -> str:
        """Return the SHA-256 of the patch file of *revision*, 64 hex digits.

        Raises:
            ConfigError: the file is missing.
        """
        return sha256_bytes(self._patch_text(revision))

    def content_id(self, version: str) -> str:
        """Return digest of what the carry changes when merged onto *version*: not of its prose.

        Raises:
            ConfigError: its patch is missing.
        """
        if self.superseded_in(version) is not None:
            return digest_of({"superseded": True})  # it changes nothing there
        if self.spec.pull is not None:
            return digest_of({"pull": to_builtins(self.spec.pull)})
        revision = self.revision_for(version)
        if revision is None:
            raise ConfigError(f"carry {self.name} has no revision")
        return digest_of(
            {
                **self._base_of(revision),
                "patch": self.patch_sha256(revision),
                "stacked-on": [],  # builds are named by a digest with this key
            }
        )

    def _base_of(self, revision: Revision) -> dict[str, str | None]:
        """Return what names the base of *revision*."""
        if self.spec.source is None:
            return {"sdist": revision.sdist_sha256}
        return {"source": self.spec.source, "ref": revision.source_ref}

    @property
    def probe_path(self) -> Path | None:
        """Return the probe, if the carry has one."""
        return None if self.spec.probe is None else self.folder / self.spec.probe.file

    @property
    def probe_helpers(self) -> tuple[Path, ...]:
        """Return the modules that the probe may import besides."""
        return (
            () if self.spec.probe is None else tuple(self.folder / name for name in self.spec.probe.helpers)
        )


def load_carry(folder: Path) -> Carry:
    """Read and validate the carry in *folder*.

    Raises:
        ConfigError: its files do not fit together.
    """
    path = folder / "carry.toml"
    spec = load_toml(path, CarrySpec, newest_format=CARRY_FORMAT)
    if problem := next(_problems(spec, folder), ""):
        raise ConfigError(f"{path} does not fit together", because=problem)
    return Carry(spec, folder)


def _problems(spec: CarrySpec, folder: Path) -> Iterator[str]:
    """Yield what is wrong with *spec* beyond what its types say."""
    if spec.name != folder.name:
        yield f"it is called {spec.name!r} in a folder called {folder.name!r}"
    if (spec.kind == "pull") != (spec.pull is not None):
        yield "a [pull] table and kind = 'pull' go together"
    if (spec.kind == "own") != bool(spec.revision):
        yield "kind = 'own' needs at least one [[revision]], and no other kind has any"
    if spec.name in spec.requires:
        yield "it requires itself"
    if spec.source is not None and (spec.scope != "build" or spec.kind != "own"):
        yield "a change to a dependency's source has scope = 'build' and kind = 'own'"
    yield from _probe_problems(spec.probe, folder)
    yield from _revision_problems(spec, folder)
    try:
        _ = [Version(revision.release) for revision in spec.revision]
        _ = [Version(probe.release) for probe in (spec.probe.later if spec.probe else ())]
        _ = [SpecifierSet(entry.releases) for entry in spec.superseded]
    except (InvalidVersion, InvalidSpecifier) as error:
        yield str(error)


def _probe_problems(probe: ProbeSpec | None, folder: Path) -> Iterator[str]:
    if probe is None:
        return
    later = [name for one in probe.later for name in (one.file, *(one.helpers or ()))]
    for name in (probe.file, *probe.helpers, *later):
        if not (folder / name).is_file():
            yield f"its probe {name!r} does not exist"
    releases = [one.release for one in probe.later]
    if len(set(releases)) != len(releases):
        yield "two probes name the same release"


def _revision_problems(spec: CarrySpec, folder: Path) -> Iterator[str]:
    releases = [revision.release for revision in spec.revision]
    if len(set(releases)) != len(releases):
        yield "two revisions name the same release"
    for revision in spec.revision:
        yield from _base_problems(spec, revision)
        if not (folder / revision.patch).is_file():
            yield f"its patch {revision.patch!r} does not exist"


def _base_problems(spec: CarrySpec, revision: Revision) -> Iterator[str]:
    """Yield what is wrong with how *revision* names its base."""
    bases = {"sdist-sha256": revision.sdist_sha256, "source-ref": revision.source_ref}
    wanted = "sdist-sha256" if spec.source is None else "source-ref"
    if bases.pop(wanted) is None:
        yield f"revision {revision.release} has no {wanted}, which names its base"
    for name in (name for name, value in bases.items() if value is not None):
        whose = "vLLM's own tree" if spec.source is None else spec.source
        yield f"revision {revision.release} has {name}, but the carry changes {whose}"


def load_carries(root: Path) -> dict[str, Carry]:
    """Return every carry under *root*, by name."""
    if not root.is_dir():
        return {}
    return {
        folder.name: load_carry(folder)
        for folder in sorted(root.iterdir())
        if (folder / "carry.toml").is_file()
    }
