"""Audit a wheel: it has to hold exactly the expected members, and nothing else.

Start reading at `audit`. Nothing in the wheel is trusted; upstream's wheel is trusted once its
digest is the lock's, and everything is compared with that and with the merge.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sparkwright.base.digests import sha256_file, to_json
from sparkwright.base.errors import ArchiveError, AuditError, SparkwrightError
from sparkwright.base.events import emit
from sparkwright.native.device_code import Tally
from sparkwright.wheel import checks
from sparkwright.wheel.archive import Archive, open_archive
from sparkwright.wheel.binaries import (
    BinaryReport,
    Expectation,
    inspect_binaries,
)
from sparkwright.wheel.checks import AuditCheck, AuditSubject, judge, record_members, renamed
from sparkwright.wheel.kernels import KERNELS, read_json
from sparkwright.wheel.names import parse_name
from sparkwright.wheel.native_checks import NATIVE_CHECKS
from sparkwright.wheel.recorded import CARRIES, PROVIDERS, RECORD_FOLDER, SBOM, WheelRecord
from sparkwright.wheel.source import StockWheel, open_source
from sparkwright.wheel.survey import check_sizes, floor_of, survey, syntax_errors


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        kind: ``sparkwright`` for a wheel with a sparkwright record, ``upstream`` for one without.
        arch: the card that its kernels were judged for; empty if binaries were not inspected.
    """

    filename: str
    sha256: str
    size: int
    kind: str
    checks: tuple[AuditCheck, ...]
    seconds: float
    compiled: bool = False
    arch: str = ""
    binaries: tuple[BinaryReport, ...] = ()

    @property
    def kernels(self) -> Tally:
        """The kernels of all its binaries."""
        return sum((one.kernels for one in self.binaries), Tally())

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Checks that were left open, or skipped although they apply to this kind of wheel."""
        if self.kind == "upstream":
            return ()
        native = {name for name, _ in NATIVE_CHECKS}
        return tuple(
            check.name
            for check in self.checks
            if check.verdict == "unverified"
            or (check.verdict == "skipped" and (self.compiled or check.name not in native))
        )

    @property
    def failures(self) -> tuple[AuditCheck, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.verdict == "fail")

    @property
    def unverified(self) -> tuple[AuditCheck, ...]:
        """The checks that were left open, because an input to compare the wheel with is missing."""
        return tuple(check for check in self.checks if check.verdict == "unverified")

    @property
    def passed(self) -> bool:
        """Tell if no check failed and none was left open."""
        return not self.failures and not self.unverified

    def require(self) -> None:
        """Raise if a check failed."""
        if self.failures:
            raise AuditError(
                f"{self.filename} failed its audit",
                because="; ".join(f"{check.name}: {check.detail}" for check in self.failures),
                next_step="do not install or publish it; change the carry at fault, or build it again",
            )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            **asdict(self),
            "kernels": asdict(self.kernels),
            "passed": self.passed,
            "unchecked": list(self.unchecked),
        }


@dataclass(frozen=True)
class _Kernels:
    """The fields of an `AuditReport` about kernels."""

    compiled: bool = False
    arch: str = ""
    binaries: tuple[BinaryReport, ...] = ()


def audit(wheel: Path, expectation: Expectation) -> AuditReport:
    """Compare *wheel* with *expectation*: run every check, whatever the others found.

    Raises:
        ArchiveError: *wheel* or upstream's wheel does not exist.
        WheelError: the name of *wheel* is not a wheel's.
        SparkwrightError: a tool that the checks need is missing or fails, whatever *wheel* is.
    """
    started = time.monotonic()
    name = parse_name(wheel.name)
    for path in (wheel, expectation.upstream_wheel):
        if not path.is_file():
            raise ArchiveError(f"{path.name} cannot be audited", because=f"there is no file {path}")
    with ThreadPoolExecutor(1, "digest") as pool:
        digest = pool.submit(sha256_file, wheel)
        same = wheel.samefile(expectation.upstream_wheel)
        upstream = digest if same else pool.submit(sha256_file, expectation.upstream_wheel)
        try:
            with open_archive(wheel) as archive:
                kind = "sparkwright" if checks.is_ours(archive, name) else "upstream"
                found, kernels = _all(archive, expectation, ours=kind == "sparkwright")
        except ArchiveError as error:
            kind, kernels = "unreadable", _Kernels()
            found = (AuditCheck("archive-safe", "fail", str(error)), *_skipped("the archive cannot be read"))
        origin = _origin(expectation, digest.result() if kind == "upstream" else upstream.result(), kind)
    report = AuditReport(
        wheel.name, digest.result(), wheel.stat().st_size, kind, (origin, *found),
        round(time.monotonic() - started, 3),
        kernels.compiled, kernels.arch, kernels.binaries,
    )  # fmt: skip
    emit("wheel.audited", filename=wheel.name, sha256=report.sha256, passed=report.passed,
         failures=[check.name for check in report.failures], seconds=report.seconds)  # fmt: skip
    return report


def _origin(expectation: Expectation, actual: str, kind: str) -> AuditCheck:
    """Check that upstream's wheel, or the audited one if it is upstream's, has the lock's digest."""
    expected = expectation.artifact.sha256
    if actual != expected:
        subject = "this wheel has no sparkwright record, and" if kind == "upstream" else "upstream's wheel:"
        return AuditCheck(
            "upstream-digest", "fail", f"{subject} its SHA-256 is {actual}, the lock's {expected}"
        )
    what = "this is upstream's wheel, as locked" if kind == "upstream" else "upstream's wheel is the lock's"
    return AuditCheck("upstream-digest", "pass", what)


