"""The demands of a shared object: its dynamic section and symbols, and the manylinux tag that has them.

System V ABI, LSB symbol versions. The tables of tags are auditwheel's, which keeps for each manylinux policy
(PEP 600) what symbol versions the C library, libstdc++ and libgcc of that age have.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.base.config import Model
from sparkwright.base.errors import BinaryError

if TYPE_CHECKING:
    from auditwheel.policy import Policy

_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_BITS = 64
# Elf64_Sym: name, type and binding, visibility, section, value, size.
_SYMBOL = struct.Struct("<LBBHQQ")
_UNDEFINED, _LOCAL = 0, 0
_DEVICE_SECTIONS = frozenset({".nv_fatbin", "__nv_relfatbin", ".nvFatBinSegment"})
# Exceptions of pyelftools, besides its own, on damaged tables.
_DAMAGE = (ValueError, KeyError, IndexError, TypeError, AttributeError, OSError, OverflowError)


class Symbol(Model, frozen=True):
    """A dynamic symbol that a binary expects others to define.

    Attributes:
        version: the required version, such as ``GLIBC_2.17``; empty where any is enough.
        library: soname that has to have that version; empty without one.
        weak: whether the loader leaves it at zero when no library defines it.
    """

    name: str
    version: str = ""
    library: str = ""
    weak: bool = False


class ElfFacts(Model, frozen=True):
    """The inputs of the dynamic loader in a binary.

    Attributes:
        machine: ``aarch64``, ``x86_64``, or the ELF standard's name of another one.
        needed: sonames of the libraries that it needs, in its order (``DT_NEEDED``).
        run_paths: folders of ``DT_RUNPATH`` and ``DT_RPATH``.
        undefined: dynamic symbols that others have to define.
        versions: versions by soname that the loader checks before it resolves any symbol.
    """

    machine: str
    needed: tuple[str, ...]
    run_paths: tuple[str, ...]
    undefined: tuple[Symbol, ...]
    versions: dict[str, tuple[str, ...]]
    device_code: bool


def open_elf(stream: Any, name: str) -> Any:
    """Return a pyelftools ``ELFFile`` over the binary *stream*."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        return ELFFile(stream)
    except (ELFError, *_DAMAGE) as error:
        raise BinaryError(f"{name} cannot be inspected", because=f"it is no ELF file: {error}") from error


def read_elf(path: Path) -> ElfFacts:
    """Return the facts of the shared object or program at *path*."""
    from elftools.common.exceptions import ELFError

    with path.open("rb") as stream:
        elf = open_elf(stream, path.name)
        try:
            return _facts(elf, path.name)
        except (ELFError, *_DAMAGE) as error:
            raise BinaryError(
                f"{path.name} cannot be inspected", because=f"it is damaged: {error}"
            ) from error


def _facts(elf: Any, name: str) -> ElfFacts:
    dynamic = elf.get_section_by_name(".dynamic")
    if dynamic is None:
        raise BinaryError(f"{name} cannot be inspected", because="it has no dynamic section")
    tags = [(tag.entry.d_tag, tag) for tag in dynamic.iter_tags()]
    sections = {section.name for section in elf.iter_sections()}
    machine = elf["e_machine"]
    return ElfFacts(
        machine=_MACHINES.get(machine, str(machine)),
        needed=tuple(tag.needed for kind, tag in tags if kind == "DT_NEEDED"),
        run_paths=tuple(
            folder
            for kind, tag in tags
            if kind in {"DT_RUNPATH", "DT_RPATH"}
            for folder in (tag.runpath if kind == "DT_RUNPATH" else tag.rpath).split(":")
        ),
        undefined=tuple(_undefined(elf)),
        versions=_versions(elf),
        device_code=bool(sections & _DEVICE_SECTIONS),
    )


def _versions(elf: Any) -> dict[str, tuple[str, ...]]:
    section = elf.get_section_by_name(".gnu.version_r")
    if section is None:
        return {}
    return {need.name: tuple(sorted(one.name for one in ones)) for need, ones in section.iter_versions()}


def _undefined(elf: Any) -> Iterator[Symbol]:
    table, index = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
    needs = elf.get_section_by_name(".gnu.version_r")
    if table is None:
        return
    by_index: dict[int, tuple[str, str]] = {}
    for need, ones in needs.iter_versions() if needs is not None else ():
        by_index |= {one["vna_other"]: (one.name, need.name) for one in ones}
    for number, symbol in enumerate(table.iter_symbols()):
        if symbol["st_shndx"] != "SHN_UNDEF" or not symbol.name:
            continue
        # pyelftools gives the two reserved indices by name; they mean that any version is enough.
        required = index.get_symbol(number)["ndx"] if index is not None else 0
        version, library = by_index.get(required if isinstance(required, int) else 0, ("", ""))
        weak = symbol["st_info"]["bind"] == "STB_WEAK"
        yield Symbol(name=symbol.name, version=version, library=library, weak=weak)


