"""The page: one file that needs no network and no script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sparkwright.base.config import to_builtins
from sparkwright.base.page import page_environment
from sparkwright.base.text import clean, human_seconds, plural
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.journal import Run, worst
from sparkwright.verify.report.figures import (
    COMPARISON_COLUMNS,
    NOTHING,
    SYMBOLS,
    WORDS,
    Level,
    cells,
    comparison_rows,
    consequences,
    disturbed_levels,
    figure,
    flat,
    headline,
    level_table,
    levels,
    number,
    share,
)

if TYPE_CHECKING:
    from jinja2 import Environment


TEMPLATES = Path(__file__).parent / "template"

_FAILURES_SHOWN = 5
_LOG_LINES_SHOWN = 20


def render_html(run: Run) -> str:
    """Return *run* as one HTML page, the same for the same run."""
    found = cells(run)
    followers = consequences(run)
    speeds = levels(found, run.speed)
    return render_page(
        "page.html",
        run=run,
        head=_head(run),
        headline=headline(run),
        comparison=(COMPARISON_COLUMNS, comparison_rows(run)),
        speeds=level_table(speeds),
        chart=load_chart(speeds),
        disturbed=disturbed_levels(speeds),
        followers=followers,
        failing=_failing(run, followers),
        cells=found,
        known={cell.key for cell in found},
        names={cell.key: cell.observation.cell.name for cell in found},
        numbered=list(enumerate(run.findings, 1)),
        manifest=list(flat(run.manifest)),
        boots=_boots(run),
        files=list(_files(run)),
        worst=worst,
    )


def render_page(template: str, **values: Any) -> str:
    """Return a page by its *template* in `TEMPLATES`."""
    return _environment().get_template(template).render(**values).strip() + "\n"


def _failing(run: Run, followers: set[int]) -> set[int]:
    """Return the numbers, from 1, of findings that did not pass, without those that follow from others."""
    calm = {Verdict.PASS, Verdict.NOT_APPLICABLE}
    return {
        place + 1
        for place, one in enumerate(run.findings)
        if one.verdict not in calm and place not in followers
    }


def _head(run: Run) -> dict[str, Any]:
    """Return the manifest's entries for the head of the page."""
    manifest = run.manifest
    subject = manifest.get("title") or manifest.get("model") or manifest.get("url") or ""
    small = [clean(str(manifest["profile"]))] if manifest.get("profile") else []
    small += [_moment(str(manifest["started"]))] if manifest.get("started") else []
    if manifest.get("seconds"):
        small.append(f"took {human_seconds(float(manifest['seconds']))}")
    return {
        "subject": clean(str(subject)),
        "sides": [(name, clean(words)) for name, words in _sides(run)],
        "small": small,
        "interrupted": clean(str(manifest.get("interrupted", ""))),
    }


def _sides(run: Run) -> list[tuple[str, str]]:
    """Return names and servers of the two sides of a comparison; none of another run."""
    manifest = run.manifest
    if "before" in manifest and "after" in manifest:
        return [("A, before", str(manifest["before"])), ("B, after", str(manifest["after"]))]
    if not any(seen.cell.check == "compare" for seen in run.observations):
        return []
    versions = {arm: facts.version for (arm, _), facts in run.facts.items()}
    of = {
        "main": str((manifest.get("wheel") or {}).get("name", "") or manifest.get("title", "")),
        "baseline": str(manifest.get("against-file") or manifest.get("against") or manifest.get("title", "")),
    }
    sides = (("A, new", "main"), ("B, baseline", "baseline"))
    return [
        (name, " ".join(filter(None, (of[arm], versions.get(arm, "") and f"(vLLM {versions[arm]})"))))
        for name, arm in sides
    ]


def _moment(stamp: str) -> str:
    """Return a moment in ISO 8601 in a short form, or the words as they are."""
    try:
        moment = datetime.fromisoformat(stamp)
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else f"{moment:%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):  # also before the year 1
        return clean(stamp)


@cache  # compiling templates takes a third of a second
def _environment() -> Environment:
    made = page_environment(TEMPLATES)
    made.filters |= {
        "figure": figure,
        "number": number,
        "plural": plural,
        "share": share,
        "troubles": _troubles,
    }
    made.globals |= {"SYMBOLS": SYMBOLS, "WORDS": WORDS}
    return made


def _troubles(observation: Observation) -> list[str]:
    """Return the failures of a cell in their own words, repeated ones counted, and its log."""
    failures: dict[str, int] = {}
    for sample in observation.failed:
        if sample.failure is not None:
            status = f" (status {sample.failure.status})" if sample.failure.status else ""
            words = f"{sample.failure.kind}{status}: {sample.failure.detail}"
            failures[words] = failures.get(words, 0) + 1
    shown = [
        f"{plural(count, 'request')}: {words}" for words, count in list(failures.items())[:_FAILURES_SHOWN]
    ]
    if len(failures) > _FAILURES_SHOWN:
        shown.append(f"and {len(failures) - _FAILURES_SHOWN} other failures")
    if observation.died is not None:
        shown.append(f"the server ended with status {observation.died}")
    if observation.canary:
        shown.append(f"no answer to a plain request afterwards: {observation.canary}")
    shown.extend(f"log: {line}" for line in observation.log[:_LOG_LINES_SHOWN])
    return shown


