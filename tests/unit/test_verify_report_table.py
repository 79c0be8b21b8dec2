"""The table of cells: figures of checks, empty where unknown, and safe in a spreadsheet."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import msgspec
import pytest
from verify_kit import Server, boot_facts, context, failing, profile, run

from sparkwright.engine.observations import FailureKind, HostSample, Observation
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.figures import figures
from sparkwright.verify.report import render_csv
from sparkwright.verify.run import Run


def table(observations: list[Observation]) -> list[dict[str, str]]:
    text = render_csv(Run(facts={("main", 0): boot_facts()}, observations=observations))
    return list(csv.DictReader(io.StringIO(text, newline="")))


def swept(**changes: Any) -> list[Observation]:
    return run(ALL["sweep"], context(profile()), Server(**changes))


def test_each_cell_is_a_row_with_the_figures_of_checks() -> None:
    seen = swept()
    rows = table(seen)
    assert [row["cell"] for row in rows] == [observation.cell.name for observation in seen]
    for row, observation in zip(rows, seen, strict=True):
        expected = figures(observation)
        assert float(row["throughput_tok_s"]) == pytest.approx(expected.whole_tok_s, abs=1e-4)
        assert float(row["ttft_p95_ms"]) == pytest.approx(expected.ttft_ms.p95, abs=1e-4)
        assert expected.acceptance is not None
        assert float(row["mean_acceptance_length"]) == pytest.approx(expected.acceptance.mal, abs=1e-4)
        assert int(row["output_tokens"]) == 96 * len(observation.counted)
        assert row["trouble"] == ""


def test_what_is_unknown_is_empty_and_never_nan() -> None:
    rows = table(swept(k=0))
    assert {row["mean_acceptance_length"] for row in rows} == {""}
    assert {row["gpu_power_mean_w"] for row in rows} == {""}
    failed = [failing(observation, FailureKind.STALL) for observation in swept()]
    assert {row["ttft_p50_ms"] for row in table(failed)} == {""}
    assert all(row["trouble"] for row in table(failed))
    assert not any(
        "nan" in value for row in table(failed) for name, value in row.items() if name != "trouble"
    )


def test_the_machine_is_summed_up_over_the_samples_that_know_it() -> None:
    host = (
        HostSample(at=1, memory_available_mib=9000, gpu_power_w=40, gpu_temperature_c=60, gpu_clock_mhz=2000),
        HostSample(at=2, memory_available_mib=8000, gpu_power_w=60, gpu_temperature_c=70),
    )
    row = table([msgspec.structs.replace(swept()[0], host=host)])[0]
    assert (row["memory_available_min_mib"], row["gpu_power_mean_w"]) == ("8000", "50.0")
    assert (row["gpu_temperature_max_c"], row["gpu_clock_min_mhz"]) == ("70", "2000")


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_nothing_is_a_formula(start: str) -> None:
    seen = swept()[0]
    cell = msgspec.structs.replace(seen.cell, name=f"{start}cmd|' /C calc'!A0")
    row = table([msgspec.structs.replace(seen, cell=cell)])[0]
    assert row["cell"].startswith(f"'{start}")


def test_numbers_are_numbers() -> None:
    for row in table(swept()):
        for name, value in row.items():
            if name not in {"check", "cell", "server", "category", "trouble"} and value:
                assert math.isfinite(float(value)), name