def _all(
    archive: Archive, expectation: Expectation, *, ours: bool
) -> tuple[tuple[AuditCheck, ...], _Kernels]:
    """Run every check but the one of upstream's digest, which other threads compute meanwhile."""
    floor = floor_of(expectation.lock.release.requires_python)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkwright-audit-")))
        try:
            upstream = stack.enter_context(open_source(expectation.upstream_wheel))
        except SparkwrightError as error:
            reason = f"upstream's wheel cannot be read: {error}"
            return (AuditCheck("archive-safe", "skipped", reason), *_skipped(reason)), _Kernels()
        members = _known(archive, expectation, upstream) if ours else frozenset(archive.members)
        check_sizes(archive, members)
        facts, numbers = survey(archive, members, scratch, upstream if ours else None)
        errors = tuple((numbers[file], reason) for file, reason in syntax_errors(scratch, floor))
        inspected = None
        if expectation.native is not None:
            digests = {name: one.sha256 for name, one in facts.items() if one.binary and not one.damage}
            inspected = inspect_binaries(archive, digests, sorted(digests), expectation.native)
        subject = AuditSubject(
            archive, parse_name(archive.path.name), facts, tuple(sorted(set(archive.members) - members)),
            upstream, expectation, floor, errors, ours=ours,
            inspected=inspected,
        )  # fmt: skip
        found = (
            checks.archive_safe(subject),
            *(_run(name, partial(check, subject)) for name, check in CHECKS),
        )
        return (*found, *_run_native_checks(subject)), _about_kernels(subject)


def _known(archive: Archive, expectation: Expectation, upstream: StockWheel) -> frozenset[str]:
    """Return the members with expected names: others are refused unread. Without a merge, return all."""
    if expectation.changes is None:
        return frozenset(archive.members)
    info = parse_name(archive.path.name).dist_info + "/"
    names = {checks.renamed(upstream, info, member) for member in upstream.archive.members}
    record = (f"{info}{RECORD_FOLDER}/{file}" for file in checks.RECORD_FILES)
    names |= {*expectation.changes, info + SBOM, *record}
    return frozenset(names & set(archive.members))


