"""The checks of an audit, one function each; no check depends on another."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from sparkwright.base.errors import WheelError
from sparkwright.base.text import few
from sparkwright.git.trees import blob_id
from sparkwright.wheel.archive import Archive
from sparkwright.wheel.assemble import UPSTREAM, native_faults
from sparkwright.wheel.binaries import Expectation, InspectedBinaries
from sparkwright.wheel.kernels import KERNELS, KernelsRecord, read_json, read_kernels_record
from sparkwright.wheel.names import (
    VERSION_FILE,
    WheelName,
    header,
    stamp_metadata,
    stamp_version_file,
    stamp_wheel,
    stated_version,
    version_tuple,
)
from sparkwright.wheel.recorded import CARRIES, COMPILED, POINT, PROVIDERS, RECORD_FOLDER, SBOM
from sparkwright.wheel.source import StockWheel, delta, machine_of, of_kind, parse_record
from sparkwright.wheel.survey import Facts

RECORD_FILES = frozenset({POINT, CARRIES, PROVIDERS, KERNELS})
_SHOWN = 5
_MODES = (0o100644, 0o100755)


@dataclass(frozen=True)
class AuditCheck:
    """One check and its result.

    Attributes:
        verdict: ``pass``, ``fail``, ``skipped``, or ``unverified`` where an input to compare a part of
            the wheel with is missing.
    """

    name: str
    verdict: Literal["pass", "fail", "skipped", "unverified"]
    detail: str


@dataclass(frozen=True)
class OpenWheel:
    """A wheel under audit, and the content of its members."""

    archive: Archive
    name: WheelName
    facts: Mapping[str, Facts]

    @property
    def info(self) -> str:
        """The metadata folder that the file name implies, with a slash at the end."""
        return self.name.dist_info + "/"


@dataclass(frozen=True)
class AuditSubject(OpenWheel):
    """A wheel of vLLM under audit, and what it is compared with.

    Attributes:
        unknown: the other members, which are neither upstream's nor the merge's nor of the record.
        floor: the oldest Python that its code has to compile for.
        errors: member and reason of every syntax error at that floor.
        inspected: its inspected binaries; `None` if they were not inspected.
    """

    unknown: tuple[str, ...]
    upstream: StockWheel
    expected: Expectation
    floor: str
    errors: Sequence[tuple[str, str]]
    ours: bool
    inspected: InspectedBinaries | None = None

    @property
    def binaries(self) -> tuple[str, ...]:
        """The members that are ELF files, sorted."""
        return tuple(sorted(name for name, facts in self.facts.items() if facts.binary))

    def stated(self, file: str) -> Any:
        """Return the JSON *file* of the wheel's record; see `read_json`."""
        return read_json(self.archive, f"{self.info}{RECORD_FOLDER}/{file}")

    def kernels(self) -> KernelsRecord | None:
        """Return its record of kernels; `None` for a wheel with upstream's kernels only."""
        if not self.ours or f"{self.info}{RECORD_FOLDER}/{KERNELS}" not in self.archive.members:
            return None
        return read_kernels_record(self.stated(KERNELS))


def is_ours(archive: Archive, name: WheelName) -> bool:
    """Tell if the wheel has a sparkwright record."""
    return any(member.startswith(f"{name.dist_info}/{RECORD_FOLDER}/") for member in archive.members)


def judge(name: str, faults: Sequence[str], passed: str, unverified: Sequence[str] = ()) -> AuditCheck:
    """Return the check *name*: failed by *faults*, left open by *unverified* parts, or *passed*.

    The detail lists the first few of either.
    """
    shown = faults or unverified
    if not shown:
        return AuditCheck(name, "pass", passed)
    detail = few(shown, _SHOWN, sep="; ", more=", and {} more")
    return AuditCheck(name, "fail" if faults else "unverified", detail)


def _skipped(subject: AuditSubject, name: str) -> AuditCheck:
    """Return the check *name* as skipped: the wheel is upstream's, or there is no merge."""
    if not subject.ours:
        return AuditCheck(name, "skipped", "this is upstream's wheel")
    return AuditCheck(name, "skipped", "no merge was given to compare it with")


def archive_safe(subject: AuditSubject) -> AuditCheck:
    """Check that every member's data is whole; `open_archive` checked names and structure."""
    faults = [f"{name}: {one.damage}" for name, one in subject.facts.items() if one.damage]
    if subject.ours:
        faults += [f"{name} is a folder's entry" for name in subject.archive.folders]
    return judge("archive-safe", faults, f"{len(subject.facts)} members, every CRC-32 right")


