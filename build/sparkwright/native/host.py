"""Find what a build needs of this machine: a compiler, Python's headers, a way to run without a network.

`native_checks` tells all of that for ``sparkwright doctor``, with a remedy for what is missing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from sparkwright.base.errors import ProcessError, SparkwrightError, ToolError
from sparkwright.base.machine import MachineSnapshot, card_fields, look
from sparkwright.base.process.run import run, which
from sparkwright.lock.model import NativePin
from sparkwright.native.model import Target

OLDEST_GXX = (11, 3)
"""The first g++ with the C++20 that vLLM's sources need; torch needs no newer one."""

_NEWEST_GXX = 15  # the newest for nvcc 13.0: its crt/host_config.h refuses later ones
_CROSS_VERSIONS = (14, 13, 12, 11)
_PROBE = b"""\
#include <features.h>
glibc __GLIBC__ __GLIBC_MINOR__
"""
_PROBE_S = 30.0
# GCC indents the folders of its search list by one space; no other line of `-v` is a lone absolute path.
_FOLDER = re.compile(r" /\S.*\Z")


@dataclass(frozen=True)
class HostCompiler:
    """A g++ with its assembler, linker and C library.

    Attributes:
        banners: version lines of compiler, assembler, linker and C library, without paths.
        headers: the folders that the C++ compiler searches for headers, links resolved.
    """

    cc: Path
    cxx: Path
    version: tuple[int, ...]
    banners: dict[str, str]
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class PythonHeaders:
    """An interpreter's headers."""

    folder: Path
    version: str


def this_machine() -> str:
    """Return the machine that this process runs on: ``aarch64`` or ``x86_64``."""
    return platform.machine()


def find_compiler(target: Target, oldest: str = "") -> HostCompiler:
    """Return a g++ whose output runs on the *target*.

    *oldest* is the version that the release accepts at least, such as ``13``.
    """
    refused: list[str] = []
    least = max(OLDEST_GXX, tuple(map(int, oldest.split(".")))) if oldest else OLDEST_GXX
    for name in _candidates(target):
        cxx = shutil.which(name)
        cc = shutil.which(name.replace("g++", "gcc"))
        if cxx is None or cc is None:
            continue
        why = _unfit(Path(cxx), target, least)
        if why is None:
            return _described(Path(cc), Path(cxx))
        refused.append(f"{cxx} {why}")
    package, systems = _package(target), "Debian and Ubuntu"
    if least > OLDEST_GXX:
        package, systems = package.replace("g++", f"g++-{least[0]}"), "a Debian or Ubuntu that has it"
    raise ToolError(
        f"there is no C++ compiler for {target.machine}",
        because="; ".join(refused) or f"none of {', '.join(_candidates(target))} is on PATH with its gcc",
        next_step=f"install one: 'apt install {package}' on {systems}",
    )


def find_python_headers(python: Path) -> PythonHeaders:
    """Return the headers of the interpreter *python*."""
    script = (
        "import sys, sysconfig; print(sysconfig.get_path('include')); print('%d.%d' % sys.version_info[:2])"
    )
    folder, version = run([python, "-I", "-c", script], timeout=_PROBE_S).text.splitlines()
    if not Path(folder, "Python.h").is_file():
        raise ToolError(
            f"the headers of Python {version} are missing",
            because=f"there is no {folder}/Python.h",
            next_step=f"install them: 'apt install python{version}-dev' on Debian and Ubuntu",
        )
    return PythonHeaders(Path(folder), version)


def version_of(text: str) -> tuple[int, ...]:
    """Return the last version number on the first line of *text*; an empty tuple without one."""
    line = text.split("\n", 1)[0]
    found = re.findall(r"(?<![\w.])\d+(?:\.\d+)+", line)
    return tuple(int(part) for part in found[-1].split(".")) if found else ()


def _is_cross(target: Target) -> bool:
    return target.machine != this_machine()


def _candidates(target: Target) -> list[str]:
    if not _is_cross(target):
        return ["g++", *(f"g++-{version}" for version in _CROSS_VERSIONS)]
    triple = f"{target.machine}-linux-gnu"
    return [*(f"{triple}-g++-{version}" for version in _CROSS_VERSIONS), f"{triple}-g++"]


def _package(target: Target) -> str:
    return f"g++-{target.machine.replace('_', '-')}-linux-gnu" if _is_cross(target) else "g++"


def _unfit(cxx: Path, target: Target, oldest: tuple[int, ...]) -> str | None:
    """Return the reason that the compiler *cxx* cannot be used for *target*, or `None`."""
    version = version_of(_first_line(cxx, "--version"))
    shown = ".".join(map(str, version)) or "no version"
    if version < oldest:
        return f"has {shown}, and {'.'.join(map(str, oldest))} is the oldest supported"
    if version[0] > _NEWEST_GXX:
        return f"has {shown}, and nvcc supports none after {_NEWEST_GXX}"
    machine = _first_line(cxx, "-dumpmachine").split("-")[0]
    return None if machine == target.machine else f"compiles for {machine}"


def _described(cc: Path, cxx: Path) -> HostCompiler:
    banner = _first_line(cxx, "--version")
    banners = {"g++": _nameless(banner)}
    for tool in ("as", "ld"):
        banners[tool] = _nameless(
            _first_line(Path(_first_line(cxx, f"-print-prog-name={tool}")), "--version")
        )
    output = run([cxx, "-E", "-P", "-x", "c", "-"], stdin=_PROBE, timeout=_PROBE_S).text
    banners["glibc"] = ".".join(output.rpartition("glibc")[2].split())
    return HostCompiler(cc, cxx, version_of(banner), banners, _headers(cxx))


