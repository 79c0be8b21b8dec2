"""The charts of a page: their figures are those of the tables, and what is planted in a run shows."""

import dataclasses
import re
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest
import report_kit
from msgspec.structs import replace
from verify_kit import Server

from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.observations import FailureKind, Observation
from sparkwright.verify.journal import Run
from sparkwright.verify.report.charts import Axis, Chart, Line, Panel, Point, charts_of, draw, round_values
from sparkwright.verify.report.figures import cells, level_table, levels

parse = ET.fromstring  # our own XML


def charts(run: Run) -> dict[str, Chart]:
    return {chart.key: chart for chart in charts_of(run, cells(run))}


def values(chart: Chart, panel: str, style: int = 0) -> list[float]:
    """The figures of the solid line of *style*."""
    lines = next(one.lines for one in chart.panels if one.title == panel)
    return [point.y for line in lines if line.style == style and not line.dashed for point in line.points]


def test_the_load_is_that_of_the_key_figures() -> None:
    run = report_kit.healthy()
    found = charts(run)["load"]
    _, rows = level_table(levels(cells(run), 1.0))
    assert [row[1:] for row in found.rows] == [list(row[1:6]) for row in rows]
    assert not found.names
    assert "intervals" not in found.meaning


def compared(step_ms: float, starts: int = 3) -> Run:
    """A run of two servers, of which that under test takes *step_ms* for a step, the other 50."""
    seen = [
        Server(seed=11 * boot + len(arm), step_ms=step).measure(
            Cell(
                check="compare",
                name=f"c={level}",
                load=Load(concurrency=level, requests=2 * level + 12, warm_up=level, max_tokens=96),
                prompts=report_kit.prompts("code", 2 * level + 12, f"c={level}"),
                arm=arm,
                boot=boot,
            )
        )
        for boot in range(starts)
        for arm, step in (("main", step_ms), ("baseline", 50.0))
        for level in (1, 8, 32)
    ]
    return Run(observations=seen)


def test_arms_of_a_comparison_have_lines_and_intervals_of_their_own() -> None:
    found = charts(compared(step_ms=62.0))["load"]
    assert found.names == ("tested", "baseline")
    assert "95 % intervals" in found.meaning
    speeds = found.panels[0].lines
    slower, baseline = (line.points for line in speeds)
    assert all(one.low < one.y < one.high for one in (*slower, *baseline))
    assert all(one.high < other.low for one, other in zip(slower, baseline, strict=True))
    assert values(found, "TPOT ms") > values(found, "TPOT ms", style=1)
    assert [row[0] for row in found.rows][:4] == ["tested c=1", "tested c=8", "tested c=32", "baseline c=1"]
    assert re.fullmatch(r"[\d.,]+ \([\d.,]+ to [\d.,]+\)", found.rows[0][1])


def test_one_start_has_no_interval() -> None:
    found = charts(compared(step_ms=50.0, starts=1))["load"]
    assert "intervals" not in found.meaning
    assert "to" not in found.rows[0][1]


def test_what_cannot_be_trusted_is_not_drawn() -> None:
    """A cell counts as a whole or not at all: one of its requests stalled."""
    whole = [one for one in report_kit.healthy().observations if one.cell.check == "sweep"]
    last = whole.pop()
    stalled = report_kit.failing(last, FailureKind.STALL, "no token for 60 s").samples[0]
    spoilt = replace(last, samples=(stalled, *last.samples[1:]))
    assert spoilt.counted
    drawn, left = (charts(Run(observations=some))["load"].rows for some in ([*whole, spoilt], whole))
    assert drawn == left != charts(Run(observations=[*whole, last]))["load"].rows


def test_without_a_course_there_is_no_chart() -> None:
    run = report_kit.healthy()
    one_level = [
        one for one in run.observations if one.cell.check != "soak" and one.cell.load.concurrency == 8
    ]
    assert charts(dataclasses.replace(run, observations=one_level)) == {}
    assert charts(Run()) == {}


def soak(change: Callable[[int, Observation], Observation]) -> Run:
    made = report_kit.Soak().rounds()
    return Run(observations=[change(place, one) for place, one in enumerate(made)])


def later(one: Observation) -> Observation:
    """*one* with times to the first token that are 400 ms longer."""
    samples = (
        replace(
            sample,
            chunks=tuple(replace(chunk, at=chunk.at + 400_000_000) for chunk in sample.chunks),
            ended=sample.ended + 400_000_000,
        )
        for sample in one.samples
    )
    return replace(one, samples=tuple(samples))


def test_a_soak_shows_when_it_became_slower() -> None:
    healthy, slower = (
        values(charts(soak(change))["soak"], "TTFT ms")
        for change in (lambda _, one: one, lambda place, one: later(one) if place >= 9 else one)
    )
    assert max(healthy) < 1.05 * min(healthy)
    half = len(slower) // 2
    assert slower[: half - 1] == healthy[: half - 1]
    assert [
        round(one - other) for one, other in zip(slower[half + 1 :], healthy[half + 1 :], strict=True)
    ] == ([400] * (len(slower) - half - 1))


def test_a_soak_shows_memory_that_grows() -> None:
    found = charts(report_kit.healthy())["soak"]
    memory = values(found, "server's memory, GiB")
    assert memory == sorted(memory)
    assert memory[-1] - memory[0] == pytest.approx(1890 / 9 / 1024, abs=0.03)
    low, high = next(one.ends for one in found.panels if one.title.startswith("server"))
    assert 0 < low < memory[0] < memory[-1] < high
    assert len(found.rows) <= 41


def test_a_drawing_has_a_title_a_description_and_escaped_words() -> None:
    line = Line([Point(1, 2.0), Point(4, 3.0, 2.5, 3.5)], style=1)
    made = parse(
        draw("one", "<Title>", "1 < 2", Axis("c & d", 1, 4, binary=True), [Panel("y", [line], 100.0)])
    )
    assert [child.text for child in made[:2]] == ["<Title>", "1 < 2"]
    assert made.attrib["aria-labelledby"].split() == [child.attrib["id"] for child in made[:2]]
    labels = [one.text for one in made.iter("text")]
    assert labels == ["y", "0", "1", "2", "3", "1", "2", "4", "c & d"]
    group = next(one for one in made.iter("g") if one.attrib.get("class") == "s1")
    path, bars, marks = (one.attrib["d"] for one in group)
    assert path.count("L") == 1
    assert bars.count("M") == 1
    assert marks.count("M") == 2


def test_a_very_wide_interval_does_not_flatten_the_lines() -> None:
    panel = Panel("y", [Line([Point(1, 2.0), Point(4, 3.0, 0.1, 900.0)])], 100.0)
    assert panel.ends == (0.0, pytest.approx(6.3))


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [(0, 1, [0, 0.5, 1]), (0, 1456, [0, 500, 1000]), (8.1, 9.9, [8.5, 9, 9.5]), (3, 3, [3])],
)
def test_labels_are_round(low: float, high: float, shown: list[float]) -> None:
    assert round_values(low, high) == shown
