"""Check this machine for native builds, with a remedy for each fault; `serve.preflight` does so for serving.

Every check is a pure function of its inputs; `native_checks` gathers these and runs all checks.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from sparkwright.base.card import card_fields
from sparkwright.base.errors import SparkwrightError
from sparkwright.lock.native import NativePin
from sparkwright.native.host import (
    find_compiler,
    find_python_headers,
    require_isolation,
    this_machine,
    version_of,
)
from sparkwright.native.model import Target

Verdict = Literal["pass", "fail", "to do", "skipped"]

_GIB = 1 << 30
# The toolchain unpacked takes 3 GB and the wheels that it came from 0.6; objects and extensions 1 to 2.
_NEEDED_DISK = 10 * _GIB
# For a lock that records no unit's memory yet.
_USUAL_LARGEST = 4 * _GIB
_OLDEST_DRIVER = (580,)


@dataclass(frozen=True)
class MachineCheck:
    """One check of the machine.

    Attributes:
        verdict: ``to do`` for a requirement of native kernels only that is missing.
    """

    what: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def native_checks(native: NativePin, store: Path) -> list[MachineCheck]:
    """Check everything that a native build of the lock's tables needs, in the order of its steps."""
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
        check_gpu(card_fields("name", "compute_cap", "driver_version")),
    ]


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


def check_gpu(card: tuple[str, ...]) -> MachineCheck:
    """Check that the driver of *card* (name, capability, driver) runs CUDA 13; building needs neither."""
    if not card:
        return MachineCheck("gpu", "skipped", "nvidia-smi lists none; building needs no GPU")
    name, capability, driver = card
    detail = f"{name}, compute capability {capability}, driver {driver}"
    if version_of(driver) >= _OLDEST_DRIVER:
        return MachineCheck("gpu", "pass", detail)
    return MachineCheck(
        "gpu", "to do", f"{detail}; CUDA 13 needs driver 580 or newer",
        "install a newer driver: on a Spark with the system's update, on Ubuntu nvidia-driver-580-open",
    )  # fmt: skip
