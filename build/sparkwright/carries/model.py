"""The typed model of ``carry.toml``, and the folders of carries that it is read from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import asdict, replace
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from sparkwright.base.config import Model, load_toml, to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import ConfigError
from sparkwright.carries.patch import Patch, parse_patch

CARRY_FORMAT = 2
NAME_PATTERN = "^[a-z][a-z0-9]*(-[a-z0-9]+)*\\Z"

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.+-]*\Z")]
Commit = Annotated[str, Meta(pattern="^[0-9a-f]{40}\\Z")]
Runner = Literal["v1", "v2", "both", "none"]
SourceName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w-]*\Z")]
SourceRef = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.-]*\Z")]
Text = Annotated[str, Meta(min_length=1)]


class Upstream(Model, frozen=True):
    """An upstream pull request that a carry is related to.

    Attributes:
        state: what had become of it when it was last read.
        absorbs: whether merging it upstream makes the carry unnecessary. It has to be said: most are
            about a part of what a carry does, and a carry left out by mistake is a defect that returns.
    """

    pull: int
    author: Text
    state: Literal["open", "closed", "merged"]
    relation: Text
    absorbs: bool = False


class Superseded(Model, frozen=True):
    """Releases in which upstream has an answer of its own.

    Attributes:
        rest: the carry that does there what upstream's answer leaves out, if it leaves out anything.
    """

    releases: Text
    by: Text
    because: Text
    rest: Name | None = None


class CarryEvidence(Model, frozen=True):
    """The evidence for a carry: what was shown, apart from what is only reported.

    Attributes:
        level: the strongest place where the effect was shown by us.
        claimed: what others report and this project has not reproduced.
    """

    level: Literal["claimed", "cpu", "gpu", "gb10"]
    demonstrated: tuple[Text, ...]
    claimed: tuple[Text, ...]


class Revision(Model, frozen=True):
    """A carry's content, written against one exact base.

    The base is a tree of upstream's own, named by `sdist_sha256`, or, for a carry that has a
    `source`, that source's tree at `source_ref`. One of the two is given. The patch names the
    blobs themselves, so neither is taken on trust.

    Attributes:
        release: the upstream release that it was written against; it puts revisions in order.
        sdist_sha256: digest of that release's sdist, where the base blobs come from.
        source_ref: the commit or tag of the carry's source that the release's lock names.
        runner: the model runner that it reaches, where that is not the carry's.
    """

    release: Text
    patch: FileName
    sdist_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")] | None = None
    source_ref: SourceRef | None = None
    runner: Runner | None = None


class PullRequest(Model, frozen=True, omit_defaults=True):
    """An upstream pull request that is itself the content.

    Attributes:
        base: the commit where it left the branch that it is against.
        branch: that branch, a tag or a commit, if it is not the repository's default branch.
    """

    repository: Text
    number: int
    head: Commit
    base: Commit
    branch: str = ""


class LaterProbe(Model, frozen=True):
    """Another probe for later releases, where the names that the first one imports have moved.

    Attributes:
        release: the first release that it is for; it holds until that of the next entry.
        helpers: like those of `ProbeSpec`; the same as there by default, as are the others.
    """

    release: Text
    file: FileName
    helpers: tuple[FileName, ...] | None = None
    seconds: int | None = None
    memory_mib: int | None = None
    triton: Literal["off", "interpret"] | None = None
    reads: tuple[Text, ...] | None = None


class ProbeSpec(Model, frozen=True):
    """Settings of a carry's probe.

    Attributes:
        helpers: modules in the carry's folder that the probe may import.
        memory_mib: limit of resident memory of one run, in MiB.
        triton: ``interpret`` runs Triton kernels on CPU tensors.
        needs: what it wants from the outside, such as ``toolchain`` to run CMake with. Such a probe
            runs without torch and may import ``buildkit``.
        reads: patterns of files that its verdict hangs on besides those that the carry changes.
    """

    file: FileName
    seconds: int = 600
    memory_mib: int = 6144
    triton: Literal["off", "interpret"] = "off"
    needs: tuple[Literal["toolchain"], ...] = ()
    reads: tuple[Text, ...] = ()
    helpers: tuple[FileName, ...] = ()
    later: tuple[LaterProbe, ...] = ()


class CarrySpec(Model, frozen=True):
    """All of ``carry.toml``; ``docs/formats.md`` describes each key.

    Attributes:
        source: the lock's name of the dependency whose tree the carry changes; vLLM's own by default.
        later_releases: findings on releases after the one that the carry was written against, in Markdown.
    """

    format: int
    name: Name
    title: Text
    kind: Literal["own", "pull"]
    scope: Literal["runtime", "build"]
    runner: Runner
    requires: tuple[Name, ...]
    why: Text
    symptom: Text
    evidence: CarryEvidence
    drop_when: Text
    later_releases: Text = ""
    source: SourceName | None = None
    upstream: tuple[Upstream, ...] = ()
    superseded: tuple[Superseded, ...] = ()
    revision: tuple[Revision, ...] = ()
    pull: PullRequest | None = None
    probe: ProbeSpec | None = None


# Carries in their folders -------------------------------------------------------------------------


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
        """Return the parsed patch of *revision*."""
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
        """Return the SHA-256 of the patch file of *revision*, 64 hex digits."""
        return sha256_bytes(self._patch_text(revision))

    def content_id(self, version: str) -> str:
        """Return digest of what the carry changes when merged onto *version*: not of its prose."""
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
    """Read and validate the carry in *folder*."""
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


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no file can have a name of that length
        return False


def _probe_problems(probe: ProbeSpec | None, folder: Path) -> Iterator[str]:
    if probe is None:
        return
    later = [name for one in probe.later for name in (one.file, *(one.helpers or ()))]
    for name in (probe.file, *probe.helpers, *later):
        if not _is_file(folder / name):
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
        if not _is_file(folder / revision.patch):
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
