"""The ends of a bisection, resolved, and the record in a wheel that names one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from sparkwright.carries import Carry
from sparkwright.carries.folder import unknown_name
from sparkwright.carries.model import Name
from sparkwright.lock import Lock


@dataclass(frozen=True)
class UpstreamPoint:
    """A point of upstream's line.

    Attributes:
        version: the release, or the one that decides for a commit which revision of a carry is taken.
        commit: the full id of a commit; empty for the release itself.
        tree: the id of the commit's tree, where it is known already.
    """

    version: str
    commit: str = ""
    tree: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        """Return its short name."""
        return self.commit[:12] or self.version


@dataclass(frozen=True)
class ResolvedSpec:
    """An end of a bisection.

    Attributes:
        text: the SPEC, as it was given.
        patchset: the patchset's name.
        point: upstream's tree.
        carries: the carries on it, in order.
        lock: the pin with all of its digests; `None` if only the tree is known so far.
        arch: architecture of native kernels; `None` where upstream's are taken.
        requirements: the values of Requires-Dist, sorted; `None` where there is no wheel to read them from.
        merged: id of the merged tree that a wheel states; empty for other specs.
        platform: the machine that a wheel is for; empty for other specs.
    """

    text: str
    patchset: str
    point: UpstreamPoint
    carries: tuple[Carry, ...]
    lock: Lock | None = None
    arch: str | None = None
    requirements: tuple[str, ...] | None = None
    merged: str = ""
    platform: str = ""


# Names are joined to paths and looked up in the history: a stranger's wheel may name any.
class _Content(msgspec.Struct, frozen=True):
    name: Name
    content: str


class _SpecKernels(msgspec.Struct, frozen=True):
    arch: str


class _Described(msgspec.Struct, frozen=True):
    pin: dict[str, Any]
    patchset: Name
    carries: tuple[_Content, ...]
    kernels: _SpecKernels | None = None


class _Merged(msgspec.Struct, frozen=True):
    merged: str


class RecordedSpec(msgspec.Struct, frozen=True):
    """The build spec as ``point.json`` of a wheel records it."""

    digest: str
    platform: str
    point: _Described
    merge: _Merged


def restricted(spec: ResolvedSpec, names: tuple[str, ...]) -> ResolvedSpec:
    """Return *spec* with no other carries than *names* and those that they require.

    Raises:
        UnknownNameError: neither it nor its patchset has a carry of that name.
    """
    from sparkwright.carries.patchset import closure

    known = [carry.name for carry in spec.carries]
    for name in names:
        if name not in known:
            raise unknown_name(f"carry in {spec.text}", name, known)
    return replace(spec, carries=closure(names, spec.carries))
