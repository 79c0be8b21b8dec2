"""This machine: the facts that decide whether a server can start, read once, and what in them forbids it."""

from __future__ import annotations

import contextlib
import errno
import platform
import re
import shutil
import socket
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.machine import card_fields
from sparkwright.base.process.run import run
from sparkwright.base.text import human_size
from sparkwright.engine.flashinfer import find_nvcc
from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.preflight.finding import Finding, finding

GIB = 1 << 30
RESERVE_SHARE = 0.115
"""Share of a unified machine's memory that the host needs: 14 GiB of a Spark's 121.7. Published recipes for
one Spark go from 0.60 to 0.88; at 0.88 that is what is left."""

_SMALLEST_RESERVE_GIB = 2.0
_OLDEST_DRIVER = 580
_OLDEST_GLIBC = (2, 34)  # of two packages of the locked runtimes; the wheel's own tag says 2.28
_FIELDS = ("name", "compute_cap", "driver_version", "memory.total", "memory.free", "persistence_mode")
_MIB = 1 << 20
_ENVIRONMENT = 8 * GIB  # torch with CUDA's libraries, vLLM and the wheel's parts: 6 GiB and what is fetched
_SECONDS = 20.0


@dataclass(frozen=True)
class CardFacts:
    """A card as ``nvidia-smi`` describes it.

    Attributes:
        total: bytes of its own memory; -1 where it shares the machine's.
        free: free bytes of it; -1 where it shares the machine's.
    """

    name: str
    capability: str
    driver: str = ""
    total: int = -1
    free: int = -1
    persistence: str = ""


@dataclass(frozen=True)
class Memory:
    """The memory of the machine, or of its card, in bytes.

    Attributes:
        kind: ``unified`` for a card that shares the host's, ``card`` for one with its own, ``host`` without.
        available: what a program can have now; -1 where it is not known.
        free: what is free without dropping the page cache; -1 where it is not known.
        sidecars: what other programs will take on top, as the user says.
    """

    kind: str
    total: int
    available: int = -1
    free: int = -1
    cached: int = 0
    swap_used: int = 0
    sidecars: int = 0

    @property
    def reserve(self) -> int:
        """The bytes that the host needs for itself and the server's processes; 0 on a card of its own."""
        if self.kind == "card":
            return 0
        return max(int(RESERVE_SHARE * self.total), int(_SMALLEST_RESERVE_GIB * GIB))


