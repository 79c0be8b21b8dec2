"""Compare a wheel's record with the one that this checkout computes for the same build.

Equal inputs give equal records, so they have to be equal byte for byte, but for the decisions of the
builder's machine: a carry that was allowed without a proof.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sparkwright.base.digests import to_json
from sparkwright.wheel.checks import AuditCheck, AuditSubject, judge, record_members, renamed
from sparkwright.wheel.kernels import read_json
from sparkwright.wheel.recorded import CARRIES, PROVIDERS, RECORD_FOLDER, WheelRecord
from sparkwright.wheel.sbom import SBOM, components_of, sbom

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
