"""A night as Markdown: for a pull request, and for the summary of a job.

Words from upstream stand in code spans. There no forge renders HTML, loads an image, mentions a person or
links an issue of this project because upstream's subject names one of upstream's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sparkwright.base.text import clean, human_seconds, human_size
from sparkwright.nightly import words
from sparkwright.nightly.model import CarryNight, Night, Standing, TargetNight, UpstreamCommit, standing_of
from sparkwright.nightly.propose import Proposal

_LONGEST = 500
_HAZARDS = 10
_NIGHTS = 20
_TICKS = re.compile("`+")
_BARS = {Standing.GOOD: "▁", Standing.DROP: "▄", Standing.RED: "█"}


def code(text: str) -> str:
    """Return *text* as one code span, also within a table; empty for nothing."""
    line = " ".join(clean(text, _LONGEST).split())
    if not line:
        return ""
    # A table splits its cells at bars in code spans too, and takes a backslash before one away.
    line = line.replace("|", "\N{BROKEN BAR}")
    fence = "`" * (1 + max((len(run) for run in _TICKS.findall(line)), default=0))
    space = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"


def render_markdown(night: Night, *, upstream: str, proposals: Sequence[Proposal | str] = ()) -> str:
    """Return *night* as Markdown; see `sparkwright.nightly.report.render_html`."""
    blocks = [f"## {words.VERDICTS[night.verdict]}", _lead(night)]
    blocks += [_bullets(night.reasons)] if night.reasons else []
    for found in night.targets:
        blocks += _target(found, upstream)
    blocks += [block for one in proposals for block in _proposal(one)]
    if night.pulls:
        rows = [
            (f"`{pull.number}`", code(pull.carry), pull.state, code(pull.recorded[:12]), code(pull.head[:12]),
             code(pull.detail))
            for pull in night.pulls
        ]  # fmt: skip
        heads = ("pull request", "carry", "state", "recorded", "now", "what changed")
        blocks += ["### Pull requests that moved", _table(heads, rows)]
    if night.notes:
        blocks += ["### What could not be found out", _bullets(night.notes)]
    return "\n\n".join(blocks) + "\n"


def _lead(night: Night) -> str:
    tally = f"{words.tally(night)}. " if night.targets else ""
    return (
        f"{tally}Night {code(night.id)} of {code(night.date)}, patchset {code(night.patchset)}, pinned at "
        f"{code(night.pin)}, took {human_seconds(night.seconds)}."
    )


def _target(found: TargetNight, upstream: str) -> Iterator[str]:
    target = found.target
    against = f", compared with {code(found.previous.label)}" if found.previous else ""
    at = f", commit {_commit(target.commit, upstream)}" if target.commit else ""
    yield f"### {code(target.label)}"
    yield f"{target.kind.capitalize()} {code(target.version)}{at}{against}."
    yield "\n".join(_made(found))
    rows = [
        (
            f"{words.SYMBOLS[carry.standing]} {code(carry.name)}",
            words.JUDGEMENTS[carry.judgement] + (" (new)" if carry.changed else ""),
            words.change_of(carry),
            _strip(carry),
            str(carry.days_red or "–"),  # noqa: RUF001 - a dash stands for nothing
            code(words.told(carry)),
        )
        for carry in found.carries
    ]
    yield _table(("carry", "judgement", "outcome", "last nights", "days red", "what was found"), rows)
    for carry in found.carries:
        if carry.standing is Standing.RED or carry.culprit or carry.hazards:
            meaning, judged = words.MEANINGS[carry.judgement], words.JUDGEMENTS[carry.judgement]
            yield f"#### {words.SYMBOLS[carry.standing]} {code(carry.name)}: {judged}"
            yield f"{meaning[0].upper()}{meaning[1:]}."
            yield "\n".join(_evidence(carry, upstream))
    if found.pins:
        moved = [tuple(map(code, (pin.name, pin.before, pin.after, pin.declared_in))) for pin in found.pins]
        yield _table(("dependency that moved", "before", "now", "stated in"), moved)
    if found.archs:
        lists = [
            tuple(map(code, (arch.name, ", ".join(arch.added), ", ".join(arch.removed), arch.declared_in)))
            for arch in found.archs
        ]
        yield _table(("architecture list that changed", "added", "removed", "stated in"), lists)


def _made(found: TargetNight) -> Iterator[str]:
    build, rehearsal = found.build, found.rehearsal
    if build.status == "built":
        left = f"; without {', '.join(map(code, build.left_out))}" if build.left_out else ""
        audited = "audited" if build.audited else "not audited"
        yield (
            f"- Wheel {code(build.version)}: {human_size(build.size)} in {human_seconds(build.seconds)}, "
            f"{audited}{left}; SHA-256 {code(build.sha256)}"
        )
    else:
        yield f"- Wheel {build.status}{_because(build.reason)}"
    took = f" in {human_seconds(rehearsal.seconds)}" if rehearsal.seconds else ""
    passed = f", {found.tests.passed} pass on both trees" if found.tests.passed else ""
    flaky = f"; flaky: {', '.join(map(code, found.tests.flaky))}" if found.tests.flaky else ""
    yield f"- Upstream's tests {found.tests.status}{passed}{_because(found.tests.reason)}{flaky}"
    yield f"- Rehearsal {rehearsal.status}{took}{_because(rehearsal.reason)}"
    if found.kernels.status != "skipped":
        yield f"- Triton kernels {found.kernels.status}{_because(found.kernels.reason)}"


def _because(reason: str) -> str:
    return f": {code(reason)}" if reason else ""


def _evidence(carry: CarryNight, upstream: str) -> Iterator[str]:
    if carry.detail and not carry.conflicts:
        yield f"- Outcome {carry.outcome}: {code(carry.detail)}"
    if carry.alone is not None and carry.alone is not carry.outcome:
        yield f"- Alone {carry.alone}: another carry is in its way"
    if carry.finding:
        yield f"- Probe: {code(carry.finding)}"
    if carry.conflicts:
        yield f"- Conflicts in {', '.join(map(code, carry.conflicts))}"
    if carry.red_since:
        keeps = f"; good on {code(carry.holds)}, which it keeps" if carry.holds else ""
        yield f"- Red since {code(carry.red_since)}, {words.counted(carry.days_red, 'day')}{keeps}"
    if carry.culprit is not None:
        yield f"- Changed by {_culprit(carry.culprit, upstream)}"
    if carry.hazards:
        named = [f"{code(one.path)} {code(one.name)} ({one.kind})" for one in carry.hazards[:_HAZARDS]]
        more = len(carry.hazards) - len(named)
        yield f"- Look at {', '.join(named)}{f' and {more} more' if more else ''}"
    if carry.bisect_command:
        yield f"- Search: {code(carry.bisect_command)}"


def _culprit(culprit: UpstreamCommit, upstream: str) -> str:
    files = f", in {', '.join(map(code, culprit.files))}" if culprit.files else ""
    search = f" ({words.search_figures(culprit)})" if culprit.merges else ""
    outcomes = f"{culprit.before} → {culprit.after}{files}{search}"
    if not culprit.commit:
        return f"release {code(culprit.release)}: {outcomes}"
    return (
        f"{_commit(culprit.commit, upstream)} {code(culprit.subject)} by {code(culprit.author)}, "
        f"{code(culprit.date[:10])}: {outcomes}"
    )


def _commit(commit: str, upstream: str) -> str:
    address = words.commit_address(upstream, commit)
    return f"[{code(commit[:12])}]({address})" if address else code(commit[:12])


def _strip(carry: CarryNight) -> str:
    return "".join(_BARS[standing_of(mark.judgement)] for mark in carry.history[-_NIGHTS:])


def _proposal(one: Proposal | str) -> Iterator[str]:
    if isinstance(one, str):
        yield f"Nothing is proposed for {code(one)}."
        return
    yield f"### {code(one.branch)}"
    yield (
        f"It moves the lock to {code(one.target)}."
        if one.pins
        else f"These carries hold {code(one.target)} back: the lock stays, and no carry is dropped."
    )
    lines = [
        f"- {code(held.carry)} ({words.JUDGEMENTS[held.judgement]})"
        + (f" since {code(held.since)}" if held.since else "")
        + (f"; it keeps its revision that is good on {code(held.keeps)}" if held.keeps else "")
        for held in one.held
    ]
    lines += [f"- {code(commit.id[:12])} {code(commit.subject)}" for commit in one.commits]
    lines += [f"- left as it is: {code(note)}" for note in one.notes]
    yield "\n".join(lines)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {code(line)}" for line in lines)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
