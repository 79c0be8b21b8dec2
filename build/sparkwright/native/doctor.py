"""Checks of this machine for native builds, each with a remedy.

Every check is a pure function of its inputs; `native_checks` gathers these and runs all checks.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.process import run
from sparkwright.lock.native import NativePin
from sparkwright.native.host import find_compiler, find_python_headers, this_machine, version_of
from sparkwright.native.isolation import require_isolation
from sparkwright.native.model import Target

Verdict = Literal["pass", "fail", "to do", "skipped"]

_GIB = 1 << 30
# The toolchain unpacked takes 3 GB and the wheels that it came from 0.6; objects and extensions 1 to 2.
_NEEDED_DISK = 10 * _GIB
# For a lock that records no unit's memory yet.
_USUAL_LARGEST = 4 * _GIB
_MUCH_CACHE = 16 * _GIB
_SPARK = "12.1"
_OLDEST_DRIVER = (580,)
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class MachineCheck:
    """One check of the machine.

    Attributes:
        verdict: ``to do`` for a requirement of native kernels only that is missing.
        remedy: the step that mends it.
    """

    what: str
    verdict: Verdict
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Gpu:
    """A card as ``nvidia-smi`` names it: name, compute capability and driver version."""

    name: str
    capability: str
    driver: str

    @property
    def is_spark(self) -> bool:
        """Tell if it is a GB10, which shares the system's memory."""
        return self.capability == _SPARK


def native_checks(native: NativePin, store: Path, environment: Mapping[str, str]) -> list[MachineCheck]:
    """Check everything that a native build of the lock's tables needs, in the order of its steps.

    Args:
        native: the tables.
        store: the store's folder.
        environment: the environment variables.
    """
    gpu = find_gpu()
    query = "--query-compute-apps=pid,process_name,used_memory"
    memory = parse_meminfo(Path("/proc/meminfo").read_text(encoding="utf-8"))
    return [
        *(
            _tried(
                f"compiler for {machine}", partial(_compiler, Target(machine, native.arch), native.oldest_gxx)
            )
            for machine in native.toolkit.target
        ),
        _tried("python headers", lambda: str(find_python_headers(Path(sys.executable)).folder)),
        check_packages(native, this_machine()),
        check_disk(shutil.disk_usage(store).free),
        check_memory(memory, largest_unit(native)),
        _tried("network isolation", _isolation),
        check_gpu(gpu),
        check_page_cache(gpu, memory),
        check_ptxas(gpu, environment.get("TRITON_PTXAS_PATH", "")),
        check_processes(_query("nvidia-smi", query, "--format=csv,noheader")),
    ]


def find_gpu() -> Gpu | None:
    """Return the first card that ``nvidia-smi`` lists, or `None`."""
    query = "--query-gpu=name,compute_cap,driver_version"
    return parse_gpu(_query("nvidia-smi", query, "--format=csv,noheader"))


def _query(program: str, *arguments: str) -> str | None:
    """Return the output of *program*, or `None` where it is absent or fails."""
    if shutil.which(program) is None:
        return None
    try:
        done = run([program, *arguments], accept=range(256), timeout=_TIMEOUT_S)
    except SparkwrightError:
        return None
    return None if done.status else done.text


def _tried(what: str, attempt: Callable[[], str]) -> MachineCheck:
    """Return the check *what*: passed with what *attempt* returns, or to do where it raises."""
    try:
        return MachineCheck(what, "pass", attempt())
    except SparkwrightError as error:
        return MachineCheck(what, "to do", error.because or error.what, error.next_step)


def _compiler(target: Target, oldest: str) -> str:
    found = find_compiler(target, oldest)
    return f"{found.cxx.name} {'.'.join(map(str, found.version))}"


def _isolation() -> str:
    require_isolation()
    return "compilers can be run without a network (unshare)"


def _judged(what: str, *, passed: bool, detail: str, remedy: str) -> MachineCheck:
    return MachineCheck(what, "pass", detail) if passed else MachineCheck(what, "to do", detail, remedy)


def check_packages(native: NativePin, machine: str) -> MachineCheck:
    """Check that the lock has a CUDA toolkit, cmake and ninja that run on *machine*."""
    table = native.toolkit.builder
    if machine not in table:
        return MachineCheck(
            "cuda toolkit", "to do", f"the lock has none that runs on {machine}",
            f"build on {' or '.join(table)}",
        )  # fmt: skip
    parts = table[machine]
    shown = [f"{name} {parts[name].version}" for name in ("nvcc", "cmake", "ninja") if name in parts]
    return MachineCheck("cuda toolkit", "pass", f"{', '.join(shown)} as pinned packages; nothing to install")