def _about_kernels(subject: AuditSubject) -> _Kernels:
    members = subject.archive.members
    compiled = subject.ours and f"{subject.info}{RECORD_FOLDER}/{KERNELS}" in members
    if (inspected := subject.inspected) is None:
        return _Kernels(compiled)
    reports = [
        BinaryReport(
            member, members[member].size, members[member].compressed_size, inspected.tally(member),
            one.device.cubins, one.device.ptx,
        )
        for member, one in inspected.found.items()
    ]  # fmt: skip
    reports.sort(key=lambda report: (-report.size, report.member))
    return _Kernels(compiled, inspected.expectation.arch, tuple(reports))


def _run_native_checks(subject: AuditSubject) -> tuple[AuditCheck, ...]:
    """Run all of `NATIVE_CHECKS`; skip them where binaries were not inspected."""
    if (inspected := subject.inspected) is None:
        reason = "no tools to inspect binaries were given"
        return tuple(AuditCheck(name, "skipped", reason) for name, _ in NATIVE_CHECKS)
    return tuple(_run(name, partial(check, subject, inspected)) for name, check in NATIVE_CHECKS)


def _run(name: str, check: Callable[[], AuditCheck]) -> AuditCheck:
    try:
        return check()
    except SparkwrightError as error:
        return AuditCheck(name, "fail", str(error))
    except RecursionError as error:
        return AuditCheck(name, "fail", f"a file is nested too deeply to be read: {error}")


def _skipped(reason: str) -> tuple[AuditCheck, ...]:
    return tuple(AuditCheck(name, "skipped", reason) for name, _ in (*CHECKS, *NATIVE_CHECKS))


# The record against the one that is computed here -------------------------------------------------

# Equal inputs give equal records, so they have to be equal byte for byte, but for the decisions of the
# builder's machine: a carry that was allowed without a proof.

ALLOWED = "allowed by the builder"
"""The value of ``unproved`` for a carry that went in without a proof."""


def provenance_agrees(subject: AuditSubject) -> AuditCheck:
    """Check that the metadata folder holds no other file and that the record equals this checkout's."""
    name = "provenance-agrees"
    if not subject.ours:
        return AuditCheck(name, "skipped", "this is upstream's wheel")
    info, upstream = subject.info, subject.upstream
    allowed = {renamed(upstream, info, member) for member in upstream.archive.members}
    allowed |= {info + "RECORD", *record_members(subject)}
    faults = [
        f"{member} does not belong there"
        for member in sorted(subject.archive.members)
        if member.startswith(info) and member not in allowed
    ]
    if subject.expected.record is None:
        skipped = AuditCheck(name, "skipped", "no merge was given to compare it with")
        return judge(name, faults, "") if faults else skipped
    unverified: list[str] = []
    for file, expected in sorted({**subject.expected.record, PROVIDERS: None}.items()):
        if f"{info}{RECORD_FOLDER}/{file}" not in subject.archive.members:
            faults.append(f"{file} is missing")
        elif expected is None and file != PROVIDERS:
            unverified.append(f"{file} cannot be computed from this checkout and this store")
        else:
            difference, left_open = _compare(subject, file, expected)
            faults += [f"{file}: {difference}"] if difference else []
            unverified += [f"{file}: {one}" for one in left_open]
    return judge(name, faults, f"{len(subject.expected.record) + 1} files equal this checkout's", unverified)


def sbom_agrees(subject: AuditSubject) -> AuditCheck:
    """Check that the bill of materials is the one that this checkout's lock and record give.

    Its binaries have to be those of the wheel's own record, which other checks compare with the binaries.
    """
    from sparkwright.wheel.sbom import components_of, sbom

    name = "sbom-agrees"
    if not subject.ours:
        return AuditCheck(name, "skipped", "this is upstream's wheel")
    if subject.info + SBOM not in subject.archive.members:
        return judge(name, [f"there is no {SBOM}"], "")
    if subject.expected.record is None:
        return AuditCheck(name, "skipped", "no merge was given to compare it with")
    # For a file that is unknown here, which `provenance_agrees` says, the wheel's own.
    files = {
        file: subject.stated(file) if expected is None else expected
        for file, expected in {**subject.expected.record, PROVIDERS: None}.items()
    }
    expected = sbom(WheelRecord.of(files), subject.expected.lock)
    if subject.archive.read(subject.info + SBOM) == expected:
        return judge(name, [], f"{len(components_of(json.loads(expected)))} components")
    found = components_of(read_json(subject.archive, subject.info + SBOM))
    wanted = components_of(json.loads(expected))
    differing = [
        f"{reference}: {place}"
        for reference, component in wanted.items()
        if (place := next(_differences(found.get(reference), component, "component"), ""))
    ]
    strange = [f"{reference} does not belong there" for reference in found if reference not in wanted]
    faults = [f"{one} differs from this checkout's" for one in differing] + strange
    return judge(name, faults or ["it differs from this checkout's"], "")


