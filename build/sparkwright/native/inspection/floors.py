"""How old a system may be on which a binary still loads: symbol versions against manylinux tags.

The tables are auditwheel's, which keeps for each manylinux policy (PEP 600) what symbol versions the
C library, libstdc++ and libgcc of that age have.
"""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any

from sparkwright.base.errors import BinaryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TAG = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
_LOADER = re.compile(r"ld-linux[-.\w]*\.so\.\d+")
Versions = "Mapping[str, tuple[str, ...]]"


@functools.cache
def _policies() -> dict[tuple[int, int], dict[str, Any]]:
    """The manylinux policies of auditwheel by C library version."""
    from importlib.resources import files

    text = files("auditwheel.policy").joinpath("manylinux-policy.json").read_text(encoding="utf-8")
    found = {}
    for policy in json.loads(text):
        if name := re.fullmatch(r"manylinux_(\d+)_(\d+)", policy["name"]):
            found[int(name[1]), int(name[2])] = policy
    return dict(sorted(found.items()))


def _parse(platform: str) -> tuple[tuple[int, int], str]:
    tags = [tag for part in platform.split(".") if (tag := _TAG.fullmatch(part))]
    if not tags:
        raise BinaryError(
            f"the platform tag {platform} cannot be judged",
            because="it names no version of the C library, as manylinux_2_28_aarch64 does",
        )
    oldest = min(tags, key=lambda tag: (int(tag[1]), int(tag[2])))
    return (int(oldest[1]), int(oldest[2])), oldest[3]


def system_libraries(soname: str) -> bool:
    """Whether every manylinux system has the library *soname*: by its policies, or as the loader itself."""
    newest = list(_policies().values())[-1]
    return soname in newest["lib_whitelist"] or bool(_LOADER.fullmatch(soname))


def _beyond(level: tuple[int, int], machine: str, versions: Mapping[str, tuple[str, ...]]) -> list[str]:
    """What of *versions* systems of that *level* may not have."""
    allowed: Mapping[str, list[str]] = _policies()[level]["symbol_versions"].get(machine, {})
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
    """What a binary asks of the system beyond what the tag *platform* promises.

    Args:
        platform: a wheel's platform tag, such as ``manylinux_2_28_aarch64``.
        versions: symbol versions by soname, as in `ElfFacts`.

    Raises:
        BinaryError: the tag names no manylinux policy.
    """
    level, machine = _parse(platform)
    if level not in _policies():
        level = max((one for one in _policies() if one <= level), default=min(_policies()))
    return _beyond(level, machine, versions)


def honest_platform(platform: str, binaries: Iterable[Mapping[str, tuple[str, ...]]]) -> str:
    """*platform*, raised as far as *binaries* need it.

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
    for newer in _policies():
        if newer > level and not _beyond(newer, machine, merged):
            return f"manylinux_{newer[0]}_{newer[1]}_{machine}"
    beyond = _beyond(list(_policies())[-1], machine, merged)
    raise BinaryError(
        "the binaries fit no platform tag", because=f"no manylinux policy has {', '.join(beyond[:5])}"
    )
