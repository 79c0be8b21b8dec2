"""The texts of a night by templates: Markdown, and the messages of a proposal's commits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkwright.base.page import text_environment
from sparkwright.base.text import clean, code_span
from sparkwright.nightly.model import MEANINGS, Night, NightVerdict, Standing, TargetNight, standing_of

if TYPE_CHECKING:
    from sparkwright.nightly.propose import Proposal

VERDICTS = {
    NightVerdict.GREEN: "Green",
    NightVerdict.NEEDS_PERSON: "Needs a person",
    NightVerdict.NOTHING_NEW: "Nothing new",
}
_TEMPLATES = Path(__file__).parent / "template"
_SYMBOLS = {Standing.GOOD: "✓", Standing.DROP: "○", Standing.RED: "✗"}
_BARS = {Standing.GOOD: "▁", Standing.DROP: "▄", Standing.RED: "█"}
_FULL_ID = 40
_LONGEST_MESSAGE = 300
# By these a forge closes our issues and links our pull requests, where upstream's words are about its own.
_REFERENCES = re.compile(r"\bGH-(?=\d)|#(?=\d)", re.IGNORECASE)


def render_markdown(night: Night, *, upstream: str, proposals: Sequence[Proposal | str] = ()) -> str:
    """Return *night* as Markdown.

    Args:
        night: what was found.
        upstream: git address of upstream's repository, for links to its commits.
        proposals: branches that were written, or why there is none.
    """

    def linked(commit: str) -> str:
        address = commit_address(upstream, commit)
        return f"[{code_span(commit[:12])}]({address})" if address else code_span(commit[:12])

    made = text_environment(_TEMPLATES)
    made.globals |= {
        "VERDICTS": VERDICTS, "SYMBOLS": _SYMBOLS, "MEANINGS": MEANINGS, "linked": linked, "tally": tally,
        "bars": lambda marks: "".join(_BARS[standing_of(one.judgement)] for one in marks),
    }  # fmt: skip
    page = made.get_template("night.md.jinja").render(
        night=night,
        branches=[one for one in proposals if not isinstance(one, str)],
        unproposed=[one for one in proposals if isinstance(one, str)],
    )
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


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


def counted(number: int, noun: str) -> str:
    """Return *number* and *noun*, in the plural unless there is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def commit_address(upstream: str, commit: str) -> str:
    """Return the address of an upstream commit's page, or nothing where the repository has none."""
    full = len(commit) == _FULL_ID and set(commit) <= set("0123456789abcdef")
    try:
        parts = urlsplit(upstream)
    except ValueError:
        return ""
    # https alone, so that no other scheme becomes a link.
    if not full or parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment:
        return ""
    return f"{upstream.removesuffix('/').removesuffix('.git')}/commit/{commit}"


def tally(targets: Sequence[TargetNight]) -> str:
    """Return how many carries are good, to be dropped and red, over all *targets*."""
    standings = [one.standing for found in targets for one in found.carries]
    good, drop, red = (standings.count(standing) for standing in Standing)
    parts = [f"{good} good"] + ([f"{drop} to drop"] if drop else []) + ([f"{red} red"] if red else [])
    return f"{counted(len(standings), 'outcome')} on {counted(len(targets), 'target')}: {', '.join(parts)}"
