"""Who defines what a binary leaves open: would the dynamic loader find every symbol?

The search follows the loader: the binary's own ``DT_NEEDED`` and all that these need in turn, and the
Python that loads it. What another extension happens to have loaded before is not counted on.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sparkwright.base.config import Model
from sparkwright.native.inspection.elf import exports, open_elf
from sparkwright.native.inspection.floors import system_libraries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from sparkwright.native.inspection.elf import ElfFacts, Symbol

Python = Literal["stable-abi", "one-version", "none"]
"""How Python loads a binary: any Python from some version on, just one, or not at all."""

PROMISED_BY_DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1"})
"""Libraries that come with the GPU's driver: no wheel has them."""

_DRIVER_SYMBOL = re.compile(r"cu[A-Z]\w+|nvml[A-Z]\w+")
_PYTHON_SYMBOL = re.compile(r"_?Py\w+")
# System libraries by names of theirs that binaries ask for without a version, which the linker allows
# where a library was not there at linking: the Itanium C++ ABI's runtime and its names in namespace std
# (St, or an abbreviation of it, behind what kind of name it is), and the loader's functions.
_UNVERSIONED = (
    (
        "libstdc++.so.6",
        re.compile(
            r"_Z(T[VTISCv]|GV|GR)?N?[VK]*(St|S[absiod]).*|_Z[nd][wla]\w+|_Z(T[VIS])?N[VK]*10__cxxabiv1\w+"
            r"|__cxa_\w+|__gxx_personality_v0|__dynamic_cast"
        ),
    ),
    ("libgcc_s.so.1", re.compile(r"_Unwind_\w+")),
    ("libc.so.6", re.compile(r"dl(open|sym|close|error|addr)")),
)


@dataclass(frozen=True)
class Surroundings:
    """What is loaded beside the wheel's binaries where the wheel is installed.

    Attributes:
        libraries: the files by soname that torch and its dependencies bring, as far as they are here.
        link_only: sonames that torch's dependencies bring as well, and of which no file is here.
        key: digest of all that by content; empty where nobody knows one.
    """

    libraries: Mapping[str, Path]
    link_only: frozenset[str] = field(default_factory=frozenset)
    key: str = ""

    @classmethod
    def of(cls, folders: Iterable[Path], link_only: Iterable[str] = (), *, key: str = "") -> Surroundings:
        """The libraries in *folders*; of two with one name, the first folder's counts."""
        found: dict[str, Path] = {}
        for folder in folders:
            for path in sorted(folder.glob("*.so*")):
                found.setdefault(path.name, path)
        return cls(found, frozenset(link_only) - set(found), key)

    def provides(self, soname: str) -> bool:
        """Whether the library *soname* will be there."""
        return (
            soname in self.libraries
            or soname in self.link_only
            or soname in PROMISED_BY_DRIVER
            or system_libraries(soname)
        )


class Resolution(Model, frozen=True):
    """Who defines a binary's undefined symbols.

    Attributes:
        by: how many symbols each definer has, by soname; how it is known is `resolve`'s.
        unresolved: symbols that nobody defines, with the reason where it is not just that.
        stable_abi: the Python from which on all that is used is in the stable ABI, as ``(3, 11)``;
            `None` for binaries of no stable ABI.
    """

    by: dict[str, int]
    unresolved: tuple[str, ...]
    stable_abi: tuple[int, int] | None = None


def unprovided(elf: ElfFacts, surroundings: Surroundings) -> tuple[str, ...]:
    """The libraries that *elf* needs and nobody brings."""
    return tuple(soname for soname in elf.needed if not surroundings.provides(soname))