@dataclass(frozen=True)
class HostFacts:
    """A machine at one moment.

    Attributes:
        processes: lines of ``nvidia-smi`` about programs on the card: process id, name, memory.
        disk_free: free bytes where models are cached; -1 where unknown.
        taken: ports of those asked about that something listens at.
        compiler: path of nvcc, as FlashInfer would find it; empty where it is not there.
        nvcc: release of nvcc, such as ``(13, 0)``; empty where it is not there or does not say.
        glibc: version of the C library; empty where it is another one.
        lacks: what Triton compiles with on each host and is not there: ``compiler``, ``headers``.
    """

    machine: str = ""
    meminfo: Mapping[str, int] = field(default_factory=dict)
    card: CardFacts | None = None
    processes: tuple[str, ...] = ()
    disk_free: int = -1
    taken: frozenset[int] = frozenset()
    compiler: str = ""
    nvcc: tuple[int, ...] = ()
    glibc: tuple[int, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def unified(self) -> bool:
        """Tell if the card shares the machine's memory."""
        return self.card is not None and self.card.total < 0

    def memory(self, sidecars: int = 0) -> Memory:
        """Return the memory that a server takes its own from; *sidecars* are bytes that others will take."""
        known = self.meminfo
        swap = known.get("SwapTotal", 0) - known.get("SwapFree", 0)
        if self.card is not None and not self.unified:
            return Memory("card", self.card.total, self.card.free, sidecars=sidecars, swap_used=swap)
        return Memory(
            "unified" if self.card else "host",
            known.get("MemTotal", 0),
            known.get("MemAvailable", -1),
            known.get("MemFree", -1),
            known.get("Cached", 0),
            swap,
            sidecars,
        )


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the values of ``/proc/meminfo`` in bytes (proc_meminfo(5) gives kB)."""
    rows = (line.partition(":") for line in text.splitlines())
    return {name: int(value.split()[0]) << 10 for name, _, value in rows if value.split()[1:] == ["kB"]}


def read_host(
    environment: Mapping[str, str], *, models: Path, ports: Iterable[int] = (), address: str = "127.0.0.1"
) -> HostFacts:
    """Return the facts about this machine."""
    meminfo, compiler, free = Path("/proc/meminfo"), find_nvcc(environment), -1
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(_nearest(models)).free
    return HostFacts(
        machine=platform.machine(),
        meminfo=parse_meminfo(meminfo.read_text(encoding="utf-8")) if meminfo.exists() else {},
        card=parse_card(card_fields(*_FIELDS)),
        processes=_processes(),
        disk_free=free,
        taken=frozenset(port for port in ports if port and is_taken(address, port)),
        compiler=compiler,
        nvcc=_nvcc_release(compiler),
        glibc=tuple(int(part) for part in platform.libc_ver()[1].split(".") if part.isdecimal()),
        lacks=tuple(_lacks(environment)),
    )


def _lacks(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield what Triton's launchers are compiled with and is not there, as Triton looks for it."""
    search = environment.get("PATH", "")
    named = environment.get("CC")
    if not any(shutil.which(name, path=search) for name in ([named] if named else ["gcc", "clang"])):
        yield "compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        yield "headers"


def parse_card(fields: tuple[str, ...]) -> CardFacts | None:
    """Return the card with these fields of ``nvidia-smi``, or `None` without any."""
    if len(fields) != len(_FIELDS):
        return None
    name, capability, driver, total, free, persistence = fields
    return CardFacts(name, capability, driver, _mib(total), _mib(free), persistence)


def _mib(cell: str) -> int:
    number = cell.split(maxsplit=1)[0] if cell else ""
    return int(float(number) * _MIB) if number.replace(".", "", 1).isdecimal() else -1


def _processes() -> tuple[str, ...]:
    query = "--query-compute-apps=pid,process_name,used_memory"
    text = _output(shutil.which("nvidia-smi") or "", query, "--format=csv,noheader")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _nvcc_release(program: str) -> tuple[int, ...]:
    found = re.search(r"release (\d+)\.(\d+)", _output(program, "--version"))
    return tuple(map(int, found.groups())) if found else ()


def _output(program: str, *arguments: str) -> str:
    """Return the output of *program*; empty where it is not there or fails."""
    if program:
        with contextlib.suppress(SparkwrightError):
            return run([program, *arguments], timeout=_SECONDS).text
    return ""


def in_gib(size: float) -> str:
    """Return *size* bytes in GiB with one digit, and what would be 0.0 of them in a smaller unit."""
    if abs(size) >= GIB / 20:
        return f"{size / GIB:.1f} GiB"
    return f"{'-' * (size < 0)}{human_size(abs(size))}"


def _nearest(path: Path) -> Path:
    """Return *path*, or the nearest folder above that is there."""
    return next((one for one in (path, *path.parents) if one.exists()), Path("/"))


def is_taken(address: str, port: int) -> bool:
    """Tell if something listens at *port* of *address*, so that a server could not."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def check_machine(recipe: Recipe, host: HostFacts, address: str, port: int) -> Iterator[Finding]:
    """Yield findings about the card, its driver, other programs on it, and the port to listen at."""
    card = host.card
    if card is None:
        if recipe.capability:
            yield finding("card", capability=recipe.capability)
    else:
        yield from _check_card(recipe, card, host)
    if port in host.taken:
        yield finding("port", port=port, address=address)
    if host.glibc and host.glibc < _OLDEST_GLIBC:
        yield finding("glibc", version=".".join(map(str, host.glibc)))


def _check_card(recipe: Recipe, card: CardFacts, host: HostFacts) -> Iterator[Finding]:
    if recipe.capability and card.capability != recipe.capability:
        yield finding("capability", card=card.name, wanted=recipe.capability, capability=card.capability)
    major = re.match(r"\d+", card.driver)
    if major and int(major.group()) < _OLDEST_DRIVER:
        yield finding("driver", driver=card.driver, oldest=_OLDEST_DRIVER)
    if card.persistence == "Disabled":
        yield finding("persistence")
    for lacking in host.lacks:
        yield finding(lacking)
    if host.processes:
        yield finding("card-processes", processes="; ".join(host.processes[:4]))


def check_room(environments: Path) -> Iterator[Finding]:
    """Yield a finding where the first environment with torch in *environments* finds no room on its disk."""
    place = _nearest(environments)
    free = shutil.disk_usage(place).free
    if free < _ENVIRONMENT and not any(environments.glob("*/lib/*/site-packages/torch")):
        sizes = {"needed": f"{_ENVIRONMENT / GIB:.0f}", "free": in_gib(free)}
        yield finding("room", folder=place, **sizes)
