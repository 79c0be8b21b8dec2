"""Evidence about a wheel, attached to its digest: what audits, rehearsals and verification runs found.

Each command that finds something writes one file, ``evidence/SHA256/NAME.json`` beside the wheels. The files
are not signed; a promotion names them by digest in its statement and publishes them beside the wheel.
Proofs need no file: they are in the record of the wheel itself, which the audit compares with the merge.
The policy of a channel says which evidence a wheel needs, when the channel expires, and what it keeps.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from sparkwright import __version__
from sparkwright.base.config import Model, decode_json, load_toml, to_builtins
from sparkwright.base.digests import sha256_bytes, sha256_file, to_json
from sparkwright.base.errors import (
    ArchiveError,
    MissingEvidenceError,
    PublishError,
    SparkwrightError,
    UnknownNameError,
    WheelError,
)
from sparkwright.base.events import warn
from sparkwright.companion.inspection import CompanionAudit
from sparkwright.companion.wheel import is_companion
from sparkwright.lock.model import series_of
from sparkwright.lock.runtime import beside, parse_runtime
from sparkwright.publish.channel import stamp
from sparkwright.publish.index import PublishedFile, describe, runtime_page, runtimes_in, wheels_in
from sparkwright.publish.owner_report import Digest, SignedReport, require_signed
from sparkwright.store.disk import storing, write_atomically
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.audit import AuditReport
from sparkwright.wheel.names import parse_name
from sparkwright.wheel.recorded import CARRIES, POINT, RECORD_FOLDER

POLICY_FILE = "channels.toml"
_FORMAT = 1

EvidenceKind = Literal["audit", "proofs", "rehearsal", "rehearsal-older", "verify"]
"""``rehearsal-older`` is one over an older release's wheel for the CPU; a ``rehearsal`` counts as it, too."""


class ChannelPolicy(Model, frozen=True):
    """The policy of one channel.

    Attributes:
        requires: kinds of evidence, in the order in which they are made; of a companion, whose kernels no
            carry changes and no model verifies, only the audit is asked for.
        capability: compute capability that ``verify`` has to have run on, such as ``12.1``; empty for any.
        keep_days: days for which ``channel prune`` keeps wheels and generations; for ever if `None`.
        report_keys: public keys whose owners' reports are taken as ``verify``.
    """

    requires: tuple[EvidenceKind, ...]
    expires_days: Annotated[int, msgspec.Meta(ge=1, le=3650)]
    capability: str = ""
    keep_days: Annotated[int, msgspec.Meta(ge=1)] | None = None
    report_keys: tuple[Digest, ...] = ()


class ChannelPolicies(Model, frozen=True):
    """The policies by channel, ``patchsets/channels.toml``."""

    format: Literal[1]
    channel: dict[str, ChannelPolicy]


def load_policies(path: Path) -> dict[str, ChannelPolicy]:
    """Return the policies by channel in the file at *path*."""
    return load_toml(path, ChannelPolicies, newest_format=_FORMAT).channel


def load_policy(path: Path, channel: str) -> ChannelPolicy:
    """Return the policy of *channel* in the file at *path*; see `load_policies`."""
    policies = load_policies(path)
    if channel not in policies:
        raise UnknownNameError(
            f"channel {channel} has no policy",
            because=f"{path} has {', '.join(policies)}",
            next_step=f"name one of these, or add [channel.{channel}] with requires and expires-days there",
        )
    return policies[channel]


# Evidence --------------------------------------------------------------------------------------------


FOLDER = "evidence"
_MOST_BYTES = 16 << 20
_COMMANDS: dict[EvidenceKind, str] = {
    "audit": "sparkwright audit {wheel}",
    "proofs": "sparkwright carry prove --series {series}, then sparkwright wheel --series {series}",
    "rehearsal": "sparkwright rehearse {wheel}",
    "rehearsal-older": "sparkwright rehearse {wheel}",
    "verify": "sparkwright verify {wheel} --profile full",
}
_REHEARSALS = ("rehearsal", "rehearsal-older")
_REPORT = "report"
_REPORTED = ("quick", "full")
"""The profiles of reports that open a channel."""


