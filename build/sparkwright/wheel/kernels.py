"""A wheel's record of its kernels, ``sparkwright/kernels.json``, and the binaries that it leaves out.

A binary without a kernel for the card may still be imported. When the pin moves, a maintainer reviews the
Python that names it and lists it under the lock's ``[native.drop]``, with the reviewed files. A binary that
is not listed, or that another file names meanwhile, stays in the wheel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from sparkwright.base.config import Model, convert, to_builtins
from sparkwright.base.errors import WheelError
from sparkwright.lock.model import DroppedBinary
from sparkwright.native.device_code import Tally
from sparkwright.native.model import Extension, Target
from sparkwright.wheel.archive import Archive, open_archive
from sparkwright.wheel.names import parse_name
from sparkwright.wheel.source import StockWheel, of_kind

KERNELS = "kernels.json"
KERNELS_FORMAT = 1


class BinaryKernels(Model, frozen=True):
    """One binary of the wheel.

    Attributes:
        kernels: ``compiled`` for a natively built one, ``upstream`` for one out of upstream's wheel.
        key: the native key of a compiled one.
        asked: number of its units that are compiled for each device code: ``sm_121a``, ``compute_89``.
        because: the reason to use upstream's although native inputs may have changed; of a compiled
            one, the attestation of a candidate that stood in for a pinned source.
    """

    member: str
    kernels: Literal["compiled", "upstream"]
    key: str = ""
    asked: dict[str, int] = {}  # noqa: RUF012 - msgspec copies empty defaults
    because: str = ""


class ToolPackage(Model, frozen=True):
    """A package that binaries were compiled with."""

    filename: str
    sha256: str

    @property
    def project(self) -> str:
        """The project, normalized after PEP 503."""
        return self.filename.split("-")[0].replace("_", "-").lower()

    @property
    def version(self) -> str:
        """The version (PEP 440)."""
        return self.filename.split("-")[1]


class LeftOut(Model, frozen=True):
    """A binary of upstream's wheel that the new wheel leaves out.

    Attributes:
        evidence: the reasons that the wheel's Python works without it, one line for each place.
    """

    member: str
    because: str
    evidence: tuple[str, ...]


class KernelsRecord(Model, frozen=True):
    """All of ``kernels.json``.

    Attributes:
        arch: the target card, as ``TORCH_CUDA_ARCH_LIST`` writes it.
        left_out: binaries that upstream's wheel has and this one has not, sorted.
    """

    format: int
    arch: str
    machine: str
    toolchain: str
    binaries: tuple[BinaryKernels, ...]
    left_out: tuple[LeftOut, ...] = ()
    packages: tuple[ToolPackage, ...] = ()

    @property
    def compiled(self) -> dict[str, BinaryKernels]:
        """The natively built binaries, by member."""
        return {one.member: one for one in self.binaries if one.kernels == "compiled"}

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons to use upstream's binaries, by member."""
        return {one.member: one.because for one in self.binaries if one.kernels == "upstream"}

    @property
    def attested(self) -> dict[str, str]:
        """The attestation, in words, of each member that was compiled from a candidate."""
        return {member: one.because for member, one in self.compiled.items() if one.because}


def kernels_record(
    target: Target,
    toolchain: str,
    *,
    compiled: Mapping[str, Extension],
    upstream: Mapping[str, str],
    attested: Mapping[str, str],
    left_out: Sequence[LeftOut],
    packages: Mapping[str, str],
) -> dict[str, Any]:
    """Return ``kernels.json`` as a JSON value, for `AssemblyPlan.record` under the name `KERNELS`.

    Args:
        target: the machine and card of the build.
        toolchain: key of the toolchain.
        compiled: the extensions compiled here, by member.
        upstream: the reason that each other binary is upstream's, by member.
        attested: the attestation of each extension that was compiled from a candidate, by member.
        left_out: the binaries of upstream's wheel that are `unneeded`.
        packages: SHA-256 of the toolchain's packages by file name.
    """
    ours = [
        BinaryKernels(
            member=member,
            kernels="compiled",
            key=one.key,
            asked=dict(sorted(one.arches.items())),
            because=attested.get(member, ""),
        )
        for member, one in compiled.items()
    ]
    theirs = [
        BinaryKernels(member=member, kernels="upstream", because=because)
        for member, because in upstream.items()
    ]
    record = KernelsRecord(
        format=KERNELS_FORMAT,
        arch=target.arch,
        machine=target.machine,
        toolchain=toolchain,
        binaries=tuple(sorted([*ours, *theirs], key=lambda one: one.member)),
        left_out=tuple(sorted(left_out, key=lambda one: one.member)),
        packages=tuple(
            ToolPackage(filename=name, sha256=sha256) for name, sha256 in sorted(packages.items())
        ),
    )
    value: dict[str, Any] = to_builtins(record)
    return value


def read_kernels_record(value: Any) -> KernelsRecord:
    """Return the record in the JSON *value*."""
    try:
        record = convert(value, KernelsRecord)
    except msgspec.ValidationError as error:
        raise WheelError(f"{KERNELS} is malformed", because=str(error)) from error
    if record.format != KERNELS_FORMAT:
        raise WheelError(f"{KERNELS} cannot be read", because=f"it has format {record.format}")
    members = [one.member for one in record.binaries] + [one.member for one in record.left_out]
    if twice := sorted({member for member in members if members.count(member) > 1}):
        raise WheelError(f"{KERNELS} is malformed", because=f"it names {twice[0]} twice")
    return record


def read_json(archive: Archive, member: str) -> Any:
    """Return the JSON value in *member* of *archive*."""
    try:
        return json.loads(archive.read(member))
    except (ValueError, RecursionError) as error:
        raise WheelError(f"{member} is not JSON that can be read", because=str(error)) from error


def kernels_of(wheel: Path) -> KernelsRecord | None:
    """Return the record of kernels of the wheel at that path; `None` for one with upstream's only."""
    with open_archive(wheel) as archive:
        member = f"{parse_name(wheel.name).dist_info}/sparkwright/{KERNELS}"
        if member not in archive.members:
            return None
        return read_kernels_record(read_json(archive, member))


# Binaries that are left out -----------------------------------------------------------------------


def unneeded(
    python: Mapping[str, bytes], binaries: Mapping[str, Tally], listed: Mapping[str, DroppedBinary], arch: str
) -> tuple[LeftOut, ...]:
    """Return the binaries to leave out.

    A binary without device code always stays: its use does not depend on the card.

    *python* is every Python file that the wheel will have, and *binaries* the kernels of every binary,
    counted for the card, by member; *listed* is the lock's ``[native.drop]``.
    """
    return tuple(
        LeftOut(
            member=member,
            because=f"none of its {tally.total} kernels runs on {arch}",
            evidence=(listed[member].why,),
        )
        for member, tally in sorted(binaries.items(), key=lambda item: item[0])
        if tally.useless and not needed_because(member, python, listed)
    )


def needed_because(member: str, python: Mapping[str, bytes], listed: Mapping[str, DroppedBinary]) -> str:
    """Return why the wheel may need the binary *member*; empty if the lock's review excludes it."""
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
