"""The terminal's report: its lines, its table of speed, and that a server cannot steer it."""

from __future__ import annotations

import io
import math
import re

import msgspec
import pytest
import report_kit
from rich.console import Console

from sparkwright.verify.report import render_terminal
from sparkwright.verify.report.figures import cells
from sparkwright.verify.run import Run


@pytest.fixture(scope="module")
def healthy() -> Run:
    return report_kit.healthy()


@pytest.fixture(scope="module")
def unhealthy() -> Run:
    return report_kit.unhealthy()


def shown(run: Run, *, terminal: bool, width: int = 100) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system="standard")
    render_terminal(run, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_where_there_is_no_terminal(unhealthy: Run) -> None:
    lines = shown(unhealthy, terminal=False).splitlines()
    assert "\x1b" not in "".join(lines)
    assert "✗ soak: fail" in lines
    falls = "acceptance falls from 46 % to 0 %, beginning 18 minutes after the start"
    assert f"  fail: acceptance does not decay: {falls}" in lines
    assert "  warning: prose is 31 % below" in lines
    assert lines[-1] == "report: /runs/2026-11-21/report.html"
    assert lines[-4].startswith("✗ Failed. 13 conclusions: 5 failed")
    assert lines[-3] == "Coverage: 8 of 8 checks"


def test_a_table_on_a_terminal(unhealthy: Run) -> None:
    text = shown(unhealthy, terminal=True)
    assert "\x1b[1;31m✗ Failed" in text
    assert text.rstrip().endswith("report: /runs/2026-11-21/report.html")


@pytest.mark.parametrize("width", [20, 40, 200])
def test_the_reports_path_is_never_broken(healthy: Run, width: int) -> None:
    for terminal in (False, True):
        assert "report: /runs/2026-11-21/report.html\n" in shown(healthy, terminal=terminal, width=width)


def test_a_server_cannot_steer_the_terminal() -> None:
    plain = shown(report_kit.hostile(), terminal=False)
    assert not set(plain) & {"\x1b", "\x07", "\x00", "\x08", "\u202e", "\ud800"}
    styled = shown(report_kit.hostile(), terminal=True, width=400)
    assert "\x1b]0;" not in styled
    assert "[bold red]x[/]" in styled  # as words, not as markup


@pytest.mark.parametrize("terminal", [False, True])
def test_the_terminal_tells_speed_by_concurrency(healthy: Run, *, terminal: bool) -> None:
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown(healthy, terminal=terminal, width=200)).splitlines()
    begin = next(i for i, line in enumerate(lines) if line.split()[:2] == ["c", "tok/s"])
    rows = [line.split() for line in lines[begin + 1 : begin + 1 + len(report_kit.LEVELS)]]
    assert [int(row[0]) for row in rows] == list(report_kit.LEVELS)
    found = cells(healthy)
    for concurrency, *figures in rows:
        of = [cell for cell in found if cell.observation.cell.check == "sweep"]
        of = [cell for cell in of if cell.concurrency == int(concurrency)]
        low, high = (end([cell.ttft_ms.p50 for cell in of]) for end in (min, max))
        assert low * 0.99 <= float(figures[1].replace(",", "")) <= high * 1.01
        assert float(figures[2].replace(",", "")) >= float(figures[1].replace(",", ""))
        rates = [cell.steady_tok_s if math.isfinite(cell.steady_tok_s) else cell.whole_tok_s for cell in of]
        assert min(rates) * 0.99 <= float(figures[0].replace(",", "")) <= max(rates) * 1.01


def test_without_cells_that_count_there_is_no_table_of_speed(healthy: Run) -> None:
    spoilt = [msgspec.structs.replace(seen, canary="first-token: none") for seen in healthy.observations]
    for seen in ((), spoilt):
        other = Run(healthy.manifest, healthy.facts, seen, healthy.findings)
        assert "tok/s  TTFT" not in shown(other, terminal=False)


def test_a_check_that_passed_says_what_its_first_conclusion_is(healthy: Run) -> None:
    text = shown(healthy, terminal=False)
    for check, findings in healthy.by_check.items():
        [line] = [line for line in text.splitlines() if line.startswith(f"✓ {check}: pass")]
        assert findings[0].cause in line