class AttachedEvidence(Model, frozen=True):
    """One finding about one wheel.

    Attributes:
        verdict: only what passed is evidence.
        made: when it was found, in UTC; empty where it is part of the wheel.
        detail: what was found, JSON-ready; of ``verify`` the capability, the profile and the checks.
    """

    kind: EvidenceKind
    wheel: str
    made: str
    detail: dict[str, Any]
    files: dict[str, str] = msgspec.field(default_factory=dict)
    verdict: Literal["passed"] = "passed"
    tool: str = f"sparkwright {__version__}"
    format: Literal[1] = 1

    @property
    def data(self) -> bytes:
        """The canonical bytes."""
        return to_json(to_builtins(self)) + b"\n"

    @property
    def sha256(self) -> str:
        """Their digest."""
        return sha256_bytes(self.data)


def attach(
    dist: Path,
    kind: EvidenceKind,
    wheel_sha256: str,
    detail: Mapping[str, Any],
    *,
    name: str = "",
    files: Mapping[str, str] | None = None,
) -> Path:
    """Attach a passed finding to a wheel's digest; return its file.

    A later finding replaces that of its *name*, which is *kind* by default.
    """
    found = AttachedEvidence(
        kind=kind,
        wheel=wheel_sha256,
        made=stamp(datetime.now(UTC)),
        detail=dict(detail),
        files=dict(files or {}),
    )
    path = dist / FOLDER / wheel_sha256 / f"{name or kind}.json"
    with storing(f"writing {path}", instead="publish into another folder"):
        write_atomically(path, found.data)
    return path


def attach_audit(dist: Path, report: AuditReport | CompanionAudit) -> None:
    """Attach an audit to its wheel's digest if it passed; what it skipped is stated."""
    if report.passed and report.kind != "upstream":
        attach(dist, "audit", report.sha256, audit_detail(report.to_json()))


