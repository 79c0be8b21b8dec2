"""Which kernels a wheel gets: upstream's own, or ones that are compiled for one card."""

from __future__ import annotations

import platform as this_machine
import re
from typing import TYPE_CHECKING, Literal

from sparkwright.base.errors import ConfigError, SparkwrightError, UnknownNameError
from sparkwright.base.process import run, which

if TYPE_CHECKING:
    from sparkwright.lock import Lock

Kernels = Literal["auto", "upstream", "native"]

_ARCHITECTURE = re.compile(r"[0-9]{1,2}\.[0-9][af]?")
_SECONDS = 10


def choose_arch(lock: Lock, platform: str, *, kernels: Kernels = "auto", arch: str = "") -> str | None:
    """What kernels are compiled for, or `None` where upstream's are taken.

    Args:
        lock: the pin.
        platform: which machine the wheel is for.
        kernels: what is asked for; ``auto`` compiles where an architecture is named, and on a machine
            that has the very card of the lock's `native.arch` and builds for itself.
        arch: the architecture, as ``TORCH_CUDA_ARCH_LIST`` writes it; the lock's by default.

    Raises:
        UnknownNameError: *arch* is no architecture.
        ConfigError: kernels are to be compiled, and the lock does not say with what; or an
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
                because="upstream's are as upstream compiled them",
                next_step=f"leave out --arch, or: --kernels native --arch {arch}",
            )
        return None
    if kernels == "auto" and not arch and not _is_own_card(lock, platform):
        return None
    if lock.native is None:
        raise ConfigError(
            "kernels cannot be compiled for this pin",
            because="upstream.lock has no [native], which says with what",
            next_step="take upstream's: --kernels upstream",
        )
    return arch or lock.native.arch


def _is_own_card(lock: Lock, platform: str) -> bool:
    """Whether the wheel is for this machine, and this machine has the card that the lock names."""
    if lock.native is None or this_machine.machine() != platform:
        return False
    return own_capability() == lock.native.arch.rstrip("af")


def own_capability() -> str | None:
    """Compute capability of this machine's first GPU, such as ``12.1``; `None` where that cannot be told."""
    query = ["--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        told = run([which("nvidia-smi"), *query], timeout=_SECONDS).text
    except SparkwrightError:
        return None  # no driver, or one that does not answer: upstream's kernels do then
    return told.splitlines()[0].strip() if told else None
