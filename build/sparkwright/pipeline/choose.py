"""The choice between upstream's kernels and native ones, compiled for one card."""

from __future__ import annotations

import platform as this_machine
import re

from sparkwright.base.errors import ConfigError, SparkwrightError, UnknownNameError
from sparkwright.base.process import run, which
from sparkwright.lock import Lock
from sparkwright.pipeline.options import Kernels

_ARCHITECTURE = re.compile(r"[0-9]{1,2}\.[0-9][af]?")
_SECONDS = 10


def choose_arch(lock: Lock, platform: str, *, kernels: Kernels = "auto", arch: str = "") -> str | None:
    """Return the architecture that kernels are compiled for, or `None` for upstream's kernels.

    Args:
        lock: the pin.
        platform: machine that the wheel is for.
        kernels: the user's choice; ``auto`` compiles if an architecture is named, or if the wheel is for this
            machine and its card is the lock's `native.arch`.
        arch: the architecture, as ``TORCH_CUDA_ARCH_LIST`` writes it; the lock's by default.

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
    return own_capability() == lock.native.arch.rstrip("af")


def own_capability() -> str | None:
    """Return the compute capability of this machine's first GPU, such as ``12.1``; `None` if unknown."""
    query = ["--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        output = run([which("nvidia-smi"), *query], timeout=_SECONDS).text
    except SparkwrightError:
        return None  # no driver, or one that fails: upstream's kernels will do
    return output.splitlines()[0].strip() if output else None
