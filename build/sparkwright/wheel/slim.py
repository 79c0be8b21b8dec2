"""Choose upstream's binaries that a wheel leaves out: useless on the card, and reviewed in the lock.

A binary without a kernel for the card may still be imported. When the pin moves, a maintainer reviews the
Python that names it and lists it under the lock's ``[native.drop]``, with the reviewed files. A binary that
is not listed, or that another file names meanwhile, stays in the wheel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparkwright.lock.native import DroppedBinary
from sparkwright.native.device_code import Tally
from sparkwright.wheel.classify import of_kind
from sparkwright.wheel.kernels import LeftOut
from sparkwright.wheel.source import StockWheel


@dataclass(frozen=True)
class SlimPlan:
    """The binaries that are left out, and the reasons that other useless ones stay.

    Attributes:
        left_out: binaries to leave out, sorted.
        kept: the reason that each other binary without kernels for the card stays, by member.
    """

    left_out: tuple[LeftOut, ...]
    kept: Mapping[str, str]


def plan_slim(
    python: Mapping[str, bytes],
    binaries: Mapping[str, Tally],
    listed: Mapping[str, DroppedBinary],
    arch: str,
) -> SlimPlan:
    """Choose the binaries to leave out.

    A binary without device code always stays: its use does not depend on the card.

    Args:
        python: every Python file that the wheel will have, by member; see `python_members`.
        binaries: the kernels of every binary that the wheel may have, counted for the card, by member.
        listed: the lock's ``[native.drop]``.
        arch: the card.
    """
    left_out: list[LeftOut] = []
    kept: dict[str, str] = {}
    for member in sorted(member for member, tally in binaries.items() if tally.useless):
        if because := needed_because(member, python, listed):
            kept[member] = because
        else:
            because = f"none of its {binaries[member].total} kernels runs on {arch}"
            left_out.append(LeftOut(member=member, because=because, evidence=(listed[member].why,)))
    return SlimPlan(tuple(left_out), kept)


def needed_because(member: str, python: Mapping[str, bytes], listed: Mapping[str, DroppedBinary]) -> str:
    """Return the reason that the wheel may need the binary *member*; empty if the lock's review excludes it.

    Args:
        member: the binary.
        python: every Python file of the wheel by member.
        listed: the lock's ``[native.drop]``.
    """
    if member not in listed:
        return "the lock's [native.drop] does not list it"
    stem = member.rpartition("/")[2].partition(".")[0]
    name = re.compile(rf"(?<!\w){re.escape(stem)}(?!\w)".encode())
    naming = {path for path, content in python.items() if name.search(content)}
    if unread := sorted(naming - set(listed[member].named_by)):
        return f"{unread[0]} names it, which the lock's [native.drop] does not list as read"
    return ""


def python_members(upstream: StockWheel, changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return every Python file of a wheel made from *upstream*'s and the merge's *changes*, by member."""
    names = (name for name in upstream.archive.members if name.endswith(".py"))
    found: dict[str, bytes | None] = {name: upstream.archive.read(name) for name in names}
    found |= {path: changes[path] for path in of_kind(changes, "shipped") if path.endswith(".py")}
    return {name: content for name, content in found.items() if content is not None}
