"""What a wheel says of its kernels: ``sparkwright/kernels.json`` in its metadata folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.errors import WheelError
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.names import parse_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sparkwright.native.model import Extension, Target
    from sparkwright.wheel.archive import Archive

KERNELS = "kernels.json"
KERNELS_FORMAT = 1


class BinaryKernels(Model, frozen=True):
    """One binary of the wheel.

    Attributes:
        member: its name in the wheel.
        kernels: ``compiled`` for one of our own, ``upstream`` for one out of upstream's wheel.
        key: the native key of a compiled one.
        asked: how many of its units ask for which device code: ``sm_121a``, ``compute_89``.
        because: why upstream's is used although native inputs may have changed.
    """

    member: str
    kernels: Literal["compiled", "upstream"]
    key: str = ""
    asked: dict[str, int] = {}  # noqa: RUF012 - msgspec copies empty defaults
    because: str = ""


class LeftOut(Model, frozen=True):
    """A binary of upstream's wheel that ours does without.

    Attributes:
        member: its name in upstream's wheel.
        because: why nothing is lost.
        evidence: why the Python in the wheel copes, one line for each place.
    """

    member: str
    because: str
    evidence: tuple[str, ...]


class KernelsRecord(Model, frozen=True):
    """All of ``kernels.json``.

    Attributes:
        format: version of the file's format.
        arch: the card that was compiled for, as ``TORCH_CUDA_ARCH_LIST`` writes it.
        machine: machine of the host code.
        toolchain: key of the toolchain.
        binaries: every binary of the wheel, sorted.
        left_out: binaries that upstream's wheel has and this one has not, sorted.
    """

    format: int
    arch: str
    machine: str
    toolchain: str
    binaries: tuple[BinaryKernels, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def compiled(self) -> dict[str, BinaryKernels]:
        """The binaries of our own, by member."""
        return {one.member: one for one in self.binaries if one.kernels == "compiled"}

    @property
    def reasons(self) -> dict[str, str]:
        """Why upstream's are used, by member."""
        return {one.member: one.because for one in self.binaries if one.kernels == "upstream"}


def kernels_record(
    target: Target,
    toolchain: str,
    *,
    compiled: Mapping[str, Extension],
    upstream: Mapping[str, str],
    left_out: Sequence[LeftOut] = (),
) -> dict[str, Any]:
    """``kernels.json`` as a JSON value, for `AssemblyPlan.record` under the name `KERNELS`.

    Args:
        target: what was compiled for.
        toolchain: key of the toolchain.
        compiled: the extensions compiled here, by member.
        upstream: why each other binary is upstream's, by member.
        left_out: what `plan_slim` leaves out.
    """
    ours = [
        BinaryKernels(member=member, kernels="compiled", key=one.key, asked=dict(sorted(one.arches.items())))
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
    )
    value: dict[str, Any] = to_builtins(record)
    return value


def read_kernels_record(value: Any) -> KernelsRecord:
    """The record in the JSON *value*.

    Raises:
        WheelError: it is malformed, of a newer format, or names a member twice.
    """
    try:
        record = msgspec.convert(value, KernelsRecord)
    except msgspec.ValidationError as error:
        raise WheelError(f"{KERNELS} is malformed", because=str(error)) from error
    if record.format != KERNELS_FORMAT:
        raise WheelError(f"{KERNELS} cannot be read", because=f"it has format {record.format}")
    members = [one.member for one in record.binaries] + [one.member for one in record.left_out]
    if twice := sorted({member for member in members if members.count(member) > 1}):
        raise WheelError(f"{KERNELS} is malformed", because=f"it names {twice[0]} twice")
    return record


def read_json(archive: Archive, member: str) -> Any:
    """The JSON value in *member* of *archive*.

    Raises:
        ArchiveError: it is damaged, or larger than what is read at once.
        WheelError: it is not JSON, or nested more deeply than Python reads.
    """
    try:
        return json.loads(archive.read(member))
    except (ValueError, RecursionError) as error:
        raise WheelError(f"{member} is not JSON that can be read", because=str(error)) from error


def kernels_of(wheel: Path) -> KernelsRecord | None:
    """What the wheel at that path says of its kernels; `None` for one with upstream's only.

    Raises:
        ArchiveError: it is no archive that we would look into.
        WheelError: its record is malformed, or no JSON.
    """
    with open_archive(wheel) as archive:
        member = f"{parse_name(wheel.name).dist_info}/sparkwright/{KERNELS}"
        if member not in archive.members:
            return None
        return read_kernels_record(read_json(archive, member))