def record_complete(subject: OpenWheel) -> AuditCheck:
    """Check that RECORD lists exactly the members, with their digests and sizes (PEP 427)."""
    record = subject.info + "RECORD"
    listed = parse_record(subject.archive.read(record))
    present = set(subject.archive.members)
    faults = [f"{name} is not listed" for name in sorted(present - set(listed))]
    faults += [f"{name} is listed and absent" for name in sorted(set(listed) - present)]
    for name in sorted(set(listed) & set(subject.facts)):
        entry, facts = listed[name], subject.facts[name]
        if name == record:
            if entry.digest or entry.size is not None:
                faults.append("RECORD states a digest of itself")
        elif entry.size != facts.size:
            faults.append(f"{name} has {facts.size} bytes, not {entry.size}")
        elif entry.sha256 != facts.sha256:
            faults.append(f"{name} has another digest")
    return judge("record-complete", faults, f"{len(listed)} lines, every digest and size right")


def tags(subject: AuditSubject) -> AuditCheck:
    """Check that file name, WHEEL and the binaries agree about the platform (PEP 425)."""
    wheel = subject.archive.read(subject.info + "WHEEL")
    stated, machine = sorted(header(wheel, "Tag")), subject.name.machine
    generic = [f"{subject.name.python}-{subject.name.abi}-linux_{machine}"]
    faults = []
    if stated != sorted(subject.name.tags) and (subject.ours or stated != generic):
        faults.append(f"WHEEL has {', '.join(stated)}, the file name {', '.join(subject.name.tags)}")
    if header(wheel, "Root-Is-Purelib") != ["false"]:
        faults.append("Root-Is-Purelib is not false")
    if subject.name.build:
        faults.append(f"the file name has the build tag {subject.name.build}")
    if not machine:
        faults.append(f"the platform {subject.name.platform} names no machine that is known here")
    for member in subject.binaries:
        if (found := machine_of(subject.facts[member].beginning)) != machine:
            faults.append(f"{member} is made for {found}")
        if subject.name.abi == "abi3" and re.fullmatch(r"[^/]+/[^/]+(?<!\.abi3)\.so", member):
            faults.append(f"{member} is not of the stable ABI")
    detail = f"{', '.join(stated)}; {len(subject.binaries)} binaries for {machine}"
    return judge("tags", faults, detail)


def versions_agree(subject: AuditSubject) -> AuditCheck:
    """Check that file name, metadata folder, METADATA, ``_version.py`` and the record state one version."""
    version = subject.name.version
    text, numbers = stated_version(subject.archive.read(VERSION_FILE))
    stated: dict[str, object] = {
        "METADATA": ", ".join(header(subject.archive.read(subject.info + "METADATA"), "Version")),
        VERSION_FILE: text,
    }
    if subject.ours:
        point = subject.stated(POINT)
        stated[POINT] = point.get("version") if isinstance(point, dict) else None
    faults = [f"{where} has {found}" for where, found in stated.items() if found != version]
    folders = {name.split("/")[0] for name in subject.archive.members if ".dist-info/" in name}
    faults += [f"there is a folder {folder}" for folder in sorted(folders - {subject.name.dist_info})]
    try:
        if not _is_build_of(version, subject.expected.lock.release.version):
            faults.append(f"the lock's release is {subject.expected.lock.release.version}")
        if numbers != version_tuple(version):
            faults.append(f"{VERSION_FILE} has the tuple {numbers}")
    except InvalidVersion:
        faults.append("the file name's version is not PEP 440's")
    if subject.expected.version not in {None, version}:
        faults.append(f"{subject.expected.version} was expected")
    if faults:
        faults.insert(0, f"the file name has {version}")
    return judge("versions-agree", faults, version)


def _is_build_of(version: str, release: str) -> bool:
    """Tell if *version* is upstream's version *release*, or that with more local parts."""
    one, other = Version(version), Version(release)
    local = other.local.split(".") if other.local else []
    return one.public == other.public and (one.local or "").split(".")[: len(local)] == local


