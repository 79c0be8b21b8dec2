"""A run's verdict on a terminal, where it has colours, or as plain lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sparkwright.base.text import clean, plural
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.verify.journal import Run, worst
from sparkwright.verify.report.figures import (
    SYMBOLS,
    WORDS,
    cells,
    consequences,
    disturbed_levels,
    headline,
    level_table,
    levels,
)

if TYPE_CHECKING:
    from rich.console import Console

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
    """Write the verdict of each check, the causes of what did not pass, speed, and the path of the report.

    Nothing in a line is markup, and a narrow terminal does not break it.
    """
    for line, style in _lines(run):
        shown = style if console.is_terminal else ""
        console.print(line, style=shown, markup=False, highlight=False, soft_wrap=True)


def _lines(run: Run) -> Iterator[tuple[str, str]]:
    """Yield each line with its style."""
    followers = [run.findings[place] for place in sorted(consequences(run))]
    for check, findings in run.by_check.items():
        verdict = worst(findings)
        seen = f" ({_first(findings)})" if verdict in _QUIET else ""
        yield f"{SYMBOLS[verdict]} {clean(check)}: {verdict}{seen}", _STYLES[verdict]
        for line in _causes(findings, followers):
            yield f"  {line}", ""
    found = levels(cells(run), run.speed)
    heads, rows = level_table(found)
    widths = [max([len(head), *(len(row[place]) for row in rows)]) for place, head in enumerate(heads)]
    for row in [heads, *rows] if rows else []:
        columns = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        yield "  ".join(columns).rstrip(), ""
    for line in disturbed_levels(found):
        yield line, ""
    verdict = run.verdict
    yield f"{SYMBOLS[verdict]} {WORDS[verdict]}. {headline(run)}", _STYLES[verdict]
    if run.findings:
        yield f"Coverage: {clean(str(run.coverage))}", ""
    # Each reason for which conclusions are not applicable, once, with their number.
    lacking = Counter(one.cause for one in run.findings if one.verdict is Verdict.NOT_APPLICABLE)
    for cause, count in lacking.items():
        yield f"not applicable: {plural(count, 'conclusion')}: {_one_line(cause)}", ""
    if why := run.manifest.get("interrupted"):
        yield f"The run is not complete: {clean(str(why))}", ""
    if report := run.manifest.get("report"):
        yield f"report: {clean(str(report))}", ""


def _causes(findings: Sequence[Finding], followers: Sequence[Finding]) -> Iterator[str]:
    """Yield findings that did not pass, and warnings, in one line each; *followers* in one at the end."""
    counted = [finding for finding in findings if finding in followers]
    for finding in (one for one in findings if one not in counted):
        if finding.verdict not in _QUIET:
            yield f"{finding.verdict.value}: {_one_line(f'{finding.name}: {finding.cause}')}"
        for warning in finding.warnings:
            yield f"warning: {_one_line(warning)}"
    if counted:
        because = "the same cause, or measurements that failed or were left out"
        yield f"{worst(counted).value}: {plural(len(counted), 'conclusion')} for {because}"


def _first(findings: Sequence[Finding]) -> str:
    """Return the first conclusion of a check that passed, which is about all of its requests."""
    findings = [one for one in findings if one.verdict is not Verdict.NOT_APPLICABLE] or findings
    more = f"; {plural(len(findings) - 1, 'more conclusion')}" if len(findings) > 1 else ""
    return _one_line(f"{findings[0].cause}{more}")


def _one_line(text: str) -> str:
    return " ".join(clean(text, 500).split())
