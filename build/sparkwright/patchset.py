"""Patchsets and points: which carries, in which order, on which pin.

A point's digest names everything that is made from it. It covers what decides the result
(the pin's digests, each carry's content, the order) and no prose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from sparkwright.canonical import digest_of
from sparkwright.carry import Carry, load_carries
from sparkwright.carry.folder import unknown_name
from sparkwright.carry.model import Name
from sparkwright.config import Model, load_toml
from sparkwright.errors import ConfigError, DependencyOrderError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkwright.lock import Lock

__all__ = ["PATCHSET_FORMAT", "Patchset", "Point", "check_order", "load_patchset", "make_point"]

PATCHSET_FORMAT = 1


class Patchset(Model, frozen=True):
    """A ``patchsets/*.toml``.

    Attributes:
        format: version of the file's format.
        name: its name; it becomes part of the wheel's version.
        summary: what it is for, in one sentence.
        carries: names of carries, in the order in which they are merged.
    """

    format: int
    name: Name
    summary: Annotated[str, Meta(min_length=1)]
    carries: tuple[Name, ...]


@dataclass(frozen=True)
class Point:
    """A pin and a patchset, resolved.

    Attributes:
        lock: the pin.
        patchset: the patchset's name.
        carries: its carries, in order.
    """

    lock: Lock
    patchset: str
    carries: tuple[Carry, ...]

    def describe(self) -> dict[str, Any]:
        """What the digest covers, JSON-ready."""
        release = self.lock.release
        return {
            "format": 1,
            "pin": {
                "version": release.version,
                "commit": release.commit,
                "sdist": self.lock.sdist.sha256,
                "wheels": {platform: wheel.sha256 for platform, wheel in self.lock.wheels.items()},
            },
            "patchset": self.patchset,
            "carries": [
                {"name": carry.name, "content": carry.content_id(release.version)} for carry in self.carries
            ],
        }

    @property
    def digest(self) -> str:
        """The point's name, 64 hex digits."""
        return digest_of(self.describe())


def load_patchset(folder: Path, name: str) -> Patchset:
    """The patchset called *name* in *folder*.

    Raises:
        UnknownNameError: there is none.
        ConfigError: it is malformed, or names a carry twice.
    """
    path = folder / f"{name}.toml"
    known = sorted(found.stem for found in folder.glob("*.toml"))
    if name not in known:
        raise unknown_name("patchset", name, known)
    patchset = load_toml(path, Patchset, newest_format=PATCHSET_FORMAT)
    if patchset.name != name:
        raise ConfigError(f"{path} does not fit together", because=f"it is called {patchset.name!r} inside")
    if len(set(patchset.carries)) != len(patchset.carries):
        raise ConfigError(f"{path} does not fit together", because="it names a carry twice")
    return patchset


def make_point(root: Path, lock: Lock, patchset: str) -> Point:
    """The point of *lock* and the patchset called *patchset*, from the checkout at *root*.

    Raises:
        UnknownNameError: the patchset, or one of its carries, does not exist.
        DependencyOrderError: the carries' requirements do not hold.
    """
    chosen = load_patchset(root / "patchsets", patchset)
    known = load_carries(root / "carries")
    for name in chosen.carries:
        if name not in known:
            raise unknown_name("carry", name, sorted(known))
    carries = tuple(known[name] for name in chosen.carries)
    check_order(carries, known)
    return Point(lock, chosen.name, carries)


def check_order(carries: Sequence[Carry], known: dict[str, Carry]) -> None:
    """Check that every carry comes after what it requires.

    Raises:
        DependencyOrderError: requirements form a cycle, are not in the patchset, or come later.
        UnknownNameError: a required carry does not exist.
    """
    _refuse_cycles(carries, known)
    seen: set[str] = set()
    names = {carry.name for carry in carries}
    for carry in carries:
        for required in carry.spec.requires:
            if required not in names:
                raise DependencyOrderError(
                    f"carry {carry.name} cannot be used alone",
                    because=f"it requires {required}",
                    next_step=f"add {required!r} to the patchset, before {carry.name!r}",
                )
            if required not in seen:
                raise DependencyOrderError(
                    f"carry {carry.name} comes too early",
                    because=f"{required}, which it requires, is listed later",
                    next_step=f"move {required!r} before {carry.name!r} in the patchset",
                )
        seen.add(carry.name)


def _refuse_cycles(carries: Sequence[Carry], known: dict[str, Carry]) -> None:
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            cycle = " → ".join((*path[path.index(name) :], name))
            raise DependencyOrderError(
                "carries require each other in a circle",
                because=cycle,
                next_step="take one of these requirements out of its carry.toml",
            )
        if name in finished:
            return
        if name not in known:
            raise unknown_name("carry", name, sorted(known))
        for required in known[name].spec.requires:
            visit(required, (*path, name))
        finished.add(name)

    for carry in carries:
        visit(carry.name, ())
