"""The words of this room, as types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sparkwright.base.config import Model
from sparkwright.base.digests import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WORK = "{work}"
"""Stands for the folder that a build works in, wherever a command or a key names it."""


@dataclass(frozen=True)
class Target:
    """What is compiled for.

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
    """Everything that compiles and links, ready to be used.

    Attributes:
        cuda: toolkit in its classic layout (``bin``, ``include``, ``lib64``, ``nvvm``, ``targets``).
        torch: the target's ``torch`` package folder, of which headers, libraries and CMake files are used.
        stand_in: folder with a package ``torch`` that answers what CMake asks Python about torch.
        cc: C compiler whose output runs on the target.
        cxx: the same for C++.
        cmake: the program.
        ninja: the program.
        cuobjdump: the program.
        python: interpreter that CMake runs its scripts with.
        python_include: headers of the limited API.
        cross: whether the target's machine is another than this one.
        key: digest of all parts by content or version, and of no place.
        parts: what each part is, for people: name and version.
    """

    cuda: Path
    torch: Path
    stand_in: Path
    cc: Path
    cxx: Path
    cmake: Path
    ninja: Path
    cuobjdump: Path
    python: Path
    python_include: Path
    cross: bool
    key: str
    parts: Mapping[str, str] = field(default_factory=dict)


class SourceTree(Model, frozen=True):
    """A dependency's source, or what stands in for it.

    Attributes:
        name: the lock's name for it.
        tree: git id of its tree in the store's repository.
        origin: who brought it, in words, such as ``flashinfer-python 0.6.9``.
        at_hand: whether it is the real source; otherwise `tree` lets CMake configure and no more.
        missing: why it is not at hand.
    """

    name: str
    tree: str
    origin: str
    at_hand: bool = True
    missing: str = ""


@dataclass(frozen=True)
class Inputs:
    """All that decides what a native build gives.

    Attributes:
        tree: git id of the merged tree in the store's repository.
        sources: dependencies' sources by name.
        toolchain: what compiles.
        target: what for.
    """

    tree: str
    sources: Mapping[str, SourceTree]
    toolchain: Toolchain
    target: Target


class Unit(Model, frozen=True):
    """One compiler call.

    Attributes:
        target: the extension that it belongs to.
        source: file to compile, relative to the work folder.
        output: object file, relative to the work folder.
        language: what it is written in.
        argv: the command, with `WORK` for the work folder, run in ``build/``; it names no dependency file.
        arches: what device code it asks for: ``sm_121a`` for a cubin, ``compute_89`` for PTX.
    """

    target: str
    source: str
    output: str
    language: Literal["CUDA", "CXX"]
    argv: tuple[str, ...]
    arches: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the unit is called in logs and tables of costs: extension and source."""
        return f"{self.target}/{self.source.removeprefix('source/')}"


class Link(Model, frozen=True):
    """The link of one extension.

    Attributes:
        target: the extension.
        output: the shared object, relative to the work folder.
        objects: its objects in order, relative to the work folder.
        argv: the command, as for `Unit`.
    """

    target: str
    output: str
    objects: tuple[str, ...]
    argv: tuple[str, ...]


class Configuration(Model, frozen=True):
    """What configuring found out: every command, and the files that it generated.

    Attributes:
        units: compiler calls.
        links: one for each extension that can be built.
        generated: files that configuring wrote into the source tree, by path there, as git blob ids.
    """

    units: tuple[Unit, ...]
    links: tuple[Link, ...]
    generated: dict[str, str]

    def link(self, target: str) -> Link:
        """The link of the extension called *target*."""
        return next(link for link in self.links if link.target == target)

    def units_of(self, target: str) -> tuple[Unit, ...]:
        """The compiler calls of the extension called *target*."""
        return tuple(unit for unit in self.units if unit.target == target)


class Cost(Model, frozen=True):
    """What a unit takes.

    Attributes:
        seconds: CPU time of the compiler and all that it starts.
        mib: peak resident memory of its processes together, in MiB.
    """

    seconds: float
    mib: int


class Extension(Model, frozen=True):
    """A finished extension in the store.

    Attributes:
        target: CMake's name for it.
        key: its native key.
        sha256: digest of the file.
        size: in bytes.
        arches: how many units ask for which device code, as for `Unit`.
    """

    target: str
    key: str
    sha256: str
    size: int
    arches: dict[str, int]

    @staticmethod
    def key_of(**inputs: object) -> str:
        """The native key over *inputs*."""
        return digest_of(inputs)
