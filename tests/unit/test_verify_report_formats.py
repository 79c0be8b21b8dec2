"""The table of cells and the terminal: each in its own form, and unharmed by what servers send."""

import csv
import io
from typing import Any

import pytest
import report_kit
from msgspec.structs import replace
from report_kit import shown
from verify_kit import Server, boot_facts, context, failing, profile
from verify_kit import run as measured

from sparkwright.engine.observations import FailureKind, HostSample, Observation
from sparkwright.verify.checks import ALL
from sparkwright.verify.report import render_csv
from sparkwright.verify.run import Run


@pytest.fixture(scope="module")
def healthy() -> Run:
    return report_kit.healthy()


# The table of cells -----------------------------------------------------------------------------------


def table(observations: list[Observation]) -> list[dict[str, str]]:
    text = render_csv(Run(facts={("main", 0): boot_facts()}, observations=observations))
    return list(csv.DictReader(io.StringIO(text, newline="")))


def swept(**changes: Any) -> list[Observation]:
    return measured(ALL["sweep"], context(profile()), Server(**changes))


def test_what_is_unknown_is_empty_and_never_nan() -> None:
    rows = table(swept(k=0))
    assert {row["mean_acceptance_length"] for row in rows} == {""}
    assert {row["gpu_power_mean_w"] for row in rows} == {""}
    failed = [failing(observation, FailureKind.STALL) for observation in swept()]
    assert {row["ttft_p50_ms"] for row in table(failed)} == {""}
    rows = table(failed)
    assert all(row.pop("trouble") for row in rows)
    assert "nan" not in str(rows)


def test_the_machine_is_summed_up_over_the_samples_that_know_it() -> None:
    host = (
        HostSample(at=1, memory_available_mib=9000, gpu_power_w=40, gpu_temperature_c=60, gpu_clock_mhz=2000),
        HostSample(at=2, memory_available_mib=8000, gpu_power_w=60, gpu_temperature_c=70),
    )
    row = table([replace(swept()[0], host=host)])[0]
    assert (row["memory_available_min_mib"], row["gpu_power_mean_w"]) == ("8000", "50.0")
    assert (row["gpu_temperature_max_c"], row["gpu_clock_min_mhz"]) == ("70", "2000")


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_nothing_is_a_formula(start: str) -> None:
    seen = swept()[0]
    cell = replace(seen.cell, name=f"{start}cmd|' /C calc'!A0")
    row = table([replace(seen, cell=cell)])[0]
    assert row["cell"].startswith(f"'{start}")


# The terminal -----------------------------------------------------------------------------------------


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
