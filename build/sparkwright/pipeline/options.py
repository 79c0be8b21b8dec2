"""The user's choices: which wheel, with which options, and whether its kernels are upstream's or compiled."""

from __future__ import annotations

import platform as this_machine
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.base.machine import card_capability
from sparkwright.lock.model import Lock

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
    """Options of the compilation that do not change its result; empty ones are as by default."""

    jobs: int | None = None
    isolate: bool = False
    cluster: str = ""


@dataclass(frozen=True)
class BuildOptions(TargetOptions):
    """The target, and the options that it is built with.

    Attributes:
        out: folder for the wheel and its index; see `sparkwright.publish.index.dist_folder` for the default.
        allow_unproved: carries that may go in without a proof.
        require_native: with native kernels, refuse an extension that cannot be compiled instead of taking
            upstream's.
    """

    out: Path | None = None
    allow_unproved: frozenset[str] = frozenset()
    offline: bool = False
    require_native: bool = False
    compiling: CompileOptions = field(default_factory=CompileOptions)


_ARCHITECTURE = re.compile(r"[0-9]{1,2}\.[0-9][af]?")


def choose_arch(lock: Lock, platform: str, *, kernels: Kernels = "auto", arch: str = "") -> str | None:
    """Return the architecture that kernels are compiled for, or `None` for upstream's kernels.

    ``auto`` compiles if an architecture is named, or if the wheel is for this machine and its card is the
    lock's.

    Raises:
        UnknownNameError: *arch* is no architecture.
        ConfigError: kernels are to be compiled, and the lock has no ``[native]``; or an
            architecture is named for upstream's.
    """
    if arch and not _ARCHITECTURE.fullmatch(arch):
        raise UnknownNameError(
            f"{arch!r} is no architecture", next_step="name one as TORCH_CUDA_ARCH_LIST does, such as 12.1a"
        )
    if kernels == "upstream":
        if arch:
            raise ConfigError(
                f"kernels cannot be upstream's and for {arch}",
                because="upstream's are compiled already",
                next_step=f"leave out --arch, or: --kernels native --arch {arch}",
            )
        return None
    if kernels == "auto" and not arch and not _is_own_card(lock, platform):
        return None
    if lock.native is None:
        raise ConfigError(
            "kernels cannot be compiled for this pin",
            because="the lock has no [native] table, which names the toolchain and the sources",
            next_step="take upstream's: --kernels upstream",
        )
    return arch or lock.native.arch


def _is_own_card(lock: Lock, platform: str) -> bool:
    """Tell if the wheel is for this machine, and this machine has the card of the lock."""
    if lock.native is None or this_machine.machine() != platform:
        return False
    return card_capability() == lock.native.arch.rstrip("af")