def _boots(run: Run) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return boot facts as a table: heads, and one row for each fact that any boot log holds."""
    heads = [f"{arm}, start {boot + 1}" for arm, boot in run.facts]
    columns = [to_builtins(facts) for facts in run.facts.values()]
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [_fact(column.get(name)) for column in columns]
        if any(value != NOTHING for value in values):
            rows.append((name.replace("-", " "), values))
    return heads, rows


def _fact(value: Any) -> str:
    if isinstance(value, list | tuple):
        return clean(", ".join(map(str, value))) or NOTHING
    if value is None or value in {"", -1}:
        return NOTHING
    return figure(value)


def _files(run: Run) -> Iterator[tuple[str, str, str]]:
    """Yield raw files: label, path, and a link that stays within the report's own folder."""
    files = run.manifest.get("files", {})
    for label, path in files.items():
        yield clean(str(label)), clean(str(path)), f"./{quote(str(path).lstrip('/'))}"


# The chart: load over concurrency, as inline SVG in the colours of the page -------------------------------

# The narrowest page has room for a drawing of this width without scaling, so that its words stay readable.
_WIDTH, _HEIGHT = 340.0, 112.0  # of the drawing, and of a panel
_LEFT, _RIGHT, _ABOVE, _BELOW = 48.0, 14.0, 30.0, 40.0
_MARK = "m-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0-7,0"
_TICKS = 4
_PANELS = {  # fields of `Level`: solid, and dashed
    "tokens/s": ("tok_s",),
    "TTFT ms": ("ttft_p50_ms", "ttft_p95_ms"),
    "TPOT ms": ("tpot_p50_ms", "tpot_p95_ms"),
}

Places = Sequence[tuple[float, float]]
"""Points of a line: place on the x axis, and value."""


def load_chart(found: Sequence[Level]) -> str:
    """Return panels of throughput and times over concurrency as an SVG element; empty for one concurrency."""
    found = [one for one in found if one.concurrency > 0]
    if len(found) < 2:  # noqa: PLR2004 - no course
        return ""
    low, high = (math.log2(one.concurrency) for one in (found[0], found[-1]))
    width = _WIDTH - _LEFT - _RIGHT
    across = {one.concurrency: width * (math.log2(one.concurrency) - low) / (high - low) for one in found}
    top, body = 0.0, ""
    for title, fields in _PANELS.items():
        lines = [
            [
                (across[one.concurrency], value)
                for one in found
                if 0 < (value := getattr(one, name)) < math.inf
            ]
            for name in fields
        ]
        if any(lines):
            top += _ABOVE
            body += f'<g transform="translate({_LEFT:g},{top:g})">{_panel(title, lines, width)}</g>'
            top += _HEIGHT
    for level, place in across.items():
        body += _text(_LEFT + place, top + 18, f"{level}", "middle")
    body += _text(_LEFT + width / 2, top + 35, "requests at a time (c)", "middle")
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {top + _BELOW:g}" role="img" aria-labelledby="load-title load-desc">'
        '<title id="load-title">Throughput and latency over concurrency</title>'
        '<desc id="load-desc">The table of key figures has every value.</desc>'
        f"{body}</svg>"
    )


def _panel(title: str, lines: Sequence[Places], width: float) -> str:
    high = 1.05 * max(value for line in lines for _, value in line)
    drawn = _text(-_LEFT, -13, title)
    for value in round_values(high):
        down = _HEIGHT * (1 - value / high)
        drawn += f'<path class="rule" d="M0,{down:.1f}h{width:g}"/>'
        drawn += _text(-6, down + 4, f"{value:,g}", "end")
    for shape, line in zip(("line", "dashed"), lines, strict=False):
        points = [f"{at:.1f},{_HEIGHT * (1 - value / high):.1f}" for at, value in line]
        drawn += f'<path class="{shape}" d="M{"L".join(points)}"/>' if points else ""
        drawn += f'<path class="marks" d="{"".join(f"M{point}{_MARK}" for point in points)}"/>'
    return drawn


def round_values(high: float) -> list[float]:
    """Return a few round values from 0 to *high*."""
    power = 10 ** math.floor(math.log10(high / _TICKS))
    step = next(one * power for one in (1, 2, 5, 10) if one * power * _TICKS >= high)
    return [step * number for number in range(math.floor(high / step + 1e-9) + 1)]


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'
