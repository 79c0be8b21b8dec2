"""A night as one HTML page: a file that loads nothing and runs no script, the same for the same night."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sparkwright.base.page import page_environment
from sparkwright.base.text import clean, human_seconds, human_size
from sparkwright.nightly import words
from sparkwright.nightly.model import Judgement, Mark, Night, Standing, standing_of
from sparkwright.nightly.propose import Proposal

if TYPE_CHECKING:
    from jinja2 import Environment


TEMPLATES = Path(__file__).parent / "template"
_NIGHTS = 30
_CELL, _GAP, _HIGH = 7, 2, 20
_HEIGHTS = {Standing.GOOD: 8, Standing.DROP: 14, Standing.RED: 20}


def render_html(night: Night, *, upstream: str, proposals: Sequence[Proposal | str] = ()) -> str:
    """Return *night* as one HTML page.

    Args:
        night: what was found.
        upstream: git address of upstream's repository, for links to its commits.
        proposals: branches that were written, or why there is none.
    """
    page = (
        _environment(upstream)
        .get_template("night.html")
        .render(
            night=night,
            branches=[one for one in proposals if not isinstance(one, str)],
            unproposed=[one for one in proposals if isinstance(one, str)],
        )
    )
    return page.strip() + "\n"


def _environment(upstream: str) -> Environment:
    # Everything that is shown is made harmless for readers, and then escaped for HTML.
    made = page_environment(TEMPLATES, finalize=_shown)
    made.filters |= {"link": _link, "human_seconds": human_seconds, "human_size": human_size}
    made.globals |= {
        "Judgement": Judgement,
        "commit_address": lambda commit: words.commit_address(upstream, commit),
        "moment": _moment,
        "strip": _strip,
        "words": words,
    }
    return made


def _shown(value: Any) -> Any:
    from markupsafe import Markup

    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return clean(value)


def _link(path: str) -> str:
    """Return the link to a file of this machine: nothing for what is no absolute path."""
    return f"file://{quote(path)}" if path.startswith("/") else ""


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
        label = f"{mark.date}, {mark.target}: {words.JUDGEMENTS[mark.judgement]}"
        bars.append((standing, place * (_CELL + _GAP), _HIGH - high, high, label))
    width = max(len(shown) * (_CELL + _GAP) - _GAP, 1)
    return {"bars": bars, "width": width, "high": _HIGH, "cell": _CELL, "label": words.strip_words(shown)}
