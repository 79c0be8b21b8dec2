"""Which binaries a wheel can do without: no kernel of theirs runs on the card, and Python copes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.wheel.absence import called_namespaces, module_of, prove_absence
from sparkwright.wheel.classify import of_kind
from sparkwright.wheel.kernels import LeftOut

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparkwright.native.inspection import Tally
    from sparkwright.wheel.source import Source

__all__ = ["SlimPlan", "plan_slim", "python_members"]


@dataclass(frozen=True)
class SlimPlan:
    """What may go, and why other useless binaries stay.

    Attributes:
        left_out: binaries to leave out, sorted.
        kept: why the others stay that hold nothing for the card, by member.
    """

    left_out: tuple[LeftOut, ...]
    kept: Mapping[str, str]


def plan_slim(
    python: Mapping[str, bytes],
    binaries: Mapping[str, Tally],
    namespaces: Callable[[str, frozenset[str]], frozenset[str]],
    arch: str,
) -> SlimPlan:
    """Choose the binaries that may be left out.

    A binary without device code always stays: that it holds nothing for the card says nothing.

    Args:
        python: every Python file that the wheel will have, by member; see `python_members`.
        binaries: the kernels of every binary that the wheel may have, counted for the card, by member.
        namespaces: tells which of some op namespaces a binary may register; see `namespaces_in`. It is
            asked for candidates only.
        arch: the card.
    """
    left_out: list[LeftOut] = []
    kept: dict[str, str] = {}
    useless = sorted(member for member, tally in binaries.items() if tally.useless)
    # The others stay for sure; which of the useless ones do is not known yet, and not counted on.
    present = {module_of(member) for member in set(binaries) - set(useless)}
    called = called_namespaces(python) if useless else frozenset()
    for member in useless:
        absence = prove_absence(
            module_of(member), python, namespaces=namespaces(member, called), present=present
        )
        if absence.proved:
            because = f"none of its {binaries[member].total} kernels runs on {arch}"
            left_out.append(LeftOut(member=member, because=because, evidence=absence.evidence))
        else:
            kept[member] = absence.because
    return SlimPlan(tuple(left_out), kept)


def python_members(upstream: Source, changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Every Python file of a wheel made from *upstream*'s and the merge's *changes*, by member."""
    names = (name for name in upstream.archive.members if name.endswith(".py"))
    found: dict[str, bytes | None] = {name: upstream.archive.read(name) for name in names}
    found |= {path: changes[path] for path in of_kind(changes, "shipped") if path.endswith(".py")}
    return {name: content for name, content in found.items() if content is not None}
