"""The device code of a binary, and NVIDIA's rules for which card runs it.

NVIDIA's ``cuobjdump`` reads the fat binaries inside; the format itself is not documented. Its
``--list-elf`` and ``--list-ptx`` call a cubin for the family ``sm_120f`` plain ``sm_120``, so the
architecture is taken from the dump of each image, which distinguishes them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sparkwright.base.config import Model
from sparkwright.base.errors import BinaryError, ProcessError
from sparkwright.base.process.run import stream
from sparkwright.native.elf import read_elf

# Three patterns that begin with plain text, instead of one that begins with a choice, search the
# hundreds of MB of a dump several times as fast.
_IMAGE = re.compile(rb"Fatbin (elf|ptx) code:\n=+\narch = (\S+)\n")
# "STT_FUNC STB_GLOBAL STO_ENTRY name" up to CUDA 13.2, "FUNC GLOBAL DEFAULT ENTRY name" in 13.5.
_CUBIN_KERNEL = re.compile(rb"FUNC +\w+ +(?:\w+ +)?(?:STO_)?ENTRY +(\S+)\n")
_PTX_KERNEL = re.compile(rb"\.entry ([^\s(]+)")
_EXAMPLES = 3


class KernelGroup(Model, frozen=True):
    """Kernels that the same images hold.

    Attributes:
        arches: architectures of these images, sorted: ``sm_121a`` for cubins, ``compute_89`` for PTX.
        examples: the first names of them, mangled.
    """

    arches: tuple[str, ...]
    count: int
    examples: tuple[str, ...]


class DeviceCode(Model, frozen=True):
    """All device code of a binary.

    Attributes:
        cubins: number of cubins by architecture, such as ``sm_121a``.
        ptx: number of PTX modules by architecture, such as ``compute_89``.
        kernels: its kernels (entry functions, by name), grouped by their images.
    """

    cubins: dict[str, int]
    ptx: dict[str, int]
    kernels: tuple[KernelGroup, ...]


def read_device_code(path: Path, cuobjdump: Path) -> DeviceCode:
    """Return the device code of the binary at *path*, read by the program *cuobjdump*.

    Measured: 190 MB with 1,640 kernels in 1.7 s, 103 MB with 20,159 in 2.5 s.
    """
    if not read_elf(path).device_code:
        return DeviceCode(cubins={}, ptx={}, kernels=())
    try:
        # Both in one call: either alone unpacks all of the file.
        found = parse_dump(stream([cuobjdump, "--dump-elf-symbols", "--dump-ptx", path]))
    except ProcessError as error:
        raise BinaryError(f"the device code of {path.name} cannot be read", because=error.because) from error
    if because := _misread(found):
        raise BinaryError(
            f"the device code of {path.name} cannot be read",
            because=because,
            next_step="check if this version of cuobjdump writes its dumps in another format",
        )
    return found


def _misread(code: DeviceCode) -> str:
    """Return the reason that *code* cannot be all of a binary's device code, or the empty string."""
    if not code.cubins and not code.ptx:
        return "it has a section for device code, and the dump lists none"
    arches = {arch for group in code.kernels for arch in group.arches}
    for what, images in (("cubins", code.cubins), ("PTX modules", code.ptx)):
        if images and not arches & set(images):
            return f"the dump lists {sum(images.values())} {what} and no kernel in any"
    return ""


def parse_dump(pieces: Iterable[bytes]) -> DeviceCode:
    """Return the device code in a dump by ``cuobjdump -symbols -ptx``, in pieces cut anywhere."""
    cubins: Counter[str] = Counter()
    ptx: Counter[str] = Counter()
    holders: defaultdict[str, set[str]] = defaultdict(set)
    arch = ""
    for block in _blocks(pieces):
        images = [(at.start(), at) for at in _IMAGE.finditer(block)]
        entries = [(at.start(), at) for one in (_CUBIN_KERNEL, _PTX_KERNEL) for at in one.finditer(block)]
        for _, found in sorted(images + entries, key=lambda pair: pair[0]):
            if found.re is not _IMAGE:
                holders[found[1].decode()].add(arch)
            elif found[1] == b"elf":
                arch = found[2].decode()
                cubins[arch] += 1
            else:
                arch = "compute_" + found[2].decode().removeprefix("sm_")
                ptx[arch] += 1
    return DeviceCode(
        cubins=dict(sorted(cubins.items())), ptx=dict(sorted(ptx.items())), kernels=_grouped(holders)
    )


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield *pieces* cut behind empty lines instead, so that no heading or symbol is split."""
    rest = b""
    for piece in pieces:
        whole = rest + piece
        cut = whole.rfind(b"\n\n") + 1
        yield whole[:cut]
        rest = whole[cut:]
    yield rest + b"\n"


def _grouped(holders: Mapping[str, set[str]]) -> tuple[KernelGroup, ...]:
    names: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, arches in holders.items():
        names[tuple(sorted(arches))].append(name)
    return tuple(
        KernelGroup(
            arches=arches, count=len(names[arches]), examples=tuple(sorted(names[arches])[:_EXAMPLES])
        )
        for arches in sorted(names)
    )


# Code and cards -----------------------------------------------------------------------------------

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


def _parse(arch: str) -> tuple[str, tuple[int, int], str]:
    """Return if *arch* is a cubin's or PTX's, its compute capability, and the suffix for its features."""
    found = _ARCH.fullmatch(arch)
    if found is None:
        raise BinaryError("a kernel cannot be judged", because=f"{arch!r} is no known architecture")
    return found[1], (int(found[2]), int(found[3])), found[4]


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
    """
    kind, code, suffix = _parse(arch)
    _, card, _ = _parse("sm_" + target.replace(".", ""))
    if suffix == "a":
        runs = code == card
    elif suffix == "f" or kind == "sm":
        runs = code <= card and code[0] == card[0]
    else:
        runs = code <= card
    if not runs:
        return KernelClass.NONE
    if kind == "compute":
        return KernelClass.PTX
    return KernelClass.NATIVE if code == card else KernelClass.FAMILY


def best_class(arches: Iterable[str], target: str) -> KernelClass:
    """Return the best class on *target* of a kernel in images for *arches*: the driver picks that image."""
    ranks = list(KernelClass)
    return min((class_of(arch, target) for arch in arches), key=ranks.index, default=KernelClass.NONE)


@dataclass(frozen=True)
class Tally:
    """Numbers of kernels by class on one card."""

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

    def count(self, kind: KernelClass) -> int:
        """Return the number of kernels of class *kind*."""
        return int(getattr(self, kind.name.lower()))

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