def resolve(elf: ElfFacts, surroundings: Surroundings, *, python: Python) -> Resolution:
    """Look for a definition of each undefined symbol of *elf*.

    How it is known that a library defines a symbol:

    - libraries of which *surroundings* has the file: by their symbol table;
    - the system's C and C++ libraries: by the symbol's version, which `over_platform` holds against
      the wheel's tag, and not by name; by a few names where no version is asked for;
    - Python: by the list of its stable ABI (PEP 384), or by prefix for a binary of one Python;
    - the driver and libraries without a file: by the name's prefix, when the binary needs them.

    A weak symbol may stay undefined.

    Args:
        elf: the binary.
        surroundings: what is loaded with it.
        python: how Python loads it.
    """
    needed = _closure(elf.needed, surroundings)
    by: Counter[str] = Counter()
    waiting: list[Symbol] = []
    for symbol in elf.undefined:
        if symbol.library and system_libraries(symbol.library):
            by[symbol.library] += 1
        else:
            waiting.append(symbol)
    for soname in needed:
        if (path := surroundings.libraries.get(soname)) is not None:
            found = _defined_in(path, [one for one in waiting if one.library in {"", soname}])
            by[soname] += len(found)
            waiting = [one for one in waiting if one not in found]
    unresolved: list[str] = []
    for symbol in waiting:
        if who := _by_name(symbol, needed, surroundings, python):
            by[who] += 1
        elif symbol.weak:
            by["nobody, being weak"] += 1
        else:
            unresolved.append(symbol.name + (f"@{symbol.version}" if symbol.version else ""))
    return Resolution(
        by={name: count for name, count in sorted(by.items()) if count},
        unresolved=tuple(sorted(unresolved)),
        stable_abi=_stable_since(elf) if python == "stable-abi" else None,
    )


def _by_name(symbol: Symbol, needed: Sequence[str], surroundings: Surroundings, python: Python) -> str:
    """Who defines *symbol* as far as its name tells; empty where nobody does."""
    name = symbol.name
    if symbol.version and symbol.library not in surroundings.link_only:
        return ""
    if _PYTHON_SYMBOL.fullmatch(name):
        loads = python == "one-version" or (python == "stable-abi" and name in _stable_abi())
        return "python" if loads else ""
    for soname in needed:
        if soname in PROMISED_BY_DRIVER and _DRIVER_SYMBOL.fullmatch(name):
            return soname
        if soname in surroundings.link_only and name.lower().startswith(_stem(soname)):
            return soname
    system = (soname for soname, names in _UNVERSIONED if soname in needed and names.fullmatch(name))
    return next(system, "")


def _stem(soname: str) -> str:
    """How the names of a CUDA library's functions begin: ``cublaslt`` for ``libcublasLt.so.13``."""
    return soname.removeprefix("lib").partition(".so")[0].lower()


def _stable_since(elf: ElfFacts) -> tuple[int, int]:
    used = [_stable_abi()[one.name] for one in elf.undefined if one.name in _stable_abi()]
    return max(used, default=(3, 2))


@functools.cache
def _stable_abi() -> dict[str, tuple[int, int]]:
    """Name to the Python version with which it came into the stable ABI (PEP 384), by abi3info."""
    from abi3info import DATAS, FUNCTIONS

    return {
        symbol.name: (one.added.major, one.added.minor)
        for table in (FUNCTIONS, DATAS)
        for symbol, one in table.items()
    }


def _closure(sonames: Iterable[str], surroundings: Surroundings) -> list[str]:
    """All that is loaded for *sonames*, breadth first, as the loader searches it."""
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


def _defined_in(path: Path, wanted: Sequence[Symbol]) -> set[Symbol]:
    """Those of *wanted* that the library at *path* defines, in the version that is asked for."""
    if not wanted:
        return set()
    names, versions = _offered(path)
    return {one for one in wanted if one.name in names and one.version in versions}


@functools.lru_cache(maxsize=32)
def _offered(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The names that the library at *path* defines, and the versions; libraries in use do not change."""
    with path.open("rb") as stream:
        section = open_elf(stream, path.name).get_section_by_name(".gnu.version_d")
        versions = [next(names).name for _, names in section.iter_versions()] if section is not None else []
    return exports(path), frozenset({"", *versions})
