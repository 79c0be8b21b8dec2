"""Words, symbols and figures of a night's report, the same for its page and its Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from sparkwright.base.text import human_seconds
from sparkwright.nightly.model import (
    CarryNight,
    Judgement,
    Mark,
    Night,
    NightVerdict,
    Standing,
    UpstreamCommit,
    standing_of,
)

VERDICTS = {
    NightVerdict.GREEN: "Green",
    NightVerdict.NEEDS_PERSON: "Needs a person",
    NightVerdict.NOTHING_NEW: "Nothing new",
}
SYMBOLS = {Standing.GOOD: "✓", Standing.DROP: "○", Standing.RED: "✗"}
JUDGEMENTS = {
    Judgement.NEEDED: "needed",
    Judgement.DECLARED: "declared",
    Judgement.NOT_NEEDED: "not needed any more",
    Judgement.CONFLICT: "conflict",
    Judgement.WRONG: "wrong though clean",
    Judgement.NOT_ABSORBED: "not absorbed",
    Judgement.BROKEN_PROBE: "broken probe",
    Judgement.REACH_LOST: "reach lost",
    Judgement.NOT_JUDGED: "not judged",
}
MEANINGS = {
    Judgement.NEEDED: "the probe fails on the pristine tree and passes on the merged one",
    Judgement.DECLARED: "the project says why it is not in the tree: superseded, left out, or absorbed",
    Judgement.NOT_NEEDED: "the probe passes on the pristine tree: drop the carry, or declare it superseded",
    Judgement.CONFLICT: "it does not merge, and the defect is still upstream as far as the probe can tell",
    Judgement.WRONG: "it merges without a conflict, and the probe fails on the result",
    Judgement.NOT_ABSORBED: "upstream seems to have the change, and still has the defect",
    Judgement.BROKEN_PROBE: "the probe cannot run on one of the trees, as after a rename",
    Judgement.REACH_LOST: "it merges and its probe passes, and the default path no longer runs that code",
    Judgement.NOT_JUDGED: "it has no probe, or a carry that it requires is not in the tree",
}
_FULL_ID = 40


def counted(number: int, noun: str) -> str:
    """Return *number* and *noun*, in the plural unless there is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def commit_address(upstream: str, commit: str) -> str:
    """Return the address of an upstream commit's page, or nothing where the repository has none."""
    home = _home(upstream)
    full = len(commit) == _FULL_ID and set(commit) <= set("0123456789abcdef")
    return f"{home}/commit/{commit}" if home and full else ""


def pull_address(repository: str, number: int) -> str:
    """Return the address of a pull request's page, or nothing where the repository has none."""
    home = _home(repository)
    return f"{home}/pull/{number}" if home else ""


def _home(repository: str) -> str:
    """Return the address of a repository's page: https alone, so that no other scheme becomes a link."""
    try:
        parts = urlsplit(repository)
    except ValueError:
        return ""
    if parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment:
        return ""
    return repository.removesuffix("/").removesuffix(".git")


def change_of(carry: CarryNight) -> str:
    """Return the carry's outcome, and the former one if that differed."""
    before = carry.previous
    return str(carry.outcome) if before in {None, carry.outcome} else f"{before} → {carry.outcome}"


def told(carry: CarryNight) -> str:
    """Return what a reader has to know first about a carry: what its probe found, or the reason."""
    return carry.finding or carry.detail


def search_figures(culprit: UpstreamCommit) -> str:
    """Return what naming the culprit took."""
    return (
        f"{counted(culprit.merges, 'merge')} in {human_seconds(culprit.seconds)}, "
        f"{counted(culprit.candidates, 'candidate')}"
    )


def strip_words(history: Sequence[Mark]) -> str:
    """Return a strip of nights in words: its runs of equal judgements, newest first."""
    runs: list[tuple[Judgement, int]] = []
    for mark in reversed(history):
        if runs and runs[-1][0] is mark.judgement:
            runs[-1] = (mark.judgement, runs[-1][1] + 1)
        else:
            runs.append((mark.judgement, 1))
    parts = [f"{JUDGEMENTS[judgement]} for {counted(nights, 'night')}" for judgement, nights in runs]
    return ", before that ".join(parts) or "no night yet"


def tally(night: Night) -> str:
    """Return how many carries are good, to be dropped and red, over all targets."""
    standings = [standing_of(one.judgement) for found in night.targets for one in found.carries]
    good, drop, red = (standings.count(standing) for standing in Standing)
    parts = [f"{good} good"] + ([f"{drop} to drop"] if drop else []) + ([f"{red} red"] if red else [])
    return (
        f"{counted(len(standings), 'outcome')} on {counted(len(night.targets), 'target')}: {', '.join(parts)}"
    )


def lead(night: Night) -> str:
    """Return one line about the night: number, date, patchset, pin and duration."""
    return (
        f"Night {night.id} of {night.date}, patchset {night.patchset}, pinned at {night.pin}, "
        f"took {human_seconds(night.seconds)}"
    )
