"""NVIDIA's compatibility rules for device code and cards, and kernels counted by them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sparkwright.base.errors import BinaryError
from sparkwright.native.inspection.device import DeviceCode, KernelGroup

_ARCH = re.compile(r"(sm|compute)_([0-9]{1,2})([0-9])([af]?)")


class KernelClass(StrEnum):
    """The compatibility of a kernel with a card, the best first."""

    NATIVE = "native"
    """Compiled for exactly the card's compute capability."""
    FAMILY = "family"
    """Compiled for another compute capability whose cubins the card runs."""
    PTX = "ptx only"
    """The driver compiles it from PTX when it is first used."""
    NONE = "cannot run"
    """Nothing of it runs on the card."""


@dataclass(frozen=True)
class _Capability:
    """A compute capability; its suffix names the features beyond the common ones."""

    major: int
    minor: int
    suffix: str


def _parse(arch: str) -> tuple[str, _Capability]:
    found = _ARCH.fullmatch(arch)
    if found is None:
        raise BinaryError("a kernel cannot be judged", because=f"{arch!r} is no known architecture")
    kind, major, minor, suffix = found.groups()
    return kind, _Capability(int(major), int(minor), suffix)


def class_of(arch: str, target: str) -> KernelClass:
    """Return the class of device code for *arch* (``sm_120f``: cubin, ``compute_80``: PTX) on *target*.

    The rules are those of NVIDIA's CUDA C++ Programming Guide:

    - *Binary compatibility*: a cubin runs on its own compute capability and on those of the same
      major version and a later minor one, never on another major version.
    - *PTX compatibility*: PTX can be compiled for any later compute capability.
    - *Architecture-specific features* (suffix ``a``): cubin and PTX run on exactly that compute
      capability.
    - *Family-specific features* (suffix ``f``): cubin and PTX run on the same family, that is, on
      the same major version and a later minor one.

    The guide's exception for Tegra (``sm_87`` and ``sm_86`` do not run each other's cubins) needs no
    rule here: cards below 9.0 are no targets.

    Args:
        arch: architecture of the code.
        target: the card as ``TORCH_CUDA_ARCH_LIST`` writes it, such as ``12.1a``; its suffix is for
            compilers only: the card runs other code too.

    Raises:
        BinaryError: either is no architecture.
    """
    kind, code = _parse(arch)
    _, card = _parse("sm_" + target.replace(".", ""))
    same = (code.major, code.minor) == (card.major, card.minor)
    earlier = code.major == card.major and code.minor <= card.minor
    if code.suffix == "a":
        runs = same
    elif code.suffix == "f" or kind == "sm":
        runs = earlier
    else:
        runs = (code.major, code.minor) <= (card.major, card.minor)
    if not runs:
        return KernelClass.NONE
    if kind == "compute":
        return KernelClass.PTX
    return KernelClass.NATIVE if same else KernelClass.FAMILY


def best_class(arches: Iterable[str], target: str) -> KernelClass:
    """Return the best class on *target* of a kernel in images for *arches*: the driver picks that image."""
    ranks = list(KernelClass)
    return min((class_of(arch, target) for arch in arches), key=ranks.index, default=KernelClass.NONE)


@dataclass(frozen=True)
class Tally:
    """Numbers of kernels by class on one card.

    Attributes:
        native: number of kernels of class `KernelClass.NATIVE`.
        family: of class `KernelClass.FAMILY`.
        ptx: of class `KernelClass.PTX`.
        none: of class `KernelClass.NONE`.
    """

    native: int = 0
    family: int = 0
    ptx: int = 0
    none: int = 0

    @property
    def total(self) -> int:
        """All kernels."""
        return self.native + self.family + self.ptx + self.none

    @property
    def useless(self) -> bool:
        """Tell if there are kernels, and none of them can run."""
        return self.total > 0 and self.none == self.total

    def share(self, kind: KernelClass) -> float:
        """Return the share of all kernels that is of class *kind*, between 0 and 1; 0 without kernels."""
        return self.count(kind) / self.total if self.total else 0.0

    def count(self, kind: KernelClass) -> int:
        """Return the number of kernels of class *kind*."""
        counts = (self.native, self.family, self.ptx, self.none)
        return dict(zip(KernelClass, counts, strict=True))[kind]

    def __add__(self, other: Tally) -> Tally:
        """Return the sum of both."""
        return Tally(*(self.count(kind) + other.count(kind) for kind in KernelClass))


def classify(code: DeviceCode, target: str) -> Tally:
    """Return the kernels of *code*, counted by class on *target*."""
    counts = dict.fromkeys(KernelClass, 0)
    for group in code.kernels:
        counts[best_class(group.arches, target)] += group.count
    return Tally(*(counts[kind] for kind in KernelClass))


def of_class(code: DeviceCode, target: str, kind: KernelClass) -> tuple[KernelGroup, ...]:
    """Return the groups of *code*'s kernels that are of class *kind* on *target*."""
    return tuple(group for group in code.kernels if best_class(group.arches, target) is kind)
