"""The user's choices: which wheel, made with which options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kernels = Literal["auto", "upstream", "native"]

DEFAULT_PLATFORM = "aarch64"


@dataclass(frozen=True)
class TargetOptions:
    """The wheel that a command works on.

    Attributes:
        series: line of releases whose lock and patchset are taken; the default one if it is empty.
        patchset: name of the patchset's file; the series' own if it is empty.
        platform: machine that the wheel is for: a key of the lock's wheels.
        source: origin of upstream's tree: ``index``, ``git``, an address or a folder.
        kernels: origin of compiled code.
        arch: architecture that kernels are compiled for; the lock's by default.
    """

    series: str = ""
    patchset: str = ""
    platform: str = DEFAULT_PLATFORM
    source: str = "index"
    kernels: Kernels = "upstream"
    arch: str = ""


@dataclass(frozen=True)
class CompileOptions:
    """Options of the compilation that do not change its result.

    Attributes:
        jobs: most compilers at once; by default as many as cores and memory allow.
        keep_going: compile the other units when one fails.
        isolate: take the network away from every tool of the build.
        cluster: address of other machines that compile; empty to do that here.
    """

    jobs: int | None = None
    keep_going: bool = False
    isolate: bool = False
    cluster: str = ""


@dataclass(frozen=True)
class BuildOptions(TargetOptions):
    """The target, and the options that it is built with.

    Attributes:
        out: folder for the wheel and its index; see `sparkwright.publish.dist_folder` for the default.
        allow_unproved: carries that may go in without a proof.
        offline: use no network.
        require_native: with native kernels, refuse an extension that cannot be compiled instead of taking
            upstream's.
        compiling: options of the compilation.
    """

    out: Path | None = None
    allow_unproved: frozenset[str] = frozenset()
    offline: bool = False
    require_native: bool = False
    compiling: CompileOptions = field(default_factory=CompileOptions)
