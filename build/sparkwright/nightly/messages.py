"""The texts of a proposal's commits: evidence in plain lines, the same for the same findings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sparkwright.base.text import clean
from sparkwright.lock.bump import LockChange
from sparkwright.nightly.model import CarryNight, TargetNight, UpstreamCommit

BASE_TRAILER = "Proposal-Base"
_MOST_HAZARDS = 12
_MOST_CHARACTERS = 300
# By these a forge closes our issues and links our pull requests, where upstream's words are about its own.
_REFERENCES = re.compile(r"\bGH-(?=\d)|#(?=\d)", re.IGNORECASE)


def quiet(text: str) -> str:
    """Return upstream's *text* as one line without mentions, links or paragraph breaks."""
    line = " ".join(clean(text, _MOST_CHARACTERS).split())
    return _REFERENCES.sub("pull ", line).replace("@", "(at)").replace("://", ":")


def carry_message(found: TargetNight, carry: CarryNight, *, patch: str) -> str:
    """Return the message of the commit that adds the revision *patch* of *carry*."""
    return _paragraphs(
        f"Refresh {carry.name} for vLLM {found.target.version}",
        f"Its change merged onto the release is recorded as {patch}, written against the release itself.",
        "\n".join(evidence(carry)),
    )


def superseded_message(found: TargetNight, carry: CarryNight) -> str:
    """Return the message of the commit that declares *carry* superseded."""
    return _paragraphs(
        f"Declare {carry.name} superseded from vLLM {found.target.version} on",
        "Its probe passes on the pristine tree: the release does not have the defect. For older releases "
        "the carry stays. Take this commit out if the defect can still be shown.",
        "\n".join(evidence(carry)),
    )


def pin_message(found: TargetNight, changes: Sequence[LockChange], notes: Sequence[str]) -> str:
    """Return the message of the commit that moves the lock."""
    moved = [f"- {change.key}: {change.old or 'absent'} -> {change.new or 'absent'}" for change in changes]
    return _paragraphs(
        f"Pin vLLM {found.target.version}",
        f"No carry holds it back: {_counted(found)}.",
        "\n".join([*_made(found), *(f"- not refreshed: {quiet(note)}" for note in notes)]),
        "\n".join(moved),
    )


def held_message(found: TargetNight, pin: str, names: Sequence[str], notes: Sequence[str]) -> str:
    """Return the message of the empty commit that says which carries, by *names*, keep the lock at *pin*."""
    held = [carry for carry in found.carries if carry.name in names]
    lines = []
    for carry in held:
        since = f" since {carry.red_since}" if carry.red_since else ""
        keeps = f"; it keeps its revision that is good on {carry.holds}" if carry.holds else ""
        lines += [f"- {carry.name} holds {found.target.version} back{since}: {carry.judgement}{keeps}"]
        lines += [f"  {line}" for line in evidence(carry)]
    return _paragraphs(
        f"Stay at vLLM {pin}: {_few(names)} held back",
        "The lock is unchanged and no carry is dropped. The revisions below are good, and wait for the rest.",
        "\n".join(lines),
        "\n".join([*_made(found), *(f"- not refreshed: {quiet(note)}" for note in notes)]),
    )


def signed(message: str, trailers: Mapping[str, str]) -> str:
    """Return *message* with *trailers* as its last paragraph."""
    return f"{message}\n\n" + "\n".join(f"{key}: {value}" for key, value in trailers.items())


def evidence(carry: CarryNight) -> list[str]:
    """Return what speaks for the judgement on *carry*, one line each."""
    before = f" (before: {carry.previous})" if carry.previous not in {None, carry.outcome} else ""
    lines = [f"Outcome: {carry.outcome}{before}", f"Judgement: {carry.judgement}"]
    if carry.finding:
        lines.append(f"Probe: {quiet(carry.finding)}")
    if carry.conflicts:
        lines.append(f"Conflicts: {quiet(', '.join(carry.conflicts))}")
    if carry.culprit is not None:
        lines.append(f"Upstream: {culprit_line(carry.culprit)}")
    if carry.hazards:
        named = [f"{hazard.path}:{hazard.name} ({hazard.kind})" for hazard in carry.hazards]
        lines += ["Look at:", *(f"  {quiet(name)}" for name in named[:_MOST_HAZARDS])]
        if len(named) > _MOST_HAZARDS:
            lines.append(f"  and {len(named) - _MOST_HAZARDS} more")
    return lines


def culprit_line(culprit: UpstreamCommit) -> str:
    """Return the upstream commit that changed an outcome, or its release, on one line."""
    if not culprit.commit:
        return f"release {quiet(culprit.release)}"
    return f"{culprit.commit[:12]} {quiet(culprit.subject)} ({quiet(culprit.author)}, {culprit.date[:10]})"


def _made(found: TargetNight) -> list[str]:
    """Return what is known of the target's wheel and its rehearsal."""
    build, rehearsal = found.build, found.rehearsal
    if build.status == "built":
        audited = "audited" if build.audited else "not audited"
        left = f", without {', '.join(build.left_out)}" if build.left_out else ""
        lines = [f"- wheel {build.version}, SHA-256 {build.sha256}, {audited}{left}"]
    else:
        lines = [f"- wheel {build.status}: {quiet(build.reason)}"]
    why = f": {quiet(rehearsal.reason)}" if rehearsal.reason else ""
    lines.append(f"- rehearsal {rehearsal.status}{why}")
    if found.kernels.status != "skipped":
        lines.append(f"- Triton kernels {found.kernels.status}: {quiet(found.kernels.reason)}")
    if found.tests.status == "failed":
        lines.append(f"- upstream's tests failed: {quiet(found.tests.reason)}")
    return lines


def _counted(found: TargetNight) -> str:
    counts: dict[str, int] = {}
    for carry in found.carries:
        counts[carry.judgement] = counts.get(carry.judgement, 0) + 1
    return ", ".join(f"{count} {judgement}" for judgement, count in counts.items())


def _few(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
