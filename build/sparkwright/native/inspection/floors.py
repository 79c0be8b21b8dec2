"""The oldest manylinux tag of a binary, by its symbol versions.

The tables are auditwheel's, which keeps for each manylinux policy (PEP 600) what symbol versions the
C library, libstdc++ and libgcc of that age have.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sparkwright.base.errors import BinaryError

if TYPE_CHECKING:
    from auditwheel.policy import Policy

_TAG = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
_ANY_MACHINE = "x86_64"  # the policies list the same libraries for every machine
_LOADER = re.compile(r"ld-linux[-.\w]*\.so\.\d+")


@functools.cache
def _policies(machine: str) -> dict[tuple[int, int], Policy]:
    """Return auditwheel's manylinux policies for *machine* by C library version, oldest first.

    Raises:
        BinaryError: auditwheel has none for it.
    """
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

    Args:
        platform: a wheel's platform tag, such as ``manylinux_2_28_aarch64``.
        versions: symbol versions by soname, as in `ElfFacts`.

    Raises:
        BinaryError: the tag names no manylinux policy.
    """
    level, machine = _parse(platform)
    return _beyond(level, machine, versions)


def honest_platform(platform: str, binaries: Iterable[Mapping[str, tuple[str, ...]]]) -> str:
    """Return *platform*, raised as far as *binaries* need it.

    Args:
        platform: the tag to begin with, such as ``manylinux_2_28_aarch64``.
        binaries: symbol versions by soname of each binary, as in `ElfFacts`.

    Raises:
        BinaryError: the tag names no manylinux policy, or no policy has all that the binaries need.
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