def _headers(cxx: Path) -> tuple[str, ...]:
    """Return the folders that *cxx* searches for headers, but for ``/usr/local``, which no package owns."""
    command: list[str | Path] = [cxx, "-E", "-v", "-x", "c++", os.devnull]
    lines = run(command, timeout=_PROBE_S).stderr.splitlines()
    found = {os.path.realpath(line.strip()) for line in lines if _FOLDER.match(line)}
    return tuple(sorted(path for path in found if not path.startswith("/usr/local/") and Path(path).is_dir()))


def _first_line(program: Path, option: str) -> str:
    """Return the first line of *program*'s output with *option*."""
    return run([program, option], timeout=_PROBE_S).text.split("\n", 1)[0]


def _nameless(banner: str) -> str:
    """Return *banner* without its first word, if that is the name that the program was called by."""
    first, _, rest = banner.partition(" ")
    return rest if "g++" in first or "/" in first else banner


# Without a network --------------------------------------------------------------------------------


def isolated(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command for *argv* in a separate network namespace, where even the loopback device is down.

    Files and processes stay shared: this keeps a build off the network, and is no sandbox. A compiler cache
    that listens on localhost cannot be used with it.
    """
    # Root needs no user namespace for this; in one (-r), other users' files would appear as owned by nobody.
    options = ("-n",) if os.geteuid() == 0 else ("-r", "-n")
    return ("unshare", *options, "--", *argv)


def require_isolation() -> None:
    """Refuse a machine where `isolated` does not work."""
    what = "the build cannot be kept off the network on this machine"
    try:
        which("unshare", hint="install util-linux")
        run(isolated(["true"]), timeout=30)
    except ProcessError as error:
        raise ToolError(
            what,
            because=error.because,
            next_step="allow user namespaces (sysctl kernel.unprivileged_userns_clone and "
            "kernel.apparmor_restrict_unprivileged_userns), build as root, or build without isolation",
        ) from error
    except SparkwrightError as error:
        raise ToolError(what, because=str(error), next_step="install util-linux") from error


# What a machine lacks for compiling ---------------------------------------------------------------

Verdict = Literal["pass", "fail", "to do", "skipped"]

_GIB = 1 << 30
# The toolchain unpacked takes 3 GB and the wheels that it came from 0.6; objects and extensions 1 to 2.
_NEEDED_DISK = 10 * _GIB
_USUAL_LARGEST_MIB = 4096  # for a lock that records no unit's memory yet
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
    return [
        *(
            _tried(f"compiler for {one}", partial(_compiler, Target(one, native.arch), native.oldest_gxx))
            for one in native.toolkit.target
        ),
        _tried("python headers", lambda: str(find_python_headers(Path(sys.executable)).folder)),
        check_packages(native, this_machine()),
        check_disk(shutil.disk_usage(store).free),
        check_memory(look(), native),
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


def _judged(what: str, detail: str, remedy: str, *, passed: bool) -> MachineCheck:
    return MachineCheck(what, "pass", detail) if passed else MachineCheck(what, "to do", detail, remedy)


def check_packages(native: NativePin, machine: str) -> MachineCheck:
    """Check that the lock has a CUDA toolkit, cmake and ninja that run on *machine*."""
    table = native.toolkit.builder
    parts = table.get(machine, {})
    shown = ", ".join(f"{name} {parts[name].version}" for name in ("nvcc", "cmake", "ninja") if name in parts)
    detail = f"{shown} as pinned packages; nothing to install" if parts else f"none that runs on {machine}"
    return _judged("cuda toolkit", detail, f"build on {' or '.join(table)}", passed=bool(parts))


def check_disk(free: int) -> MachineCheck:
    """Check that *free* bytes are enough for a toolchain and the results of a build."""
    detail = f"{free / _GIB:.0f} GiB free, {_NEEDED_DISK / _GIB:.0f} needed"
    remedy = "free some, or point SPARKWRIGHT_HOME to a larger disk"
    return _judged("disk for kernels", detail, remedy, passed=free >= _NEEDED_DISK)


def check_memory(machine: MachineSnapshot, native: NativePin) -> MachineCheck:
    """Compare the available memory with that of the largest unit, by the lock's costs."""
    largest = max((mib for _, mib in native.costs.values()), default=_USUAL_LARGEST_MIB)
    available, total = machine.available_mib, machine.total_mib
    detail = f"{available / 1024:.0f} of {total / 1024:.0f} GiB available, "
    detail += f"the largest unit takes {largest / 1024:.1f}"
    remedy = "stop processes that hold memory, such as a server, or build on another machine"
    return _judged("memory", detail, remedy, passed=available >= largest)


def check_gpu(card: tuple[str, ...]) -> MachineCheck:
    """Check that the driver of *card* (name, capability, driver) runs CUDA 13; building needs neither."""
    if not card:
        return MachineCheck("gpu", "skipped", "nvidia-smi lists none; building needs no GPU")
    name, capability, driver = card
    passed = version_of(driver) >= _OLDEST_DRIVER
    detail = f"{name}, compute capability {capability}, driver {driver}"
    detail += "" if passed else "; CUDA 13 needs driver 580 or newer"
    remedy = "install a newer driver: on a Spark with the system's update, on Ubuntu nvidia-driver-580-open"
    return _judged("gpu", detail, remedy, passed=passed)
