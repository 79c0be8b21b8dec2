"""Inspect a compiled extension, each once: its machine, the libraries that it needs, its device code.

Start reading at `inspect`. No binary is loaded or run, and any machine can inspect the binaries of any other.

`resolve` looks undefined symbols up as the dynamic loader would: in the binary's ``DT_NEEDED``, all that
these need in turn, and the Python that loads it. Libraries that another extension may have loaded before do
not count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.lock.model import NativePin, named
from sparkwright.native.device_code import DeviceCode, read_device_code
from sparkwright.native.elf import ElfFacts, Symbol, exports, open_elf, read_elf, system_libraries
from sparkwright.native.host import this_machine
from sparkwright.native.model import Toolchain
from sparkwright.native.packages import find_package, program_in, unpack_package
from sparkwright.store.paths import Store
from sparkwright.upstream.releases import Access

INSPECTION_RULES = 1
"""Part of the records' keys: raised when the same bytes are read differently."""

M = TypeVar("M", bound=Model)


class Inspection(Model, frozen=True):
    """The facts of a binary."""

    elf: ElfFacts
    device: DeviceCode


def inspect(path: Path, cuobjdump: Path) -> Inspection:
    """Inspect the binary at *path*, with the program *cuobjdump* for its device code."""
    return Inspection(elf=read_elf(path), device=read_device_code(path, cuobjdump))


@dataclass(frozen=True)
class Inspector:
    """Inspects binaries, each only once for a store.

    Attributes:
        cuobjdump: returns the program; called only when a binary has to be inspected.
    """

    store: Store
    cuobjdump: Callable[[], Path]

    def inspect(self, sha256: str, provide: Callable[[], Path]) -> Inspection:
        """Return the facts of the binary *sha256*; call *provide* for the file when they are not cached."""
        return self.remember([sha256], Inspection, lambda: inspect(provide(), self.cuobjdump()))

    def remember(self, question: list[object], kind: type[M], answer: Callable[[], M]) -> M:
        """Return the cached result for *question*; call *answer* when there is none.

        *question* is all that decides the result, JSON-ready, with the binary's SHA-256.
        """
        key = digest_of([INSPECTION_RULES, *question])
        known = self.store.find_record_as(kind, "inspection", key)
        if known is None:  # also where the record is damaged or of another format
            known = answer()
            self.store.put_record("inspection", key, to_builtins(known))
        return known


# Symbols ------------------------------------------------------------------------------------------

Python = Literal["stable-abi", "one-version", "none"]
"""The Pythons that load a binary: any from some version on, just one, or none."""

PROMISED_BY_DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1"})
"""Libraries that come with the GPU's driver: no wheel has them."""

_DRIVER_SYMBOL = re.compile(r"cu[A-Z]\w+|nvml[A-Z]\w+")
_PYTHON_SYMBOL = re.compile(r"_?Py\w+")
# System libraries by those of their names that binaries use without a version, which the linker allows
# where a library was missing at linking: the Itanium C++ ABI's runtime and its names in namespace std
# (St, or an abbreviation of it, behind what kind of name it is), and the loader's functions.
_UNVERSIONED = {
    "libstdc++.so.6": re.compile(
        r"_Z(T[VTISCv]|GV|GR)?N?[VK]*(St|S[absiod]).*|_Z[nd][wla]\w+|_Z(T[VIS])?N[VK]*10__cxxabiv1\w+"
        r"|__cxa_\w+|__gxx_personality_v0|__dynamic_cast"
    ),
    "libgcc_s.so.1": re.compile(r"_Unwind_\w+"),
    "libc.so.6": re.compile(r"dl(open|sym|close|error|addr)"),
}


@dataclass(frozen=True)
class Surroundings:
    """The libraries that are loaded beside the wheel's binaries where the wheel is installed.

    Attributes:
        libraries: the files by soname that torch and its dependencies bring, as far as they are unpacked.
        link_only: sonames that torch's dependencies bring as well, and of which no file is unpacked.
        key: digest of all that by content; empty if unknown.
    """

    libraries: Mapping[str, Path]
    link_only: frozenset[str] = field(default_factory=frozenset)
    key: str = ""

    @classmethod
    def of(cls, folders: Iterable[Path], link_only: Iterable[str] = (), *, key: str = "") -> Surroundings:
        """Return the libraries in *folders*; of two with one name, the first folder's counts."""
        found: dict[str, Path] = {}
        for folder in folders:
            for path in sorted(folder.glob("*.so*")):
                found.setdefault(path.name, path)
        return cls(found, frozenset(link_only) - set(found), key)

    def provides(self, soname: str) -> bool:
        """Tell if the library *soname* will be there."""
        return (
            soname in self.libraries
            or soname in self.link_only
            or soname in PROMISED_BY_DRIVER
            or system_libraries(soname)
        )


class Resolution(Model, frozen=True):
    """The result of looking for the definitions of a binary's undefined symbols.

    Attributes:
        unresolved: symbols that no library defines, with their version; see `resolve` for the rules.
        stable_abi: the Python from which on all that is used is in the stable ABI, as ``(3, 11)``;
            `None` for binaries of no stable ABI.
    """

    unresolved: tuple[str, ...]
    stable_abi: tuple[int, int] | None = None


def unprovided(elf: ElfFacts, surroundings: Surroundings) -> tuple[str, ...]:
    """Return the libraries that *elf* needs and no dependency brings."""
    return tuple(soname for soname in elf.needed if not surroundings.provides(soname))