def check_disk(free: int) -> MachineCheck:
    """Check that *free* bytes are enough for a toolchain and the results of a build."""
    detail = f"{free / _GIB:.0f} GiB free, {_NEEDED_DISK / _GIB:.0f} needed"
    remedy = "free some, or point SPARKWRIGHT_HOME to a larger disk"
    return _judged("disk for kernels", passed=free >= _NEEDED_DISK, detail=detail, remedy=remedy)


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the values of ``/proc/meminfo`` in bytes (proc_meminfo(5) gives kB)."""
    rows = (line.partition(":") for line in text.splitlines())
    return {name: int(value.split()[0]) << 10 for name, _, value in rows if value.split()[1:] == ["kB"]}


def largest_unit(native: NativePin) -> int:
    """Return the bytes of memory that the largest unit took to compile, by the lock's costs."""
    return max((mib << 20 for _, mib in native.costs.values()), default=_USUAL_LARGEST)


def check_memory(memory: Mapping[str, int], largest: int) -> MachineCheck:
    """Compare the available memory with that of the *largest* unit, in bytes."""
    available = memory.get("MemAvailable", 0)
    detail = (
        f"{available / _GIB:.0f} of {memory.get('MemTotal', 0) / _GIB:.0f} GiB available, "
        f"the largest unit takes {largest / _GIB:.1f}"
    )
    remedy = "stop processes that hold memory, such as a server, or build on another machine"
    return _judged("memory", passed=available >= largest, detail=detail, remedy=remedy)


def parse_gpu(output: str | None) -> Gpu | None:
    """Return the first card in ``nvidia-smi``'s list of name, capability and driver, or `None`."""
    fields = [field.strip() for field in (output or "").split("\n", 1)[0].split(",")]
    return Gpu(*fields) if len(fields) == 3 and all(fields) else None  # noqa: PLR2004 - as asked for


def check_gpu(gpu: Gpu | None) -> MachineCheck:
    """Check that the card's driver runs CUDA 13 code; building needs neither."""
    if gpu is None:
        return MachineCheck("gpu", "skipped", "nvidia-smi lists none; building needs no GPU")
    detail = f"{gpu.name}, compute capability {gpu.capability}, driver {gpu.driver}"
    if version_of(gpu.driver) >= _OLDEST_DRIVER:
        return MachineCheck("gpu", "pass", detail)
    return MachineCheck(
        "gpu", "to do", f"{detail}; CUDA 13 needs driver 580 or newer",
        "install a newer driver: on a Spark with the system's update, on Ubuntu nvidia-driver-580-open",
    )  # fmt: skip


def check_page_cache(gpu: Gpu | None, memory: Mapping[str, int]) -> MachineCheck:
    """Check that the page cache leaves a card that shares the system's memory enough of it.

    Such a card's driver counts cached files as used, although the kernel would drop them.
    """
    if gpu is None or not gpu.is_spark:
        return MachineCheck("unified memory", "skipped", "not a Spark: the card has its own memory")
    cached = memory.get("Cached", 0)
    detail = f"the page cache holds {cached / _GIB:.0f} GiB of the memory that CPU and GPU share"
    if cached < _MUCH_CACHE:
        return MachineCheck("unified memory", "pass", detail)
    return MachineCheck(
        "unified memory", "to do", f"{detail}, and CUDA counts that as used",
        "before serving: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
    )  # fmt: skip


def check_ptxas(gpu: Gpu | None, path: str) -> MachineCheck:
    """Check that *path*, the value of ``TRITON_PTXAS_PATH``, is a program."""
    if path and not os.access(path, os.X_OK):
        return MachineCheck(
            "TRITON_PTXAS_PATH", "to do", f"{path} is no program", "unset it, or name CUDA 13's ptxas"
        )
    if path:
        return MachineCheck("TRITON_PTXAS_PATH", "pass", path)
    if gpu is None or not gpu.is_spark:
        return MachineCheck("TRITON_PTXAS_PATH", "skipped", "not set; only a Spark may need it")
    return MachineCheck(
        "TRITON_PTXAS_PATH", "pass", "not set: Triton uses its bundled ptxas",
        "if it reports that sm_121a is not defined: export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas",
    )  # fmt: skip


def check_processes(output: str | None) -> MachineCheck:
    """Check that nothing else uses the card; *output* lists process id, name and memory of each."""
    if output is None:
        return MachineCheck("gpu processes", "skipped", "no nvidia-smi")
    rows = [[field.strip() for field in line.split(",")] for line in output.splitlines() if line.strip()]
    if not rows:
        return MachineCheck("gpu processes", "pass", "nothing holds the card's memory")
    shown = "; ".join(f"{Path(row[1]).name} ({row[0]}) {row[-1]}" for row in rows if len(row) > 1)
    return MachineCheck(
        "gpu processes", "to do", shown,
        "a server leaves less memory to compilers and to verification: stop it, or expect fewer jobs",
    )  # fmt: skip