def audit_detail(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what evidence states of an audit's *report* as JSON: each verdict, and what was not checked."""
    checks = {check["name"]: check["verdict"] for check in report["checks"]}
    return {"checks": checks, "unchecked": list(report["unchecked"])}


def attach_rehearsal(
    dist: Path, tree: str, detail: Mapping[str, Any], files: Mapping[str, str], given: Sequence[Path] = ()
) -> list[str]:
    """Attach a passed rehearsal of the merged *tree* to the wheels in *dist* that are of it.

    *detail* is what was found: ``complete`` is true if no check was left out, and ``exact`` if the tree
    itself was served, else it is evidence of the kind ``rehearsal-older``. Wheels *given* are in other
    folders.

    Returns:
        the names of these wheels.
    """
    kind: EvidenceKind = "rehearsal" if detail["exact"] else "rehearsal-older"
    fitting = {
        sha256_file(wheel): wheel.name
        for wheel in (*wheels_in(dist), *given)
        if tree and merged_tree(wheel) == tree
    }
    for sha256 in fitting:
        attach(dist, kind, sha256, {"tree": tree, **detail}, files=files)
    return list(fitting.values())


def attach_report(dist: Path, signed: SignedReport) -> Path | None:
    """Attach an owner's report of a run that passed to the digest of its wheel, once; `None` for another one.

    It is attached as a whole: each promotion verifies the signature, and asks the channel for its keys.
    """
    wheel = signed.report.wheel
    if wheel is None or signed.report.verdict != "pass":
        return None
    name, detail = f"verify-report-{signed.digest[:16]}", {_REPORT: to_builtins(signed)}
    path = dist / FOLDER / wheel.sha256 / f"{name}.json"
    known = _read(path)
    if known and (known.kind, known.wheel, to_json(known.detail)) == (
        "verify",
        wheel.sha256,
        to_json(detail),
    ):
        return path
    return attach(dist, "verify", wheel.sha256, detail, name=name)


def require_evidence(
    wheel: Path, sha256: str, channel: str, policy: ChannelPolicy, folder: Path, *, runtime: str = ""
) -> tuple[AttachedEvidence, ...]:
    """Return the evidence about *wheel* that *policy* requires.

    It is in *folder*, with that of all wheels; ``verify`` has to have run with the locked *runtime* that is
    promoted with the wheel, if any.
    """
    attached = _attached(folder / sha256)
    found: list[AttachedEvidence] = []
    missing: list[tuple[str, str]] = []
    for kind in policy.requires:
        if is_companion(wheel.name) and kind != "audit":
            continue
        if kind == "proofs":
            proofs, reason = _proofs(wheel, sha256)
            candidates = [proofs] if proofs else []
        else:
            kinds = _REHEARSALS if kind in _REHEARSALS else (kind,)
            candidates = [one for one in attached if one.kind in kinds and one.wheel == sha256]
            refusals = [_refusal(one, kind, policy, runtime) for one in candidates]
            reason = next(filter(None, refusals), f"{folder / sha256} has none")
            candidates = [one for one, no in zip(candidates, refusals, strict=True) if not no]
        if candidates:
            found.append(max(candidates, key=lambda one: one.made))
        else:
            where = f" on a card of {policy.capability}" if kind == "verify" and policy.capability else ""
            if kind == "rehearsal" and "rehearsal-older" in reason:
                where = ", once its release has a wheel for the CPU; a policy may ask for rehearsal-older"
            command = _COMMANDS[kind].format(wheel=wheel, series=stated_series(wheel))
            missing.append((f"{kind}: {reason}", command + where))
    if missing:
        raise MissingEvidenceError(
            f"{wheel.name} cannot go to {channel}",
            because="\n".join(["its policy requires evidence that is missing", *(why for why, _ in missing)]),
            next_step="\n".join(command for _, command in missing),
        )
    return tuple(found)


def record_of(wheel: Path, file: str) -> Any:
    """Return the JSON value of *file* in the wheel's own record; `None` if it has none."""
    with contextlib.suppress(ArchiveError, WheelError, ValueError), open_archive(wheel) as archive:
        member = f"{parse_name(wheel.name).dist_info}/{RECORD_FOLDER}/{file}"
        if member in archive.members:
            return json.loads(archive.read(member))
    return None


def stated_series(wheel: Path) -> str:
    """Return the series that the record of *wheel* names, else the line of its version; empty for neither."""
    point = record_of(wheel, POINT)
    series = point.get("series") if isinstance(point, dict) else None
    if isinstance(series, str) and series:
        return series
    with contextlib.suppress(WheelError):
        return series_of(parse_name(wheel.name).version)
    return ""


def install_command(wheel: Path) -> str:
    """Return the command that installs *wheel* with its locked runtime, or the one that locks it."""
    runtime = beside(wheel)
    if not runtime.is_file():
        return f"sparkwright lock runtime --series {stated_series(wheel)}"
    folder, locked = shlex.quote(str(wheel.parent)), shlex.quote(str(runtime))
    return f"pip install --no-deps --require-hashes --find-links {folder} -r {locked}"


def merged_tree(wheel: Path) -> str:
    """Return the git id of the merged tree that *wheel* says it is of; empty if it says none."""
    point = record_of(wheel, POINT)
    merge = point.get("merge") if isinstance(point, dict) else None
    merged = merge.get("merged") if isinstance(merge, dict) else None
    return merged if isinstance(merged, str) else ""


def _attached(folder: Path) -> list[AttachedEvidence]:
    """Return what is attached in *folder*; files that are no passed evidence are left out."""
    return [one for path in sorted(folder.glob("*.json")) if (one := _read(path))]


def _read(path: Path) -> AttachedEvidence | None:
    """Return the evidence in the file at *path*; `None` if it is none."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        if path.stat().st_size <= _MOST_BYTES:
            return decode_json(path.read_bytes(), AttachedEvidence)
    return None


def _refusal(evidence: AttachedEvidence, kind: EvidenceKind, policy: ChannelPolicy, runtime: str) -> str:
    """Return the reason for which *evidence* is not the *kind* that *policy* asks for; empty if it is."""
    if evidence.kind == "audit":
        return "" if not evidence.detail.get("unchecked") else "the audit skipped checks"
    if evidence.kind == "verify" and _REPORT in evidence.detail:
        return _report_refusal(evidence, policy, runtime)
    if not evidence.detail.get("complete"):
        return f"the {evidence.kind} ran only some checks, or a short profile"
    if kind == "rehearsal" and evidence.kind != kind:
        return f"it was made on the older release {evidence.detail.get('version')}, which is rehearsal-older"
    capability = evidence.detail.get("capability") or "unknown"
    if evidence.kind == "verify" and policy.capability not in {"", capability}:
        return f"the verification ran on capability {capability}"
    other = evidence.kind == "verify" and evidence.detail.get("runtime", "") != runtime
    return _OTHER_RUNTIME if other else ""


_OTHER_RUNTIME = "the verification ran with other packages than the locked runtime that is promoted"


def _report_refusal(evidence: AttachedEvidence, policy: ChannelPolicy, runtime: str) -> str:
    """Return the reason for which an owner's report opens no channel of *policy*; empty if it does."""
    try:
        signed = decode_json(to_json(evidence.detail[_REPORT]), SignedReport)
        require_signed(signed, "the owner's report")
    except (SparkwrightError, msgspec.MsgspecError, ValueError) as error:
        return f"its owner's report is refused: {error}"
    report, machine, wheel = signed.report, signed.report.machine, signed.report.wheel
    fitting = machine.kind == "card" and policy.capability in {"", machine.capability}
    refusals = (
        (report.key in policy.report_keys, f"report-keys of the channel does not list the key {report.key}"),
        (wheel and wheel.sha256 == evidence.wheel, "the owner's report is of another wheel"),
        (fitting, f"the owner's report is of {machine.name}, capability {machine.capability or 'unknown'}"),
        (report.verdict == "pass", f"the verdict of the owner's report is {report.verdict}"),
        (report.complete and report.profile in _REPORTED, "the owner's report is of only some checks"),
        (wheel and wheel.runtime == runtime, _OTHER_RUNTIME),
    )
    return next((why for holds, why in refusals if not holds), "")


def _proofs(wheel: Path, sha256: str) -> tuple[AttachedEvidence | None, str]:
    """Return the proofs in the record of *wheel*; else the reason for which there are none."""
    record = record_of(wheel, CARRIES)
    carries: Sequence[Any] = record.get("carries", ()) if isinstance(record, dict) else ()
    if not isinstance(record, dict) or not all(isinstance(carry, dict) for carry in carries):
        return None, "the wheel has no record of carries"
    if unproved := [str(carry.get("name")) for carry in carries if "unproved" in carry]:
        return None, f"the wheel was built without a proof of {', '.join(unproved)}"
    proofs = {str(carry.get("name")): carry.get("proof") for carry in carries}
    detail = {name: proof.get("key") for name, proof in proofs.items() if isinstance(proof, dict)}
    evidence = AttachedEvidence(kind="proofs", wheel=sha256, made="", detail={"proofs": detail})
    return evidence, ""


# What is promoted ------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A wheel that a channel's policy accepts."""

    wheel: Path
    file: PublishedFile
    evidence: tuple[AttachedEvidence, ...] = ()
    runtime: bytes = b""


def gather(wheel: Path, channel: str, policy: ChannelPolicy, evidence: Path, patchsets: Path) -> Candidate:
    """Return *wheel* with its evidence and runtime, as *policy* requires.

    A runtime that lies beside it is taken, else that of its series in *patchsets*.
    """
    file, _ = describe(wheel)
    runtime = _runtime(wheel, file, patchsets)
    digest = parse_runtime(runtime.decode(), f"the runtime of {wheel.name}").digest if runtime else ""
    found = require_evidence(wheel, file.sha256, channel, policy, evidence, runtime=digest)
    if not runtime and file.project == "vllm":
        warn(
            f"{wheel.name} is promoted without a locked runtime: outside a checkout it is served unlocked",
            next_step=f"sparkwright lock runtime --series {stated_series(wheel)}, then promote it again",
        )
    return Candidate(wheel, file, found, runtime)


def _runtime(wheel: Path, file: PublishedFile, patchsets: Path) -> bytes:
    """Return the locked runtime of a wheel: the file beside it, else that of its series."""
    path = beside(wheel)
    if not path.is_file():
        page = runtime_page(file, runtimes_in(patchsets))
        return page[1] if page else b""
    data = path.read_bytes()
    own = [one.hashes for one in parse_runtime(data.decode(), str(path)).packages if one.name == file.project]
    if own != [(file.sha256,)]:
        raise PublishError(
            f"{path.name} is not the runtime of the wheel beside it",
            because=f"it does not name SHA-256 {file.sha256}",
            next_step="write it again: sparkwright publish",
        )
    return data
