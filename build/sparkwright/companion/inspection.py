"""Audit a companion: whole, for one machine and one card, and without an undefined symbol.

The facts of a binary are those of `sparkwright.native.inspection`, as for a vLLM wheel. What differs is the
comparison: there is no wheel of upstream's to compare with, and every kernel has to be for the card.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import AuditError
from sparkwright.companion.wheel import (
    ENTRY_POINTS,
    architecture_name,
    companion_bill,
    entry_points_of,
    member_of,
    package_files,
    read_companion,
)
from sparkwright.native.device_code import KernelClass, class_of
from sparkwright.native.elf import over_platform
from sparkwright.native.inspection import Inspection, Inspector, Surroundings, resolve, unprovided
from sparkwright.native.model import Target
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.binaries import InspectedBinaries, NativeExpectation, inspect_binaries
from sparkwright.wheel.checks import AuditCheck, OpenWheel, judge, record_complete
from sparkwright.wheel.names import parse_name
from sparkwright.wheel.native_checks import binaries_machine
from sparkwright.wheel.recorded import SBOM
from sparkwright.wheel.survey import check_sizes, survey

_LOADED_BEFORE = "libtvm_ffi.so"
"""FlashInfer's modules call it and do not name it: Python has loaded it, for all, before them."""

# FA2DetermineCtaTileQ of utils.cuh chooses 32 queries for heads of 512 alone. The dispatch names them for all
# heads, and the generator leaves them out for smaller ones. Calls are bound when they are first made.
_UNREACHABLE = re.compile(
    r"_ZN10flashinfer\d+BatchPrefillWith(?:Paged|Ragged)KVCacheDispatchedI(?:Lb[01]E)?Lj32ELj(?:64|128|256)E"
)


