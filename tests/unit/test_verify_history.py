"""Earlier runs are listed with their throughput; marked ones are not compared."""

import dataclasses
import json
import math
from pathlib import Path

import msgspec
import pytest
import report_kit
from click.testing import CliRunner
from report_kit import all_charts
from verify_kit import Server, context, profile, run

from sparkwright.cli.verify_history import command
from sparkwright.engine.observations import HostSample
from sparkwright.verify.checks import ALL
from sparkwright.verify.history import past_runs, read_past
from sparkwright.verify.report import render_html
from sparkwright.verify.results import write_report
from sparkwright.verify.run import Run

STUCK = tuple(
    HostSample(at=at, gpu_clock_mhz=611, gpu_clock_max_mhz=3003, gpu_utilization=97) for at in range(4)
)


def made(
    folder: Path, name: str, day: int, step_ms: float = 50.0, recipe: str = "one", **changes: object
) -> None:
    """Write the results of a run in a folder of its own."""
    to = context(profile(levels=(1, 16, 64), categories=("code",), max_tokens=48))
    seen = run(ALL["sweep"], to, Server(step_ms=step_ms))
    seen = [msgspec.structs.replace(one, **changes) for one in seen]
    manifest = {
        "title": f"Server {recipe}",
        "recipe-name": recipe,
        "profile": "full",
        "started": f"2026-11-{day:02d}T09:30:00+00:00",
        "wheel": {"name": f"vllm-{day}.whl", "sha256": "0"},
    }
    found = ALL["sweep"].judge(to, seen)
    write_report(Run(manifest=manifest, observations=seen, findings=found), folder / name)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("evidence")
    made(folder, "one-20261102T093000Z", 2, 60.0)
    made(folder, "one-20261101T093000Z", 1, 50.0)
    made(folder, "one-20261103T093000Z", 3, 150.0, host=STUCK)
    made(folder, "two-20261104T093000Z", 4, recipe="two")
    (folder / "broken").mkdir()
    (folder / "broken" / "verdict.json").write_text("{")
    (folder / "empty").mkdir()
    return folder


def test_runs_are_listed_oldest_first_without_damaged_ones(evidence: Path) -> None:
    assert [one.wheel for one in past_runs(evidence)] == [f"vllm-{day}.whl" for day in (1, 2, 3, 4)]
    assert past_runs(evidence / "missing") == []


@pytest.mark.parametrize("name", ["one", "ONE", "Server one"])
def test_a_recipes_runs_are_found_by_its_name_or_title(evidence: Path, name: str) -> None:
    assert [one.folder[:3] for one in past_runs(evidence, name)] == ["one"] * 3
    assert past_runs(evidence, "on") == []


def test_throughput_is_that_of_the_report_and_marked_where_the_machine_was_slow(evidence: Path) -> None:
    first, second, third = past_runs(evidence, "one")
    assert set(first.tok_s) == {1, 16, 64}
    assert first.tok_s[1] > 1.1 * second.tok_s[1] > third.tok_s[1]
    assert third.marked == {1, 16, 64}
    assert math.isnan(third.unmarked(1))
    assert third.verdict == "invalid"
    assert first.marked == set()
    assert first.unmarked(16) == first.tok_s[16]


def test_the_command_lists_them(evidence: Path) -> None:
    shown = CliRunner().invoke(command, ["one", "--evidence", str(evidence)])
    lines = shown.output.splitlines()
    assert lines[0].split() == ["started", "server", "wheel", "profile", "verdict", "c=1", "c=16", "c=64"]
    assert lines[1].startswith("2026-11-01 09:30  one")
    assert "vllm-1.whl" in lines[1]
    assert lines[3].count("*") == 3
    assert len(lines) == 4
    told = json.loads(CliRunner().invoke(command, ["--json", "--evidence", str(evidence)]).output)
    assert [one["marked"] for one in told] == [[], [], [1, 16, 64], []]
    none = CliRunner().invoke(command, ["three", "--evidence", str(evidence)])
    assert none.output.strip().endswith("holds no run of three")


def test_a_page_shows_earlier_runs_of_the_same_server(evidence: Path) -> None:
    runs = tuple(past_runs(evidence, "one"))
    this = read_past(evidence / "one-20261102T093000Z")
    assert this is not None
    assert [one.is_like(this) for one in past_runs(evidence)] == [True, True, True, False]
    seen = dataclasses.replace(report_kit.healthy(), history=runs)
    [chart] = [one for one in all_charts(seen) if one.key == "history"]
    assert len(chart.table.rows) == 3
    assert chart.table.rows[2][-1]  # marked, and so without a point
    assert chart.lead.startswith("3 runs; ")
    assert "% from the one before" in chart.lead
    assert "Throughput of earlier runs" in render_html(seen)
    alone = dataclasses.replace(seen, history=runs[:1])
    assert not [one for one in all_charts(alone) if one.key == "history"]
