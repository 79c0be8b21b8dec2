"""The texts of a night by templates: an HTML page, Markdown, and the messages of a proposal's commits.

The page loads nothing and runs no script. All three are the same for the same night.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from sparkwright.base.page import page_environment, text_environment
from sparkwright.base.text import clean, code_span, human_seconds
from sparkwright.nightly.model import (
    MEANINGS,
    Judgement,
    Mark,
    Night,
    NightVerdict,
    Standing,
    TargetNight,
    standing_of,
)

if TYPE_CHECKING:
    from jinja2 import Environment

    from sparkwright.nightly.propose import Proposal

VERDICTS = {
    NightVerdict.GREEN: "Green",
    NightVerdict.NEEDS_PERSON: "Needs a person",
    NightVerdict.NOTHING_NEW: "Nothing new",
}
_TEMPLATES = Path(__file__).parent / "template"
_SYMBOLS = {Standing.GOOD: "✓", Standing.DROP: "○", Standing.RED: "✗"}
_BARS = {Standing.GOOD: "▁", Standing.DROP: "▄", Standing.RED: "█"}
_NIGHTS = 30
_CELL, _GAP, _HIGH = 7, 2, 20
_HEIGHTS = {Standing.GOOD: 8, Standing.DROP: 14, Standing.RED: 20}
_FULL_ID = 40
_LONGEST_MESSAGE = 300
# By these a forge closes our issues and links our pull requests, where upstream's words are about its own.
_REFERENCES = re.compile(r"\bGH-(?=\d)|#(?=\d)", re.IGNORECASE)


def render_html(night: Night, *, upstream: str, proposals: Sequence[Proposal | str] = ()) -> str:
    """Return *night* as one HTML page.

    Args:
        night: what was found.
        upstream: git address of upstream's repository, for links to its commits.
        proposals: branches that were written, or why there is none.
    """
    # Everything that is shown is made harmless for readers, and then escaped for HTML.
    made = page_environment(_TEMPLATES, finalize=_shown)
    made.filters["link"] = lambda path: f"file://{quote(path)}" if path.startswith("/") else ""
    made.globals |= {"commit_address": lambda commit: commit_address(upstream, commit), "moment": _moment}
    return _render(made, "night.html", night, proposals)


def render_markdown(night: Night, *, upstream: str, proposals: Sequence[Proposal | str] = ()) -> str:
    """Return *night* as Markdown; see `render_html`."""

    def linked(commit: str) -> str:
        address = commit_address(upstream, commit)
        return f"[{code_span(commit[:12])}]({address})" if address else code_span(commit[:12])

    made = text_environment(_TEMPLATES)
    made.globals["linked"] = linked
    return re.sub(r"\n{3,}", "\n\n", _render(made, "night.md.jinja", night, proposals))


def commit_message(kind: str, found: TargetNight, **told: Any) -> str:
    """Return the message of a proposal's commit: the macro *kind* of its template, with what is *told*."""
    made = text_environment(_TEMPLATES, quiet)
    made.globals |= {"linked": lambda commit: commit[:12], "tally": tally}
    text = getattr(made.get_template("commit.jinja").module, kind)(found, **told)
    return re.sub(r"\n{3,}", "\n\n", str(text)).strip()


def quiet(text: str) -> str:
    """Return upstream's *text* as one line without mentions, links or paragraph breaks."""
    line = " ".join(clean(text, _LONGEST_MESSAGE).split())
    return _REFERENCES.sub("pull ", line).replace("@", "(at)").replace("://", ":")


def _render(made: Environment, template: str, night: Night, proposals: Sequence[Proposal | str]) -> str:
    made.globals |= {
        "VERDICTS": VERDICTS, "SYMBOLS": _SYMBOLS, "MEANINGS": MEANINGS, "Judgement": Judgement,
        "counted": counted, "lead": lead, "pull_address": pull_address, "tally": tally,
        "strip": _strip, "bars": lambda marks: "".join(_BARS[standing_of(one.judgement)] for one in marks),
    }  # fmt: skip
    page = made.get_template(template).render(
        night=night,
        branches=[one for one in proposals if not isinstance(one, str)],
        unproposed=[one for one in proposals if isinstance(one, str)],
    )
    return page.strip() + "\n"


def _shown(value: Any) -> Any:
    from markupsafe import Markup

    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return clean(value)


def _moment(stamp: str) -> str:
    """Return a moment in ISO 8601 as a date, or the words as they are."""
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%d}"


def _strip(history: Sequence[Mark]) -> dict[str, Any]:
    """Return what is drawn of a carry's last nights; heights tell standings apart where colours do not."""
    shown = history[-_NIGHTS:]
    bars = []
    for place, mark in enumerate(shown):
        standing = standing_of(mark.judgement)
        high = _HEIGHTS[standing]
        label = f"{mark.date}, {mark.target}: {mark.judgement.words}"
        bars.append((standing, place * (_CELL + _GAP), _HIGH - high, high, label))
    width = max(len(shown) * (_CELL + _GAP) - _GAP, 1)
    return {"bars": bars, "width": width, "high": _HIGH, "cell": _CELL, "label": _in_words(shown)}


def _in_words(history: Sequence[Mark]) -> str:
    """Return a strip of nights in words: its runs of equal judgements, newest first."""
    runs = [
        f"{judgement.words} for {counted(len(list(marks)), 'night')}"
        for judgement, marks in groupby(reversed(history), key=lambda mark: mark.judgement)
    ]
    return ", before that ".join(runs) or "no night yet"


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


def tally(targets: Sequence[TargetNight]) -> str:
    """Return how many carries are good, to be dropped and red, over all *targets*."""
    standings = [one.standing for found in targets for one in found.carries]
    good, drop, red = (standings.count(standing) for standing in Standing)
    parts = [f"{good} good"] + ([f"{drop} to drop"] if drop else []) + ([f"{red} red"] if red else [])
    return f"{counted(len(standings), 'outcome')} on {counted(len(targets), 'target')}: {', '.join(parts)}"


def lead(night: Night) -> str:
    """Return one line about the night: number, date, patchset, pin and duration."""
    return (
        f"Night {night.id} of {night.date}, patchset {night.patchset}, pinned at {night.pin}, "
        f"took {human_seconds(night.seconds)}"
    )
