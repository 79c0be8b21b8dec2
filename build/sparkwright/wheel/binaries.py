"""What a wheel's binaries are, looked into one by one."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.errors import ArchiveError, BinaryError
from sparkwright.native.inspection import Resolution, Tally, classify, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sparkwright.native.inspection import ElfFacts, Inspection, Inspector, Python, Surroundings
    from sparkwright.wheel.archive import Archive

# Part of the keys of what is remembered below: raised when an answer would be another one.
_RULES = 2


_THREADS = 2  # each waits for a program of its own, which reads hundreds of MB


@dataclass(frozen=True)
class NativeExpectation:
    """What binaries are looked into with, and held against.

    Attributes:
        arch: the card that kernels are judged for, such as ``12.1a``.
        inspector: looks into them.
        surroundings: libraries that will be there; `None` where torch's are not at hand.
    """

    arch: str
    inspector: Inspector
    surroundings: Surroundings | None = None


@dataclass(frozen=True)
class InspectedBinaries:
    """What the binaries of one wheel are.

    Attributes:
        expectation: what they are held against.
        found: each binary that could be looked into, by member.
        faults: why others could not be, by member.
    """

    expectation: NativeExpectation
    found: Mapping[str, Inspection]
    faults: Mapping[str, str] = field(default_factory=dict)

    def tally(self, member: str, arch: str = "") -> Tally:
        """The kernels of *member*, counted for *arch*, by default the card of the audit."""
        return classify(self.found[member].device, arch or self.expectation.arch)

    def total(self, arch: str = "") -> Tally:
        """The kernels of all binaries."""
        return sum((self.tally(member, arch) for member in self.found), Tally())


@dataclass(frozen=True)
class BinaryReport:
    """One binary, for people.

    Attributes:
        member: its name in the wheel.
        size: in bytes, unpacked.
        packed: in bytes, in the wheel.
        kernels: its kernels, counted for the card; all zero for one without device code.
        cubins: number of cubins by architecture.
        ptx: number of PTX modules by architecture.
    """

    member: str
    size: int
    packed: int
    kernels: Tally
    cubins: Mapping[str, int]
    ptx: Mapping[str, int]


def inspect_binaries(
    archive: Archive, digests: Mapping[str, str], members: Iterable[str], expectation: NativeExpectation
) -> InspectedBinaries:
    """Look into *members* of *archive*, whose SHA-256 are in *digests*; damaged ones are faults."""
    found: dict[str, Inspection] = {}
    faults: dict[str, str] = {}

    def look(member: str) -> Inspection | BinaryError | ArchiveError:
        try:
            return inspect_binary(archive, member, digests[member], expectation.inspector)
        except (BinaryError, ArchiveError) as error:
            return error

    names = list(members)
    with ThreadPoolExecutor(_THREADS, "look") as pool:
        # In copies of this context, so that events of the programs reach who listens here.
        looks = [(member, pool.submit(copy_context().run, look, member)) for member in names]
        for member, future in looks:
            seen = future.result()
            if isinstance(seen, BinaryError | ArchiveError):
                faults[member] = seen.because or seen.what
            else:
                found[member] = seen
    return InspectedBinaries(expectation, found, faults)


def inspect_binary(archive: Archive, member: str, sha256: str, inspector: Inspector) -> Inspection:
    """Look into one *member* of *archive*, unpacking it only if that was never done before.

    Raises:
        ArchiveError: it is damaged.
        BinaryError: it cannot be looked into.
    """
    with tempfile.TemporaryDirectory(prefix="sparkwright-inspect-") as folder:

        def unpack() -> Path:
            path = Path(folder) / member.rpartition("/")[2]
            with path.open("wb") as stream:
                for piece in archive.chunks(member):
                    stream.write(piece)
            return path

        return inspector.inspect(sha256, unpack)


def resolution_of(
    elf: ElfFacts, sha256: str, surroundings: Surroundings, python: Python, inspector: Inspector
) -> Resolution:
    """Who defines what the binary of digest *sha256* leaves open; see `resolve`."""
    if not surroundings.key:
        return resolve(elf, surroundings, python=python)
    question = [sha256, "symbols", _RULES, surroundings.key, python, version("abi3info")]
    return inspector.remember(question, Resolution, lambda: resolve(elf, surroundings, python=python))
