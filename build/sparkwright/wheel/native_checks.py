"""The checks of an audit on the wheel's binaries, one function each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from sparkwright.lock.model import Binary, NativePin
from sparkwright.native.device_code import KernelClass, Tally, classify, of_class
from sparkwright.native.elf import honest_platform, over_platform
from sparkwright.native.inspection import Inspection, Python, unprovided
from sparkwright.wheel.binaries import InspectedBinaries, inspect_binary, resolution_of
from sparkwright.wheel.checks import AuditCheck, AuditSubject, OpenWheel, judge
from sparkwright.wheel.kernels import BinaryKernels, LeftOut, needed_because

_ORIGIN = "$ORIGIN"


def binaries_machine(subject: OpenWheel, inspected: InspectedBinaries) -> AuditCheck:
    """Check that every binary is a whole ELF file for the machine of the wheel's tag."""
    machine = subject.name.machine
    faults = [f"{member}: {because}" for member, because in sorted(inspected.faults.items())]
    faults += [
        f"{member} is made for {one.elf.machine}"
        for member, one in sorted(inspected.found.items())
        if one.elf.machine != machine
    ]
    return judge("binaries-machine", faults, f"{len(inspected.found)} binaries for {machine}")


def kernels_native(subject: AuditSubject, inspected: InspectedBinaries) -> AuditCheck:
    """Check that each compiled binary holds exactly the device code that its units were compiled for.

    Compiled for the lock's architecture, it also has to match the lock's table, and every kernel has to be
    native but for those that the table gives a reason for.
    """
    name = "kernels-native"
    record = subject.kernels()
    if record is None:
        shares = _shares(inspected.total())
        return AuditCheck(name, "pass", f"none of the binaries was compiled here; kernels: {shares}")
    faults: list[str] = []
    for member, one in sorted(record.compiled.items()):
        if (inspection := inspected.found.get(member)) is None:
            faults.append(f"{member} could not be inspected")
            continue
        faults += _count_faults(one, inspection)
        if (native := subject.expected.lock.native) is not None and native.arch == record.arch:
            faults += _table_faults(member, inspection, native, record.arch)
    compiled = sum(
        (inspected.tally(member, record.arch) for member in record.compiled if member in inspected.found),
        Tally(),
    )
    detail = f"{len(record.compiled)} binaries compiled for {record.arch}: {_shares(compiled)}"
    if without := _without_native(record.compiled, inspected, record.arch):
        detail += f"; nothing in {', '.join(without)} is for {record.arch} itself"
    for member, why in sorted(record.attested.items()):
        detail += f"; {member}: {why}"
    return judge(name, faults, detail)


def _without_native(compiled: Iterable[str], inspected: InspectedBinaries, arch: str) -> list[str]:
    """Return the compiled binaries that have kernels, and none for *arch* itself.

    Their own build narrows the list of architectures: FlashAttention 2 has 8.0 and PTX for 9.0a.
    """
    tallies = {one: inspected.tally(one, arch) for one in compiled if one in inspected.found}
    return sorted(
        one for one, tally in tallies.items() if tally.total and not tally.count(KernelClass.NATIVE)
    )


def _count_faults(one: BinaryKernels, inspection: Inspection) -> list[str]:
    held, asked = {**inspection.device.cubins, **inspection.device.ptx}, one.asked
    return [
        f"{one.member} holds {held.get(arch, 0)} images for {arch}, compiled were {asked.get(arch, 0)}"
        for arch in sorted(set(held) | set(asked))
        if held.get(arch, 0) != asked.get(arch, 0)
    ]


def _table_faults(member: str, inspection: Inspection, native: NativePin, arch: str) -> list[str]:
    device, faults = inspection.device, []
    if native.is_measured:
        if member not in native.binaries:
            return [f"the lock's table of binaries does not have {member}"]
        stated = native.binaries[member]
        faults = [
            f"{member} holds {what} {dict(held)}, the lock's table has {dict(counts)}"
            for what, held, counts in (
                ("cubins", device.cubins, stated.cubins),
                ("PTX", device.ptx, stated.ptx),
            )
            if held != counts
        ]
    # Of a table that was measured on another release, only the reasons for other code count.
    locked = native.binaries.get(member, Binary())
    if not locked.why:
        others = [kind for kind in KernelClass if kind is not KernelClass.NATIVE]
        groups = [group for kind in others for group in of_class(device, arch, kind)]
        faults += [
            f"{group.count} kernels of {member} are for {', '.join(group.arches)}: {group.examples[0]}"
            for group in groups
        ]
    return faults


def _shares(tally: Tally) -> str:
    if not tally.total:
        return "none"
    parts = [f"{tally.count(kind)} {kind}" for kind in KernelClass if tally.count(kind)]
    return f"{', '.join(parts)}, of {tally.total}"