def members_differ_exactly(subject: AuditSubject) -> AuditCheck:
    """Check that exactly the members that the merge changed differ from upstream's, with its bytes."""
    name = "members-differ-exactly"
    if subject.expected.changes is None or not subject.ours:
        return _skipped(subject, name)
    expected = _expected(subject)
    free = (subject.info + "RECORD", *record_members(subject))
    actual = {member: one.sha256 for member, one in subject.facts.items() if member not in free}
    strange = {*subject.unknown, *actual} - set(expected)
    faults = [f"{member} is missing" for member in sorted(set(expected) - set(actual))]
    faults += [f"{member} is neither upstream's nor the merge's" for member in sorted(strange)]
    faults += [
        f"{member} has other bytes than it should"
        for member in sorted(set(actual) & set(expected))
        if actual[member] != expected[member]
    ]
    faults += [
        f"{member} may {'' if old.executable else 'not '}be executed in upstream's wheel"
        for member, old in subject.upstream.archive.members.items()
        if (new := subject.archive.members.get(renamed(subject.upstream, subject.info, member)))
        and new.executable != old.executable
    ]
    faults += [
        f"{member} has the mode {one.mode:o}"
        for member, one in subject.archive.members.items()
        if one.mode not in _MODES
        and not ((old := subject.upstream.archive.members.get(member)) and old.mode == one.mode)
    ]
    faults += [
        f"{path} is not the merged tree's"
        for path, blob in sorted(subject.expected.python.items())
        if path not in subject.archive.members or blob_id(subject.archive.read(path)) != blob
    ]
    faults += [
        f"{member} is a symbolic link in the merged tree, whose content a wheel cannot have"
        for member in sorted(subject.expected.links & set(subject.archive.members))
    ]
    shipped = len(of_kind(subject.expected.changes, "shipped"))
    detail = f"{shipped} changed by the merge, 3 stamped, all others are upstream's"
    by_tree = (
        f"; all {len(subject.expected.python)} Python files are the merged tree's"
        if subject.expected.python
        else ""
    )
    return judge(name, faults, detail + by_tree)


def _expected(subject: AuditSubject) -> dict[str, str]:
    """Return the expected SHA-256 by member, but for RECORD and the sparkwright record."""
    upstream, version = subject.upstream, subject.name.version
    changed = delta(upstream, subject.expected.changes or {})
    contents = {**changed.replaced, **changed.added}
    archive, info = upstream.archive, upstream.info
    contents[info + "METADATA"] = stamp_metadata(archive.read(info + "METADATA"), version)
    tags = upstream.name.tags
    # Natively built binaries may need a newer platform.
    if subject.kernels() is not None and upstream.name.machine == subject.name.machine:
        tags = upstream.name.with_platform(subject.name.platform).tags
    contents[info + "WHEEL"] = stamp_wheel(archive.read(info + "WHEEL"), tags)
    contents[VERSION_FILE] = stamp_version_file(archive.read(VERSION_FILE), version)
    provided = {
        entry["member"]: entry["sha256"] for entry in _provided(subject) if entry["provider"] != UPSTREAM
    }
    kernels = subject.kernels()
    left_out = {one.member for one in kernels.left_out} if kernels else set()
    digests = {
        member: entry.sha256
        for member, entry in upstream.listed.items()
        if member != info + "RECORD" and member not in changed.removed | left_out
    }
    digests |= {
        member: hashlib.sha256(content).hexdigest() for member, content in contents.items()
    } | provided
    return {renamed(upstream, subject.info, member): digest for member, digest in digests.items()}


def renamed(upstream: StockWheel, info: str, member: str) -> str:
    """Return the name of *upstream*'s *member* in a wheel with the metadata folder *info*."""
    old = upstream.info
    return info + member.removeprefix(old) if member.startswith(old) else member


def record_members(subject: AuditSubject) -> frozenset[str]:
    """Return the members that the sparkwright record may consist of, and the bill of materials."""
    files = RECORD_FILES if subject.expected.record is None else {*subject.expected.record, PROVIDERS}
    return frozenset({subject.info + SBOM, *(f"{subject.info}{RECORD_FOLDER}/{file}" for file in files)})


def python_compiles(subject: AuditSubject) -> AuditCheck:
    """Check that the oldest supported Python can compile every Python file that is not upstream's."""
    faults = [f"{member}, {reason}" for member, reason in sorted(subject.errors)]
    count = sum(name.endswith(".py") for name in subject.facts)
    return judge("python-compiles", faults, f"{count} files, as Python {subject.floor} reads them")


def no_conflict_markers(subject: AuditSubject) -> AuditCheck:
    """Check that no file holds conflict markers of a merge."""
    faults = [f"{name} holds a conflict" for name, one in sorted(subject.facts.items()) if one.conflict]
    return judge("no-conflict-markers", faults, "none in any file that is not a binary")


def binaries_identical(subject: AuditSubject) -> AuditCheck:
    """Check that each binary has a provider and equals the file of that provider.

    The provider of a compiled one is the store; a binary that the store lacks is not verified.
    """
    name = "binaries-identical"
    if not subject.ours:
        return _skipped(subject, name)
    provided = _provided(subject)
    members = [entry["member"] for entry in provided]
    faults = [f"{member} names no provider" for member in subject.binaries if member not in members]
    faults += [f"{member} is listed twice" for member in sorted({m for m in members if members.count(m) > 1})]
    for entry in provided:
        faults += _binary_faults(subject, entry)
    faults += _record_faults(subject, provided)
    ours = [entry for entry in provided if entry["provider"] != UPSTREAM]
    unverified = [
        f"{entry['member']} is compiled, and the store has nothing with the key {entry['from'][:16]}"
        for entry in ours
        if entry["member"] not in subject.expected.compiled
    ]
    detail = f"{len(provided) - len(ours)} of {len(provided)} are upstream's, byte for byte"
    return judge(name, faults, f"{detail}; {len(ours)} are what was compiled" if ours else detail, unverified)