@dataclass(frozen=True)
class CompanionAudit:
    """The result of an audit.

    Attributes:
        modules: size of each module in bytes, unpacked.
    """

    filename: str
    sha256: str
    size: int
    target: Target
    modules: Mapping[str, int]
    cubins: Mapping[str, int]
    checks: tuple[AuditCheck, ...]
    kind = "companion"

    @property
    def passed(self) -> bool:
        """Tell if no check failed or was left open."""
        return all(check.verdict == "pass" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        modules = {name: {"size": size, "cubins": self.cubins[name]} for name, size in self.modules.items()}
        return {
            "filename": self.filename,
            "sha256": self.sha256,
            "size": self.size,
            "machine": self.target.machine,
            "arch": self.target.arch,
            "modules": modules,
            "passed": self.passed,
            "unchecked": [],
            "checks": [asdict(check) for check in self.checks],
        }

    def require(self) -> None:
        """Raise if a check failed or was left open."""
        if failed := [check for check in self.checks if check.verdict != "pass"]:
            raise AuditError(
                f"{self.filename} failed its audit",
                because="; ".join(f"{check.name}: {check.detail}" for check in failed),
                next_step="do not install or publish this wheel; build it again",
            )


@dataclass(frozen=True)
class _Subject(OpenWheel):
    """An open companion, its record, and the facts of its binaries."""

    record: Mapping[str, Any]
    target: Target
    binaries: InspectedBinaries
    surroundings: Surroundings

    @property
    def found(self) -> Mapping[str, Inspection]:
        """Return the facts of the binaries that could be inspected."""
        return self.binaries.found

    @property
    def members(self) -> dict[str, str]:
        """Return the module of each of its binaries."""
        return {member_of(module, self.target): module for module in self.record["modules"]}

    @property
    def texts(self) -> dict[str, bytes]:
        """Return the members by which FlashInfer finds the modules, as the record decides them."""
        files = package_files(self.name.version, self.target, self.record["modules"])
        return {**files, f"{self.info}{ENTRY_POINTS}": entry_points_of(self.target)}

    def differs(self, member: str, expected: bytes) -> list[str]:
        """Return the fault of a *member* that the record decides, where it is not *expected*."""
        if member not in self.archive.members:
            return [f"{member} is missing"]
        return [] if self.archive.read(member) == expected else [f"{member} is not what the record gives"]


def audit_companion(wheel: Path, inspector: Inspector, surroundings: Surroundings) -> CompanionAudit:
    """Return the audit of the companion *wheel*.

    *surroundings* are the CUDA runtime and tvm_ffi of its machine.

    Raises:
        ArchiveError: it is damaged or an unsafe archive.
        WheelError: it is no companion, or its record is malformed.
    """
    name, record = parse_name(wheel.name), read_companion(wheel)
    target = Target(record["target"]["machine"], record["target"]["arch"])
    modules = {module: one["size"] for module, one in record["modules"].items()}
    with open_archive(wheel) as archive, tempfile.TemporaryDirectory(prefix="sparkwright-audit-") as folder:
        check_sizes(archive, archive.members)
        facts, _ = survey(archive, archive.members, Path(folder), None)
        # The digest is of what is there, so that a changed file is not taken for a known one.
        whole = {member_of(module, target) for module in modules} & {
            at for at, one in facts.items() if not one.damage
        }
        digests = {member: facts[member].sha256 for member in sorted(whole)}
        expectation = NativeExpectation(target.arch, inspector, surroundings)
        binaries = inspect_binaries(archive, digests, digests, expectation)
        subject = _Subject(archive, name, facts, record, target, binaries, surroundings)
        checks = tuple(check(subject) for check in _CHECKS)
    cubins = {member: sum(one.device.cubins.values()) for member, one in binaries.found.items()}
    return CompanionAudit(
        filename=wheel.name,
        sha256=sha256_file(wheel),
        size=wheel.stat().st_size,
        target=target,
        modules=modules,
        cubins={module: cubins.get(member_of(module, target), 0) for module in modules},
        checks=checks,
    )


def _complete(subject: _Subject) -> AuditCheck:
    """Check that RECORD lists every member with its digest, and that nothing else is there."""
    expected = {*subject.members, *subject.texts}
    strange = [
        f"{member} does not belong there"
        for member in subject.archive.members
        if not member.startswith(subject.info) and member not in expected
    ]
    listed = record_complete(subject)
    faults = [*strange, *([] if listed.verdict == "pass" else [listed.detail])]
    return judge(listed.name, faults, listed.detail)


def _modules(subject: _Subject) -> AuditCheck:
    """Check that the provider names its card and modules, and that each is the file of the record."""
    target, faults = subject.target, list[str]()
    for member, module in subject.members.items():
        if (facts := subject.facts.get(member)) is None:
            faults.append(f"{member} is missing")
        elif facts.sha256 != subject.record["modules"][module]["sha256"]:
            faults.append(f"{member} is not the file that the record names")
    faults += [fault for text in subject.texts.items() for fault in subject.differs(*text)]
    if subject.name.machine != target.machine:
        faults.append(f"the tag {subject.name.platform} is not for {target.machine}")
    detail = f"{len(subject.found)} modules of a provider for {architecture_name(target)}"
    return judge("modules", faults, detail)


def _machine(subject: _Subject) -> AuditCheck:
    return binaries_machine(subject, subject.binaries)


def _native(subject: _Subject) -> AuditCheck:
    """Check that every module holds exactly what its units were compiled to, and that all of it runs so.

    FlashInfer compiles a few modules for the card's family, whose machine code the card runs too. PTX, which
    the driver compiles when it is first used, is refused.
    """
    card, faults = subject.target.arch, list[str]()
    counts = dict.fromkeys((KernelClass.NATIVE, KernelClass.FAMILY), 0)
    for module, one in subject.record["modules"].items():
        if (inspection := subject.found.get(member_of(module, subject.target))) is None:
            continue
        device = inspection.device
        if device.ptx:
            faults.append(f"{module} holds PTX for {', '.join(device.ptx)}")
        if dict(device.cubins) != one["arches"] or not device.cubins:
            faults.append(f"{module} holds the cubins {dict(device.cubins)}, compiled were {one['arches']}")
        for arch, count in device.cubins.items():
            if (kind := class_of(arch, card)) not in counts:
                faults.append(f"{module} holds cubins for {arch}, which do not run on {card}")
            else:
                counts[kind] += count
    shares = f"{counts[KernelClass.NATIVE]} for {card}, {counts[KernelClass.FAMILY]} for its family, no PTX"
    return judge("kernels-native", faults, f"cubins: {shares}")


def _symbols(subject: _Subject) -> AuditCheck:
    """Check that the CUDA runtime, tvm_ffi and the system define every undefined symbol."""
    surroundings, faults, count = subject.surroundings, list[str](), 0
    for member, one in subject.found.items():
        elf = structs.replace(one.elf, needed=(*one.elf.needed, _LOADED_BEFORE))
        found = resolve(elf, surroundings, python="none")
        lost = [symbol for symbol in found.unresolved if not _UNREACHABLE.match(symbol)]
        faults += [f"{member}: {symbol} is undefined" for symbol in lost]
        count += len(elf.undefined)
    return judge("symbols-resolve", faults, f"{count} symbols")


def _libraries(subject: _Subject) -> AuditCheck:
    """Check that something brings every needed library, and that there are no run paths."""
    surroundings = subject.surroundings
    faults = [
        f"{member} needs {soname}, which no dependency brings"
        for member, one in subject.found.items()
        for soname in unprovided(one.elf, surroundings)
    ]
    faults += [f"{member} has run paths" for member, one in subject.found.items() if one.elf.run_paths]
    needed = sorted({soname for one in subject.found.values() for soname in one.elf.needed})
    return judge("needed-libraries", faults, ", ".join(needed))


def _floor(subject: _Subject) -> AuditCheck:
    """Check that the platform tag has all symbol versions."""
    platform = subject.name.platform
    faults = [
        f"{member} needs {', '.join(beyond)}, more than {platform} has"
        for member, one in subject.found.items()
        if (beyond := over_platform(platform, one.elf.versions))
    ]
    return judge("glibc-floor", faults, f"{platform} has every required symbol version")


def _bill(subject: _Subject) -> AuditCheck:
    """Check that the bill of materials is the one that the record gives."""
    expected = companion_bill(subject.record, subject.name.version)
    faults = subject.differs(f"{subject.info}{SBOM}", expected)
    return judge("sbom", faults, "CycloneDX 1.6, as the record gives it")


_CHECKS = (_complete, _modules, _machine, _native, _symbols, _libraries, _floor, _bill)
