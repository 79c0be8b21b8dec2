"""Drawings of charts, words and figures, acceptance over time, and colours that stand out."""

import itertools
import math
import re
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

import pytest
import report_kit
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from verify_kit import counted

from sparkwright.verify.report.charts import charts_of
from sparkwright.verify.report.figures import windows
from sparkwright.verify.report.svg import (
    Axis,
    Point,
    Series,
    draw_lines,
    from_zero,
    powers_of_two,
    spread,
)
from sparkwright.verify.report.text import at_c, duration, number, share, span
from sparkwright.verify.run import Run

CARD = "var(--card)"


# Words ---------------------------------------------------------------------------------------------------


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


def test_other_words() -> None:
    assert [duration(s) for s in (0, 45, 59.96, 60, 1080, 9360)] == [
        *("0 s", "45 s", "60 s", "1:00 min", "18:00 min", "2:36 h"),
    ]
    assert [share(value) for value in (0.457, 0.25, 0.003, 1.0, math.nan)] == [
        *("45.7 %", "25 %", "0.3 %", "100 %", "\N{EN DASH}"),
    ]
    assert span([2.0, 2.0]) == "2"
    assert span([3.5, 1.25]) == "1.25 to 3.50"
    assert at_c(8).replace("\xa0", " ") == "c = 8"


# Drawings -----------------------------------------------------------------------------------------------


def drawn(*series: Series) -> Element:
    """Lines over 1 to 8, from 0 to 10."""
    axes = powers_of_two("c", [1, 8]), from_zero("unit", [10])
    return ET.fromstring(draw_lines("key", "Title", "All of it, in words.", axes, series))  # noqa: S314 - our own


def rising(name: str = "code", style: int = 0, *, suspect: bool = False) -> Series:
    """Four points, of which the third may be *suspect*."""
    points = [Point(2.0**i, 2.0 + i, f"{name} {i}", suspect and i == 2) for i in range(4)]
    return Series(name, style, tuple(points))


def words(drawing: Element) -> list[str]:
    return [one.text or "" for one in drawing.iter("text")]


def test_charts_are_in_the_order_of_the_page_in_its_colours_and_whole() -> None:
    for run in (report_kit.healthy(), report_kit.unhealthy()):
        charts = charts_of(run)
        assert [chart.key for chart in charts] == ["throughput", "mal", "soak"]
        for chart in charts:
            assert "nan" not in chart.drawing
            for element in ET.fromstring(chart.drawing).iter():  # noqa: S314 - our own
                for name in ("fill", "stroke"):
                    assert re.fullmatch(r"var\(--[\w-]+\)|none", element.get(name, "none")), chart.key
                assert not {"font-family", "style", "href"} & set(element.attrib)
    assert charts_of(Run()) == ()


def marks(drawing: Element) -> list[Element]:
    """The paths that tell their figures."""
    return [one for one in drawing.iter("path") if len(one)]


def test_series_differ_in_shape_and_not_in_colour_alone() -> None:
    drawing = drawn(*(rising(str(style), style) for style in range(6)))
    shapes = {re.sub(r"^M[\d.]+,[\d.]+", "", one.get("d", "")) for one in marks(drawing)}
    assert len(shapes) == 6


def test_a_figure_not_to_be_trusted_is_hollow() -> None:
    def hollow(drawing: Element) -> list[str | None]:
        return [one[0].text for one in marks(drawing) if one.get("fill") == CARD]

    assert hollow(drawn(rising(suspect=True))) == ["code 2"]
    assert hollow(drawn(rising())) == []


@pytest.mark.parametrize(
    ("axis", "labels"),
    [
        (from_zero("", [81.0]), ["0", "20", "40", "60", "80"]),
        (from_zero("", [0.9]), ["0", "0.2", "0.4", "0.6", "0.8"]),
        (powers_of_two("", [1, 64]), ["1", "2", "4", "8", "16", "32", "64"]),
        (powers_of_two("", [3]), ["4"]),
        (from_zero("", [12_000]), ["0", "5,000", "10,000"]),
        (Axis("", 0, 1, percent=True), ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
        (Axis("min", 0.0, 1200.0, unit=60), ["0", "5", "10", "15", "20"]),
    ],
)
def test_axes_are_labelled_by_round_values(axis: Axis, labels: list[str]) -> None:
    assert [label for _, label in axis.ticks()] == labels
    places = [axis(value) for value, _ in axis.ticks()]
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] <= 1


@given(st.lists(st.floats(0, 250), min_size=1, max_size=12))
def test_labels_keep_apart_and_inside(wanted: list[float]) -> None:
    places = spread(sorted(wanted), 16, 0, 250)
    assert all(b - a >= 16 - 1e-6 for a, b in itertools.pairwise(places))
    assert places[0] >= -1e-6
    assert places[-1] <= 250 + 1e-6


# Acceptance over time ------------------------------------------------------------------------------------


def test_windows_tile_a_cell() -> None:
    found = list(windows(report_kit.Soak().cell(0, "traffic", 300), 1.0, 30.0))
    assert [at for at, _ in found] == pytest.approx([15 + 30 * number for number in range(10)])
    assert all(0.4 < rate < 0.5 for _, rate in found)


def test_a_window_in_which_counters_restarted_is_left_out() -> None:
    seen = report_kit.Soak().cell(0, "traffic", 120)
    half = len(seen.series) // 2
    later = (replace(one, start_s=9.0) for one in seen.series[half:])
    broken = replace(counted(seen, start_s=9.0), series=(*seen.series[:half], *later))
    assert len(list(windows(broken, 1.0, 30.0))) == len(list(windows(seen, 1.0, 30.0))) - 1


# Colours -------------------------------------------------------------------------------------------------