def _binary_faults(subject: AuditSubject, entry: Mapping[str, Any]) -> list[str]:
    member, facts = entry["member"], subject.facts.get(entry["member"])
    if facts is None:
        return [f"{member} is listed and absent"]
    if (facts.sha256, facts.size) != (entry["sha256"], entry["size"]):
        return [f"{member} is not what its provider gave"]
    if entry["provider"] != UPSTREAM:
        return _compiled_faults(subject, entry)
    theirs = subject.upstream.listed.get(member)
    if entry["from"] != subject.upstream.archive.path.name:
        return [f"{member} comes from {entry['from']}"]
    if theirs is None or theirs.sha256 != facts.sha256:
        return [f"{member} is not upstream's"]
    return []


def _compiled_faults(subject: AuditSubject, entry: Mapping[str, Any]) -> list[str]:
    if entry["provider"] != COMPILED:
        return [f"{entry['member']} comes from an unknown provider, {entry['provider']}"]
    extension = subject.expected.compiled.get(entry["member"])
    if extension is None or (extension.key, extension.sha256) == (entry["from"], entry["sha256"]):
        return []
    return [f"{entry['member']} is not what was compiled under the key {extension.key[:16]}"]


def _record_faults(subject: AuditSubject, provided: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the contradictions of the record of providers and that of kernels."""
    record = subject.kernels()
    compiled = {one.member: one.key for one in record.binaries if one.kernels == "compiled"} if record else {}
    upstream = {one.member for one in record.binaries if one.kernels == "upstream"} if record else set()
    ours = {entry["member"]: entry["from"] for entry in provided if entry["provider"] != UPSTREAM}
    faults = [f"{KERNELS} does not list {member} as compiled" for member in sorted(set(ours) - set(compiled))]
    faults += [
        f"{KERNELS} has {member} compiled, its provider not" for member in sorted(set(compiled) - set(ours))
    ]
    faults += [
        f"{member} has another native key in {KERNELS} than its provider"
        for member in sorted(set(ours) & set(compiled))
        if ours[member] != compiled[member]
    ]
    theirs = {entry["member"] for entry in provided} - set(ours)
    if record:
        faults += [f"{KERNELS} and providers disagree about {member}" for member in sorted(theirs ^ upstream)]
    return faults


def _provided(subject: AuditSubject) -> list[dict[str, Any]]:
    """Return the entries of the record of providers; refuse a malformed one."""
    shape = {"member": str, "sha256": str, "size": int, "provider": str, "from": str}
    entries = subject.stated(PROVIDERS)
    if not isinstance(entries, list) or not all(
        isinstance(one, dict) and {key: type(value) for key, value in one.items()} == shape for one in entries
    ):
        raise WheelError(f"{PROVIDERS} is malformed", because=f"each entry has to have {', '.join(shape)}")
    return entries


def native_inputs_unchanged(subject: AuditSubject) -> AuditCheck:
    """Check that upstream's binaries are used only where the merge left their sources unchanged."""
    name = "native-inputs-unchanged"
    if subject.expected.changes is None or not subject.ours:
        return _skipped(subject, name)
    native = of_kind(subject.expected.changes, "native")
    record = subject.kernels()
    reasons = record.reasons if record else {}
    theirs = [entry["member"] for entry in _provided(subject) if entry["provider"] == UPSTREAM]
    faults = native_faults(native, {member: reasons.get(member, "") for member in theirs})
    if not native:
        detail = "the merge changed nothing that compiled code comes from"
    else:
        detail = f"the merge changed {', '.join(native)}; {len(theirs)} of upstream's binaries do without"
    return judge(name, faults, detail)


def torch_pinned(subject: AuditSubject) -> AuditCheck:
    """Check that METADATA requires exactly the torch that the binaries were built against."""
    expected = f"torch=={subject.expected.lock.release.torch}"
    metadata = subject.archive.read(subject.info + "METADATA")
    try:
        requirements = [Requirement(value) for value in header(metadata, "Requires-Dist")]
    except InvalidRequirement as error:
        return AuditCheck("torch-pinned", "fail", f"METADATA is malformed: {error}")
    torch = [
        str(one)
        for one in requirements
        if one.name == "torch" and not (one.marker and "extra" in str(one.marker))
    ]
    return judge(
        "torch-pinned", [] if torch == [expected] else [f"it requires {torch}, not {expected}"], expected
    )
