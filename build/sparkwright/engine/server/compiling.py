"""Compilers that a server runs, and the files that they leave: read from /proc and from the caches.

FlashInfer starts ninja and nvcc, Triton ptxas and a C compiler; vLLM's own monitor sees the latter only.
Each leaves a file in its cache, as does the driver, which compiles PTX inside the server's process.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

COMPILERS = frozenset(
    {"ninja", "nvcc", "cudafe++", "cicc", "ptxas", "fatbinary", "nvlink", "cc1", "cc1plus", "tileiras"}
)
"""Names of programs that run while a kernel is compiled."""

_POLL_S = 0.1
_LOOK_S = 2.0
_STOP_S = 5.0
_MOST = 20
# Written whether or not anything is compiled.
_NO_KERNEL = frozenset({".lock", ".log", ".tmp"})


def cache_folders(environment: Mapping[str, str]) -> dict[str, Path]:
    """Return the folders that a server with this *environment* keeps compiled kernels in, by their owner."""
    home = Path(environment.get("HOME") or Path.home())
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    flashinfer = Path(environment.get("FLASHINFER_WORKSPACE_BASE") or home)
    return {
        "FlashInfer": flashinfer / ".cache" / "flashinfer",
        "Triton": Path(environment.get("TRITON_CACHE_DIR") or home / ".triton" / "cache"),
        "vLLM": Path(environment.get("VLLM_CACHE_ROOT") or cache / "vllm"),
        "the driver": Path(environment.get("CUDA_CACHE_PATH") or home / ".nv" / "ComputeCache"),
    }


def kernels_in(folders: Mapping[str, Path]) -> frozenset[tuple[str, str]]:
    """Return owner and path of every file in *folders* that may be of a kernel."""
    return frozenset(
        (owner, Path(parent, name).relative_to(folder).as_posix())
        for owner, folder in folders.items()
        for parent, _, names in os.walk(folder)  # a folder that vanishes meanwhile is no error
        for name in names
        if Path(name).suffix not in _NO_KERNEL
    )


def told(compilers: Iterable[str], files: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return what was compiled, for people: programs with their number, then new files by owner."""
    programs = [f"{name} ({count})" for name, count in sorted(Counter(compilers).items())]
    listed = [f"{owner}: {path}" for owner, path in sorted(files)]
    more = [f"and {len(listed) - _MOST} more files"] if len(listed) > _MOST else []
    return (*programs, *listed[:_MOST], *more)


class FlashInferBuild:
    """Finds out if FlashInfer's compilers go on, by the files that they leave in its cache.

    Each is counted once, so that a build that begins again and again is none that goes on.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folders = {"FlashInfer": cache_folders(environment)["FlashInfer"]}
        self._seen = kernels_in(self._folders)
        self._at = 0.0

    def look(self, now: float) -> bool:
        """Tell if files have come since the last look."""
        if now - self._at < _LOOK_S:
            return False
        self._at, before = now, self._seen
        self._seen = before | kernels_in(self._folders)
        return self._seen != before


class CompileWatch:
    """Watch a server's processes and caches while a block runs; `compiled` is known after it."""

    def __init__(self, pid: int) -> None:
        """Keep *pid*; nothing is read before the block begins."""
        self.pid = pid
        self.compiled: tuple[str, ...] = ()
        self._seen: dict[int, str] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="compilers", daemon=True)
        self._folders: dict[str, Path] = {}
        self._before: frozenset[tuple[str, str]] = frozenset()

    def __enter__(self) -> Self:
        """Note the files that are there, and begin to watch."""
        self._folders = cache_folders(_environment(self.pid))
        self._before = kernels_in(self._folders)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End watching, and compare the files."""
        self._end.set()
        self._thread.join(_STOP_S)
        self.compiled = told(self._seen.values(), kernels_in(self._folders) - self._before)

    def _watch(self) -> None:
        while not self._end.wait(_POLL_S):
            self._seen.update(running_compilers(self.pid))


def running_compilers(pid: int) -> dict[int, str]:
    """Return the compilers among the descendants of *pid* now, by process id."""
    found = {}
    try:
        for process in psutil.Process(pid).children(recursive=True):
            try:
                if (name := process.name()) in COMPILERS and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = name
            except psutil.Error:  # ended since it was listed
                continue
    except psutil.Error:
        pass
    return found


def _environment(pid: int) -> dict[str, str]:

    try:
        return dict(psutil.Process(pid).environ())
    except psutil.Error:
        return {}
