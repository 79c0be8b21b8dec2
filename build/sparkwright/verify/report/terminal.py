"""A run's verdict on a terminal, or as plain lines where there is none."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sparkwright.base.text import clean
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.verify.report.figures import cells
from sparkwright.verify.report.overview import (
    Level,
    consequences,
    disturbed_levels,
    headline,
    level_table,
    levels,
)
from sparkwright.verify.report.text import SYMBOLS, WORDS, duration, plural
from sparkwright.verify.run import Run, worst

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_STYLES = {
    Verdict.PASS: "green",
    Verdict.NOT_APPLICABLE: "dim",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.INVALID: "magenta",
    Verdict.FAIL: "bold red",
}

# Findings that need no line of their own.
_QUIET = (Verdict.PASS, Verdict.NOT_APPLICABLE)


def render_terminal(run: Run, console: Console) -> None:
    """Write the verdict of each check, the causes of what did not pass, speed, and the path of the report."""
    found = levels(cells(run), run.speed)
    if console.is_terminal:
        console.print(_table(run))
        if found:
            console.print(_speeds(found))
    else:
        for line in (*_lines(run), *_speed_lines(found)):
            _plain(console, line)
    for line in disturbed_levels(found):
        _plain(console, line)
    verdict = run.verdict
    _plain(console, f"{SYMBOLS[verdict]} {WORDS[verdict]}. {headline(run)}", _STYLES[verdict])
    if run.findings:
        _plain(console, f"Coverage: {clean(str(run.coverage))}")
    for line in lacking_lines(run):
        _plain(console, line)
    if line := duration_line(run):
        _plain(console, line)
    if why := run.manifest.get("interrupted"):
        _plain(console, f"The run is not complete: {clean(str(why))}")
    if report := run.manifest.get("report"):
        _plain(console, f"report: {clean(str(report))}")


def lacking_lines(run: Run) -> list[str]:
    """Return each reason for which conclusions are not applicable, once, with their number."""
    reasons = Counter(one.cause for one in run.findings if one.verdict is Verdict.NOT_APPLICABLE)
    return [
        f"not applicable: {plural(count, 'conclusion')}: {_one_line(cause)}"
        for cause, count in reasons.items()
    ]


def duration_line(run: Run) -> str:
    """Return how long the run took, beside what was expected; empty where that is not known."""
    known = {name: float(run.duration.get(name, 0)) for name in ("actual", "estimated")}
    if not all(known.values()):
        return ""
    return f"It took {duration(known['actual'])}; {duration(known['estimated'])} were expected."


def _plain(console: Console, line: str, style: str = "") -> None:
    """Print one line as it is: nothing in it is markup, and a narrow terminal does not break it."""
    shown = style if console.is_terminal else ""
    console.print(line, style=shown, markup=False, highlight=False, soft_wrap=True)


def _lines(run: Run) -> list[str]:
    lines = []
    for check, findings in run.by_check.items():
        verdict = worst(findings)
        seen = f" ({_first(findings)})" if verdict in _QUIET else ""
        lines.append(f"{SYMBOLS[verdict]} {clean(check)}: {verdict}{seen}")
        lines.extend(f"  {kind}: {words}" for kind, words in _causes(findings, _followers(run)))
    return lines


def _followers(run: Run) -> list[Finding]:
    """Return the undecided findings that only follow from others."""
    return [run.findings[place] for place in sorted(consequences(run))]


def _causes(findings: list[Finding], followers: list[Finding]) -> list[tuple[str, str]]:
    """Return findings that did not pass, and warnings: the verdict, and the cause in one line.

    *followers*, which follow from other findings, are counted in one line at the end.
    """
    causes: list[tuple[str, str]] = []
    counted = [finding for finding in findings if finding in followers]
    for finding in findings:
        if finding in counted:
            continue
        if finding.verdict not in _QUIET:
            causes.append((finding.verdict.value, _one_line(f"{finding.name}: {finding.cause}")))
        causes.extend(("warning", _one_line(warning)) for warning in finding.warnings)
    if counted:
        because = "measurements that failed or were left out"
        causes.append((counted[0].verdict.value, f"{plural(len(counted), 'conclusion')} for {because}"))
    return causes


def _speed_lines(found: list[Level]) -> list[str]:
    """Return the same figures as `_speeds`, in columns of plain text."""
    heads, rows = level_table(found)
    widths = [max([len(head), *(len(row[place]) for row in rows)]) for place, head in enumerate(heads)]
    lines = [heads, *rows] if rows else []
    return [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _speeds(found: list[Level]) -> Table:
    from rich.table import Table

    heads, rows = level_table(found)
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _first(findings: list[Finding]) -> str:
    """Return the first conclusion of a check that passed, which is about all of its requests."""
    findings = [one for one in findings if one.verdict is not Verdict.NOT_APPLICABLE] or findings
    more = f"; {plural(len(findings) - 1, 'more conclusion')}" if len(findings) > 1 else ""
    return _one_line(f"{findings[0].cause}{more}")


def _one_line(text: str) -> str:
    return " ".join(clean(text, 500).split())


def _table(run: Run) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    followers = _followers(run)
    for check, findings in run.by_check.items():
        verdict = worst(findings)
        lines = [
            Text(words if kind != "warning" else f"warning: {words}", "dim" if kind == "warning" else "")
            for kind, words in _causes(findings, followers)
        ]
        details = Text("\n").join([*([Text(_first(findings), "dim")] if verdict in _QUIET else []), *lines])
        sign = Text(f"{SYMBOLS[verdict]} {WORDS[verdict]}", _STYLES[verdict])
        table.add_row(sign, Text(_one_line(check)), details)
    return table
