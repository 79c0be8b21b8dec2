"""Words of figures, and the terminal, unharmed by what servers send."""

import math

import pytest
import report_kit
from msgspec.structs import replace
from report_kit import shown

from sparkwright.verify.journal import Run
from sparkwright.verify.report.figures import number


@pytest.fixture(scope="module")
def healthy() -> Run:
    return report_kit.healthy()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (3.0, "3"),
        (1234567.0, "1,234,567"),
        (1872.4, "1,872"),
        (41.04, "41.0"),
        (0.6104, "0.610"),
        (-35.69, "\N{MINUS SIGN}35.7"),
        (0.0000123, "1.23e\N{MINUS SIGN}05"),
        (math.nan, "\N{EN DASH}"),
        (None, "\N{EN DASH}"),
        (math.inf, "∞"),
        (-math.inf, "\N{MINUS SIGN}∞"),
        (99.99, "100"),
    ],
)
def test_numbers(value: float | None, words: str) -> None:
    assert number(value).removesuffix(".0") == words.removesuffix(".0")


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
    assert "\x1b[1;31m✗ Failed" in shown(report_kit.unhealthy(), terminal=True)


def test_without_cells_that_count_there_is_no_table_of_speed(healthy: Run) -> None:
    spoilt = [replace(seen, canary="first-token: none") for seen in healthy.observations]
    for seen in ((), spoilt):
        other = Run(healthy.manifest, healthy.facts, seen, healthy.findings)
        assert "tok/s  TTFT" not in shown(other, terminal=False)