def exports(path: Path) -> frozenset[str]:
    """Return the names of the dynamic symbols that the binary at *path* defines for others.

    Parsed without a pyelftools object for each: torch's libraries have hundreds of thousands.
    """
    with path.open("rb") as stream:
        elf = open_elf(stream, path.name)
        if elf.elfclass != _BITS or not elf.little_endian:
            raise BinaryError(f"{path.name} cannot be inspected", because="it is for no supported machine")
        table = elf.get_section_by_name(".dynsym")
        if table is None:
            return frozenset()
        entries, names = table.data(), elf.get_section(table["sh_link"]).data()
    return frozenset(
        names[name : names.index(b"\0", name)].decode(errors="backslashreplace")
        for name, info, _, section, _, _ in _SYMBOL.iter_unpack(entries)
        if name and section != _UNDEFINED and info >> 4 != _LOCAL
    )


# Manylinux tags -----------------------------------------------------------------------------------

_TAG = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
_ANY_MACHINE = "x86_64"  # the policies list the same libraries for every machine
_LOADER = re.compile(r"ld-linux[-.\w]*\.so\.\d+")


@functools.cache
def _policies(machine: str) -> dict[tuple[int, int], Policy]:
    """Return auditwheel's manylinux policies for *machine* by C library version, oldest first."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    try:
        policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
    except ValueError as error:
        raise BinaryError(f"binaries for {machine} cannot be judged", because=str(error)) from error
    tagged = ((_TAG.fullmatch(policy.name), policy) for policy in policies)
    return dict(sorted((_level(tag), policy) for tag, policy in tagged if tag))


def _level(tag: re.Match[str]) -> tuple[int, int]:
    return int(tag[1]), int(tag[2])


def _parse(platform: str) -> tuple[tuple[int, int], str]:
    tags = [tag for part in platform.split(".") if (tag := _TAG.fullmatch(part))]
    if not tags:
        raise BinaryError(
            f"the platform tag {platform} cannot be judged",
            because="it names no version of the C library, as manylinux_2_28_aarch64 does",
        )
    oldest = min(tags, key=_level)
    return _level(oldest), oldest[3]


def system_libraries(soname: str) -> bool:
    """Tell if every manylinux system has the library *soname*: by the policies, or as the loader itself."""
    newest = max(_policies(_ANY_MACHINE).items())[1]
    return soname in newest.whitelist or bool(_LOADER.fullmatch(soname))


def _beyond(level: tuple[int, int], machine: str, versions: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return those of *versions* that systems with the C library *level* may not have."""
    older = [policy for known, policy in _policies(machine).items() if known <= level]
    allowed = older[-1].symbol_versions if older else {}
    found = []
    for soname, names in versions.items():
        if not system_libraries(soname):
            continue
        for name in names:
            prefix, _, number = name.partition("_")
            if number not in allowed.get(prefix, ()):
                found.append(name)
    return sorted(found)


def over_platform(platform: str, versions: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the symbol versions that a binary needs beyond those of the tag *platform*.

    *platform* is a wheel's tag, such as ``manylinux_2_28_aarch64``; *versions* are by soname.
    """
    level, machine = _parse(platform)
    return _beyond(level, machine, versions)


def honest_platform(platform: str, binaries: Iterable[Mapping[str, tuple[str, ...]]]) -> str:
    """Return *platform*, raised as far as *binaries* need it.

    *binaries* are symbol versions by soname of each binary, as in `ElfFacts`.
    """
    level, machine = _parse(platform)
    needed: dict[str, set[str]] = {}
    for versions in binaries:
        for soname, names in versions.items():
            needed.setdefault(soname, set()).update(names)
    merged = {soname: tuple(names) for soname, names in needed.items()}
    if not over_platform(platform, merged):
        return platform
    for newer in _policies(machine):
        if newer > level and not _beyond(newer, machine, merged):
            return f"manylinux_{newer[0]}_{newer[1]}_{machine}"
    beyond = _beyond(max(_policies(machine)), machine, merged)
    raise BinaryError(
        "the binaries fit no platform tag", because=f"no manylinux policy has {', '.join(beyond[:5])}"
    )