def _compare(subject: AuditSubject, file: str, expected: Any) -> tuple[str, list[str]]:
    """Return the first difference of *file*, empty if there is none, and the values left unconfirmed."""
    found, left_open = subject.stated(file), list[str]()
    if file == PROVIDERS:  # another check compares its entries with the binaries
        expected = sorted(found, key=_member) if isinstance(found, list) else []
    elif file == CARRIES:
        expected, left_open = _as_far_as_known(found, expected)
    wanted = to_json(expected)
    if subject.archive.read(f"{subject.info}{RECORD_FOLDER}/{file}") == wanted:
        return "", left_open
    place = next(_differences(found, json.loads(wanted)), "")
    return (
        f"{place} differs from this checkout's" if place else "its JSON is formatted differently",
        left_open,
    )


def _member(entry: Any) -> str:
    return str(entry.get("member")) if isinstance(entry, dict) else ""


def _as_far_as_known(found: Any, expected: Any) -> tuple[Any, list[str]]:
    """Return *expected* with the builder's decisions as *found*, and the proofs that are unknown here."""
    carries = found.get("carries") if isinstance(found, dict) else None
    if not isinstance(carries, list) or len(carries) != len(expected["carries"]):
        return expected, []
    left_open: list[str] = []
    known = []
    for theirs, ours in zip(carries, expected["carries"], strict=True):
        wanted, proof = dict(ours), theirs.get("proof") if isinstance(theirs, dict) else None
        if not isinstance(theirs, dict) or not {"proof", "unproved"} & set(ours):
            pass
        elif theirs.get("unproved") == ALLOWED and proof is None:
            wanted.pop("proof", None)
            wanted["unproved"] = ALLOWED
        elif isinstance(proof, dict) and "proof" not in ours:
            del wanted["unproved"]
            wanted["proof"] = {"key": proof.get("key"), "verdict": proof.get("verdict")}
            left_open.append(f"the proof of {ours['name']} is neither beside its carry nor in this store")
        known.append(wanted)
    return {**expected, "carries": known}, left_open


def _differences(found: Any, expected: Any, place: str = "") -> Iterator[str]:
    """Yield the dotted paths at which *found* differs from *expected*; a carry goes by its name."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted({*found, *expected}):
            below = f"{place}.{key}".removeprefix(".")
            if key not in found or key not in expected:
                yield below
            else:
                yield from _differences(found[key], expected[key], below)
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            label = theirs.get("name", number) if isinstance(theirs, dict) else number
            yield from _differences(mine, theirs, f"{place}.{label}".removeprefix("."))
    elif type(found) is not type(expected) or found != expected:
        yield place or "all of it"


# The order of checks -------------------------------------------------------------------------------

CHECKS: tuple[tuple[str, Callable[[AuditSubject], AuditCheck]], ...] = (
    ("record-complete", checks.record_complete),
    ("tags", checks.tags),
    ("versions-agree", checks.versions_agree),
    ("provenance-agrees", provenance_agrees),
    ("sbom-agrees", sbom_agrees),
    ("members-differ-exactly", checks.members_differ_exactly),
    ("python-compiles", checks.python_compiles),
    ("no-conflict-markers", checks.no_conflict_markers),
    ("binaries-identical", checks.binaries_identical),
    ("native-inputs-unchanged", checks.native_inputs_unchanged),
    ("torch-pinned", checks.torch_pinned),
)