def resolve(elf: ElfFacts, surroundings: Surroundings, *, python: Python) -> Resolution:
    """Look for a definition of each undefined symbol of *elf*.

    A library counts as defining a symbol:

    - libraries of which *surroundings* has the file: by their symbol table;
    - the system's C and C++ libraries: by the symbol's version, which `over_platform` compares with
      the wheel's tag, and not by name; by a few names where no version is required;
    - Python: by the list of its stable ABI (PEP 384), or by prefix for a binary of one Python;
    - the driver and libraries without a file: by the name's prefix, when the binary needs them.

    A weak symbol may stay undefined.
    """
    needed = _closure(elf.needed, surroundings)
    left = [one for one in elf.undefined if not (one.library and system_libraries(one.library))]
    for soname in needed:
        if (path := surroundings.libraries.get(soname)) is not None:
            names, versions = _offered(path)
            left = [
                one
                for one in left
                if one.library not in {"", soname} or one.name not in names or one.version not in versions
            ]
    unresolved = [
        symbol.name + (f"@{symbol.version}" if symbol.version else "")
        for symbol in left
        if not symbol.weak and not _defined_by_name(symbol, needed, surroundings, python)
    ]
    since = None
    if python == "stable-abi":
        used = (_stable_abi().get(one.name) for one in elf.undefined)
        since = max(filter(None, used), default=(3, 2))
    return Resolution(unresolved=tuple(sorted(unresolved)), stable_abi=since)


def _defined_by_name(
    symbol: Symbol, needed: Sequence[str], surroundings: Surroundings, python: Python
) -> bool:
    """Tell if the name of *symbol* is one of Python's, or of a library among *needed* without a file."""
    name = symbol.name
    if symbol.version and symbol.library not in surroundings.link_only:
        return False
    if _PYTHON_SYMBOL.fullmatch(name):
        return python == "one-version" or (python == "stable-abi" and name in _stable_abi())
    return any(
        (soname in PROMISED_BY_DRIVER and _DRIVER_SYMBOL.fullmatch(name))
        or (soname in surroundings.link_only and name.lower().startswith(_stem(soname)))
        or (soname in _UNVERSIONED and _UNVERSIONED[soname].fullmatch(name))
        for soname in needed
    )


def _stem(soname: str) -> str:
    """Return the prefix of a CUDA library's function names: ``cublaslt`` for ``libcublasLt.so.13``."""
    return soname.removeprefix("lib").partition(".so")[0].lower()


@functools.cache
def _stable_abi() -> dict[str, tuple[int, int]]:
    """Return the Python version that added each name to the stable ABI (PEP 384), by abi3info."""
    from abi3info import DATAS, FUNCTIONS

    return {
        symbol.name: (one.added.major, one.added.minor)
        for table in (FUNCTIONS, DATAS)
        for symbol, one in table.items()
    }


def _closure(sonames: Iterable[str], surroundings: Surroundings) -> list[str]:
    """Return all libraries that are loaded for *sonames*, breadth first, as the loader searches them."""
    order = list(dict.fromkeys(sonames))
    for soname in order:
        if (path := surroundings.libraries.get(soname)) is not None:
            order += [name for name in dict.fromkeys(_needs(path)) if name not in order]
    return order


@functools.lru_cache(maxsize=256)
def _needs(path: Path) -> tuple[str, ...]:
    with path.open("rb") as stream:
        dynamic = open_elf(stream, path.name).get_section_by_name(".dynamic")
        return tuple(tag.needed for tag in dynamic.iter_tags("DT_NEEDED")) if dynamic is not None else ()


@functools.lru_cache(maxsize=32)
def _offered(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names and versions that the library at *path* defines; libraries in use do not change."""
    with path.open("rb") as stream:
        section = open_elf(stream, path.name).get_section_by_name(".gnu.version_d")
        versions = [next(names).name for _, names in section.iter_versions()] if section is not None else []
    return exports(path), frozenset({"", *versions})


# Tools and libraries out of the lock's packages ---------------------------------------------------

_CUOBJDUMP = "cuobjdump"


def inspector_of(native: NativePin, access: Access) -> Inspector:
    """Return an inspector with the lock's cuobjdump, which is fetched when it is first needed.

    Inspecting may raise the errors of `unpack_package`, and `ToolError` where the lock has no cuobjdump
    for this machine.
    """

    def program() -> Path:
        table = named(native.toolkit.builder, this_machine(), "toolkit for machines of kind")
        return program_in(unpack_package(access, named(table, _CUOBJDUMP, "program")), _CUOBJDUMP)

    return Inspector(access.store, program)


def find_surroundings(native: NativePin, machine: str, store: Store) -> Surroundings | None:
    """Return the libraries of *machine*'s torch and CUDA runtime, if unpacked in *store*, else `None`."""
    table = named(native.toolkit.target, machine, "libraries for machines of kind")
    found = {name: find_package(store, package) for name, package in table.items()}
    if found.get("torch") is None:
        return None
    folders = [folder for folder in found.values() if folder is not None]
    libraries = [lib for folder in folders for lib in sorted(folder.glob("**/lib")) if lib.is_dir()]
    packages = [[table[name].sha256, sorted(table[name].folders)] for name, folder in found.items() if folder]
    key = digest_of([packages, sorted(native.toolkit.link_only)])
    return Surroundings.of(libraries, native.toolkit.link_only, key=key)


def surroundings_of(native: NativePin, toolchain: Toolchain) -> Surroundings:
    """Return the libraries of the torch and the CUDA toolkit of *toolchain*."""
    folders = (toolchain.torch / "lib", toolchain.cuda / "lib64")
    there = [folder for folder in folders if folder.is_dir()]
    return Surroundings.of(there, native.toolkit.link_only, key=toolchain.key)
