"""Inspect each binary of a wheel, and hold the expectations that an audit compares them with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sparkwright.base.errors import ArchiveError, BinaryError
from sparkwright.lock.model import Artifact, Lock
from sparkwright.native.device_code import Tally, classify
from sparkwright.native.elf import ElfFacts
from sparkwright.native.inspection import Inspection, Inspector, Python, Resolution, Surroundings, resolve
from sparkwright.native.model import Extension
from sparkwright.wheel.archive import Archive

# Part of the keys of cached results: raised when a result would differ.
_RULES = 2

_THREADS = 2  # each waits for its own process, which reads hundreds of MB


@dataclass(frozen=True)
class NativeExpectation:
    """The inputs that binaries are inspected with and compared with.

    Attributes:
        arch: the card that kernels are judged for, such as ``12.1a``.
        surroundings: libraries of the installed environment; `None` without torch's.
    """

    arch: str
    inspector: Inspector
    surroundings: Surroundings | None = None


@dataclass(frozen=True)
class Expectation:
    """The inputs that the wheel is compared with.

    Attributes:
        changes: every path that the merge changed, as for `AssemblyPlan`; `None` without a merge,
            which skips the checks that need one.
        version: the version that the wheel should have, or `None` for any of the release.
        native: tools to inspect binaries with; `None` skips the checks that need them.
        record: the expected files of the wheel's record but `PROVIDERS`, by name, as JSON values;
            `None` for a file that cannot be computed here, and for all without a merge.
        compiled: the extensions that the store has under the native keys that the wheel names, by member.
        python: git ids of the merged tree's Python files by path, where they are compared too: a wheel whose
            digest no index stated is only believed about what was compiled.
        links: those of `changes` that are symbolic links in the merged tree.
    """

    upstream_wheel: Path
    artifact: Artifact
    lock: Lock
    changes: Mapping[str, bytes | None] | None = None
    version: str | None = None
    native: NativeExpectation | None = None
    record: Mapping[str, Any] | None = None
    compiled: Mapping[str, Extension] = field(default_factory=dict)
    python: Mapping[str, str] = field(default_factory=dict)
    links: frozenset[str] = frozenset()


@dataclass(frozen=True)
class InspectedBinaries:
    """The inspected binaries of one wheel.

    Attributes:
        faults: the reason that others could not be, by member.
    """

    expectation: NativeExpectation
    found: Mapping[str, Inspection]
    faults: Mapping[str, str] = field(default_factory=dict)

    def tally(self, member: str, arch: str = "") -> Tally:
        """Return the kernels of *member*, counted for *arch*, by default the card of the audit."""
        return classify(self.found[member].device, arch or self.expectation.arch)

    def total(self) -> Tally:
        """Return the kernels of all binaries."""
        return sum((self.tally(member) for member in self.found), Tally())


@dataclass(frozen=True)
class BinaryReport:
    """One binary, for people.

    Attributes:
        size: in bytes, unpacked.
        packed: in bytes, in the wheel.
        kernels: its kernels, counted for the card; all zero for one without device code.
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
    """Inspect *members* of *archive*, whose SHA-256 are in *digests*; damaged ones are faults."""
    found: dict[str, Inspection] = {}
    faults: dict[str, str] = {}

    def look(member: str) -> Inspection | BinaryError | ArchiveError:
        try:
            return inspect_binary(archive, member, digests[member], expectation.inspector)
        except (BinaryError, ArchiveError) as error:
            return error

    names = list(members)
    with ThreadPoolExecutor(_THREADS, "look") as pool:
        # In copies of this context, so that events of the programs reach this context's subscribers.
        looks = [(member, pool.submit(copy_context().run, look, member)) for member in names]
        for member, future in looks:
            seen = future.result()
            if isinstance(seen, BinaryError | ArchiveError):
                faults[member] = seen.because or seen.what
            else:
                found[member] = seen
    return InspectedBinaries(expectation, found, faults)


def inspect_binary(archive: Archive, member: str, sha256: str, inspector: Inspector) -> Inspection:
    """Inspect one *member* of *archive*; unpack it only if the result is not cached."""
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
    """Return which undefined symbols of the binary *sha256* no library defines; see `resolve`."""
    if not surroundings.key:
        return resolve(elf, surroundings, python=python)
    question = [sha256, "symbols", _RULES, surroundings.key, python, version("abi3info")]
    return inspector.remember(question, Resolution, lambda: resolve(elf, surroundings, python=python))
