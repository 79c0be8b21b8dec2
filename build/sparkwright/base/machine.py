"""A snapshot of this machine (cores, memory, and memory pressure), its free ports, and its card.

Control groups count if they are version 2 (cgroups(7)); every limit from the process's group up to the
root holds. Readers take the root folder, so that tests can give them files.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.process.run import run

_ROOT = Path("/")
_CGROUPS = "sys/fs/cgroup"


@dataclass(frozen=True)
class Pressure:
    """Memory pressure over the last ten seconds (PSI, ``Documentation/accounting/psi.rst`` of the kernel).

    Attributes:
        some: percent of the time in which at least one task waited for memory.
        full: percent of the time in which all did.
    """

    some: float = 0.0
    full: float = 0.0

    def reaches(self, other: Pressure) -> bool:
        """Tell if it is at least *other* in either respect."""
        return self.some >= other.some or self.full >= other.full

    def __str__(self) -> str:
        return f"some {self.some:.0f} %, full {self.full:.0f} %"


@dataclass(frozen=True)
class MachineSnapshot:
    """The resources of the machine at one moment.

    Attributes:
        pressure: memory pressure; `None` where the kernel does not measure it.
    """

    cores: int
    total_mib: int
    available_mib: int
    pressure: Pressure | None = None


def look(root: Path = _ROOT, *, affinity: int | None = None) -> MachineSnapshot:
    """Return a snapshot of the machine.

    *root* is the folder with ``proc`` and ``sys``; *affinity* are the cores that the scheduler allows, by
    default the kernel's figure.
    """
    groups = _groups(root)
    allowed = len(os.sched_getaffinity(0)) if affinity is None else affinity
    total, available = _memory(root)
    for group in groups:
        if (limit := _limit_mib(group)) is not None:
            total = min(total, limit)
            available = min(available, max(0, limit - _used_mib(group)))
    measured = [_pressure(root / "proc/pressure/memory"), *(_pressure(g / "memory.pressure") for g in groups)]
    pressures = [one for one in measured if one is not None]
    return MachineSnapshot(
        cores=max(1, min([allowed, *(_quota(group) for group in groups if _quota(group))])),
        total_mib=total,
        available_mib=available,
        pressure=Pressure(max(p.some for p in pressures), max(p.full for p in pressures))
        if pressures
        else None,
    )


def _read(path: Path) -> str:
    """Return the text of a kernel file; empty where it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:  # also EOPNOTSUPP, of a kernel that was started with psi=0
        return ""


def _groups(root: Path) -> list[Path]:
    """Return this process's control group folder and those above it, for version 2."""
    own = next(
        (line[3:] for line in _read(root / "proc/self/cgroup").splitlines() if line.startswith("0::")), ""
    )
    top = root / _CGROUPS
    # Without a cgroup namespace the path may name folders that are not mounted here.
    folder = top / own.strip("/")
    return [group for group in (folder, *folder.parents) if group.is_relative_to(top) and group.is_dir()]