def symbols_resolve(subject: AuditSubject, inspected: InspectedBinaries) -> AuditCheck:
    """Check that every undefined symbol of a binary is defined by a library that is loaded with it."""
    name = "symbols-resolve"
    surroundings, inspector = inspected.expectation.surroundings, inspected.expectation.inspector
    if surroundings is None:
        return AuditCheck(name, "skipped", "torch's libraries are not available")
    faults: list[str] = []
    newest = (3, 2)
    count = 0
    for member, one in sorted(inspected.found.items()):
        found = resolution_of(
            one.elf, subject.facts[member].sha256, surroundings, _loaded_by(member), inspector
        )
        faults += [f"{member}: {symbol} is undefined" for symbol in found.unresolved]
        newest = max(newest, found.stable_abi or newest)
        count += len(one.elf.undefined)
    files = len(surroundings.libraries)
    detail = (
        f"{count} symbols: by name in {files} unpacked libraries, by version in the system's, by prefix in "
        f"the driver and {len(surroundings.link_only)} others; stable ABI of Python {newest[0]}.{newest[1]}"
    )
    return judge(name, faults, detail)


def _loaded_by(member: str) -> Python:
    if member.endswith(".abi3.so"):
        return "stable-abi"
    return "one-version" if re.search(r"\.cpython-\d+-[\w-]+\.so$", member) else "none"


def needed_libraries(subject: AuditSubject, inspected: InspectedBinaries) -> AuditCheck:
    """Check that the wheel's dependencies bring every needed library, and that run paths stay inside."""
    del subject
    name = "needed-libraries"
    surroundings = inspected.expectation.surroundings
    faults = [
        f"{member} has the run path {folder or 'of the current folder'}"
        for member, one in sorted(inspected.found.items())
        for folder in one.elf.run_paths
        if folder != _ORIGIN and not folder.startswith(_ORIGIN + "/")
    ]
    if surroundings is not None:
        faults += [
            f"{member} needs {soname}, which no dependency brings"
            for member, one in sorted(inspected.found.items())
            for soname in unprovided(one.elf, surroundings)
        ]
    elif not faults:
        return AuditCheck(name, "skipped", "torch's libraries are not available; no run path leads outside")
    needed = {soname for one in inspected.found.values() for soname in one.elf.needed}
    return judge(name, faults, f"{len(needed)} libraries, all brought by torch, the driver or the system")


def glibc_floor(subject: AuditSubject, inspected: InspectedBinaries) -> AuditCheck:
    """Check that the wheel's platform tag is the oldest that has all symbol versions of its binaries."""
    platform = subject.name.platform
    faults = [
        f"{member} needs {', '.join(beyond)}, more than {platform} has"
        for member, one in sorted(inspected.found.items())
        if (beyond := over_platform(platform, one.elf.versions))
    ]
    if subject.ours and not faults:
        begin = subject.upstream.name.platform
        honest = honest_platform(begin, [one.elf.versions for one in inspected.found.values()])
        if honest != platform:
            faults.append(f"the tag is {platform}, and {honest} is enough")
    return judge("glibc-floor", faults, f"{platform} has every required symbol version")


def left_out_unused(subject: AuditSubject, inspected: InspectedBinaries) -> AuditCheck:
    """Check that each left-out binary has no kernel for the card, and that the lock lists it as unneeded."""
    name = "left-out-unused"
    record = subject.kernels()
    if record is None or not record.left_out:
        return AuditCheck(name, "pass", "nothing was left out")
    python = {path: subject.archive.read(path) for path in subject.facts if path.endswith(".py")}
    faults = [
        f"{one.member} {because}"
        for one in record.left_out
        for because in _left_out_faults(subject, inspected, one, record.arch, python)
    ]
    saved = sum(
        subject.upstream.archive.members[one.member].compressed_size
        for one in record.left_out
        if one.member in subject.upstream.archive.members
    )
    names = ", ".join(one.member.rpartition("/")[2].partition(".")[0] for one in record.left_out)
    return judge(name, faults, f"{names}: nothing of them runs on {record.arch}; {saved / 1e6:.1f} MB saved")


def _left_out_faults(
    subject: AuditSubject, inspected: InspectedBinaries, one: LeftOut, arch: str, python: Mapping[str, bytes]
) -> Iterator[str]:
    upstream, inspector = subject.upstream, inspected.expectation.inspector
    if one.member in subject.archive.members:
        yield "is recorded as left out, and is there"
    if one.member not in upstream.binaries:
        yield "is no binary of upstream's wheel"
        return
    sha256 = upstream.listed[one.member].sha256
    inspection = inspect_binary(upstream.archive, one.member, sha256, inspector)
    if not (tally := classify(inspection.device, arch)).useless:
        yield f"has kernels that run on {arch}: {_shares(tally)}" if tally.total else "has no device code"
    native = subject.expected.lock.native
    if because := needed_because(one.member, python, native.drop if native else {}):
        yield f"may be needed: {because}"


NATIVE_CHECKS: tuple[tuple[str, Callable[[AuditSubject, InspectedBinaries], AuditCheck]], ...] = (
    ("binaries-machine", binaries_machine), ("kernels-native", kernels_native),
    ("symbols-resolve", symbols_resolve), ("needed-libraries", needed_libraries),
    ("glibc-floor", glibc_floor), ("left-out-unused", left_out_unused),
)  # fmt: skip
