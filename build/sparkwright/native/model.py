"""The data model of native builds: target, toolchain, inputs, units, links, extensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sparkwright.base.config import Model

WORK = "{work}"
"""Placeholder for the work folder of a build in commands and keys."""


@dataclass(frozen=True)
class Target:
    """The machine and card of a build.

    Attributes:
        machine: machine of the host code: ``aarch64`` or ``x86_64``.
        arch: the card's architecture as ``TORCH_CUDA_ARCH_LIST`` writes it, such as ``12.1a``.
    """

    machine: str
    arch: str

    @property
    def sm(self) -> str:
        """The architecture as nvcc writes it, such as ``sm_121a``."""
        return "sm_" + self.arch.replace(".", "")


@dataclass(frozen=True)
class Toolchain:
    """Compilers, linker, CUDA toolkit and torch, ready to be used.

    Attributes:
        cuda: toolkit in its classic layout (``bin``, ``include``, ``lib64``, ``nvvm``, ``targets``).
        torch: the target's ``torch`` package folder, of which headers, libraries and CMake files are used.
        stand_in: folder with a package ``torch`` that answers CMake's queries of torch.
        cc: C compiler whose output runs on the target.
        python: interpreter that CMake runs its scripts with.
        python_include: headers of the limited API.
        key: digest of all parts by content or version, without paths.
        headers: the folders that the C++ compiler searches by itself; their files' versions are in `key`.
        packages: SHA-256 of the packages that it is made of, by file name.
    """

    cuda: Path
    torch: Path
    stand_in: Path
    cc: Path
    cxx: Path
    cmake: Path
    ninja: Path
    python: Path
    python_include: Path
    cross: bool
    key: str
    parts: Mapping[str, str] = field(default_factory=dict)
    headers: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)


class SourceTree(Model, frozen=True):
    """A dependency's source, or its stand-in.

    Attributes:
        tree: git id of its tree in the store's repository.
        origin: where it was fetched from, in words, such as ``flashinfer-python 0.6.9``.
        at_hand: whether it is the real source; otherwise `tree` only lets CMake configure.
        missing: the reason that the pinned source is not available.
    """

    name: str
    tree: str
    origin: str
    at_hand: bool = True
    missing: str = ""

    @property
    def is_candidate(self) -> bool:
        """True for the lock's candidate in place of the pinned source."""
        return self.at_hand and bool(self.missing)


@dataclass(frozen=True)
class Inputs:
    """The inputs that decide the result of a native build.

    Attributes:
        tree: git id of the merged tree in the store's repository.
    """

    tree: str
    sources: Mapping[str, SourceTree]
    toolchain: Toolchain
    target: Target


class Unit(Model, frozen=True):
    """One compiler call.

    Attributes:
        source: file to compile, relative to the work folder.
        output: object file, relative to the work folder.
        argv: the command, with `WORK` for the work folder, run in ``build/``; it names no dependency file.
        arches: the device code that it compiles to: ``sm_121a`` for a cubin, ``compute_89`` for PTX.
    """

    target: str
    source: str
    output: str
    language: Literal["CUDA", "CXX"]
    argv: tuple[str, ...]
    arches: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The unit's name in logs and tables of costs: extension and source."""
        return f"{self.target}/{self.source.removeprefix('source/')}"


class Link(Model, frozen=True):
    """The link of one extension.

    Attributes:
        output: the shared object, relative to the work folder.
        objects: its objects in order, relative to the work folder.
    """

    target: str
    output: str
    objects: tuple[str, ...]
    argv: tuple[str, ...]


class Configuration(Model, frozen=True):
    """The result of configuring: every command, and the generated files.

    Attributes:
        generated: files that configuring wrote into the source tree, by path there, as git blob ids.
    """

    units: tuple[Unit, ...]
    links: tuple[Link, ...]
    generated: dict[str, str]

    def link(self, target: str) -> Link:
        """Return the link of the extension called *target*."""
        return next(link for link in self.links if link.target == target)

    def units_of(self, target: str) -> tuple[Unit, ...]:
        """Return the compiler calls of the extension called *target*."""
        return tuple(unit for unit in self.units if unit.target == target)


class Cost(Model, frozen=True):
    """CPU time and memory of compiling a unit.

    Attributes:
        seconds: CPU time of the compiler and all that it starts.
        mib: peak resident memory of its processes together, in MiB.
    """

    seconds: float
    mib: int


class Extension(Model, frozen=True):
    """A finished extension in the store.

    Attributes:
        arches: number of units that compile to each device code, as for `Unit`.
    """

    target: str
    key: str
    sha256: str
    size: int
    arches: dict[str, int]