def _quota(group: Path) -> int:
    """Return the whole cores that ``cpu.max`` allows; 0 for no limit."""
    match _read(group / "cpu.max").split():
        case [quota, period] if quota.isdigit() and int(period) > 0:
            return max(1, int(quota) // int(period))
    return 0


def _limit_mib(group: Path) -> int | None:
    """Return the lower of ``memory.max`` and ``memory.high``, above which the kernel slows a group down."""
    texts = (_read(group / name).strip() for name in ("memory.max", "memory.high"))
    limits = [int(text) >> 20 for text in texts if text.isdigit()]
    return min(limits, default=None)


def _used_mib(group: Path) -> int:
    """Return a group's memory that cannot be reclaimed at once: all but inactive files."""
    current = _read(group / "memory.current").strip()
    reclaimable = _counter(group / "memory.stat", "inactive_file") or 0
    return max(0, int(current or 0) - reclaimable) >> 20


def _memory(root: Path) -> tuple[int, int]:
    """Return total and available memory in MiB (``MemTotal``, ``MemAvailable`` of proc(5))."""
    found = [_counter(root / "proc/meminfo", name) or 0 for name in ("MemTotal:", "MemAvailable:")]
    return found[0] >> 10, found[1] >> 10


def _counter(path: Path, name: str) -> int | None:
    """Return the number after *name* at the beginning of a line."""
    for line in _read(path).splitlines():
        match line.split():
            case [found, number, *_] if found == name:
                return int(number)
    return None


def _pressure(path: Path) -> Pressure | None:
    """Return the ten-second averages of a file of pressure-stall information."""
    found: dict[str, float] = {}
    for line in _read(path).splitlines():
        kind, _, average = line.partition(" avg10=")
        if average:
            found[kind] = float(average.split()[0])
    return Pressure(found.get("some", 0.0), found.get("full", 0.0)) if found else None


def is_this_machine(host: str) -> bool:
    """Tell if *host* is this machine's own loopback interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Free ports ---------------------------------------------------------------------------------------

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 20_000
_HIGHEST = 32_768
_TRIES = 100


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of *host* that nothing is bound to, reserved for a server until this process ends.

    A server binds it seconds or minutes later. Were it one of those that the kernel hands out, any program
    that asks for some port could have it by then; and were it not reserved, another call of this function in
    any process could return it. A bound socket that does not listen reserves it, and keeps no server away
    that sets SO_REUSEADDR, as servers do.
    """
    reserved = None
    for port in random.sample(range(_LOWEST, _first_handed_out()), _TRIES):
        with contextlib.suppress(OSError):
            reserved = _bound(host, port)
            break
    reserved = reserved or _bound(host, 0)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port = int(reserved.getsockname()[1])
    reserved.detach()  # its descriptor stays open
    return port


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound without SO_REUSEADDR, so that reservations are in the way."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def _first_handed_out() -> int:
    """Return the first port that the kernel may give away, or a usual one where few are left below it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        first = int(_RANGE.read_text(encoding="ascii").split()[0])
        if first >= _LOWEST + _TRIES:
            return first
    return _HIGHEST


# The card of this host, as ``nvidia-smi`` describes it ----------------------------------------------

_ASKED_S = 10.0


def card_capability() -> str:
    """Return the compute capability of the first card, such as ``12.1``; empty where unreadable."""
    return ask_card("compute_cap").strip()


def card_memory_gib() -> float:
    """Return the first card's memory, or the machine's if shared (GB10: ``[N/A]``); -1 without a card."""
    raw = ask_card("memory.total")
    if not raw:
        return -1
    (mib,) = numbers_of(raw, 1)
    return mib / 1024 if mib >= 0 else (_counter(_ROOT / "proc/meminfo", "MemTotal:") or 0) / (1 << 20)


def card_fields(*names: str) -> tuple[str, ...]:
    """Return the fields of the first card by ``nvidia-smi``'s names, as it writes them; empty without a card.

    A field that the card has not, such as a GB10's ``memory.total``, is ``[N/A]`` or ``Not Supported``.
    """
    line = ask_card(",".join(names)).strip()
    cells = tuple(cell.strip() for cell in line.split(","))
    return cells if line and len(cells) == len(names) else ()


def ask_card(query: str) -> str:
    """Return the output of ``nvidia-smi`` for the first card, or empty."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    arguments = [program, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    with contextlib.suppress(SparkwrightError):
        return run(arguments, timeout=_ASKED_S).text.partition("\n")[0]
    return ""


def numbers_of(line: str, count: int) -> tuple[float, ...]:
    """Return *count* numbers of a line with commas; -1 for a cell that is none, such as ``[N/A]``."""
    cells = [cell.strip() for cell in line.split(",")]
    found = []
    for cell in (cells + [""] * count)[:count]:
        try:
            found.append(float(cell))
        except ValueError:
            found.append(-1.0)
    return tuple(found)
