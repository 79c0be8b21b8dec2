"""Axes, places of labels, the soak's windows, and colours that everybody can tell apart."""

from __future__ import annotations

import itertools
import math
import re

import msgspec
import numpy as np
import pytest
import report_kit
from hypothesis import given
from hypothesis import strategies as st

from sparkwright.verify.report.drawing import scale
from sparkwright.verify.report.drawing.plot import LINE, Box, Point, Series, lines, spread
from sparkwright.verify.report.figures import moments
from sparkwright.verify.report.html import TEMPLATES
from sparkwright.verify.report.text import at_c, duration, number, share, span

POSITIVE = st.floats(1e-3, 1e7)


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


# Axes ----------------------------------------------------------------------------------------------------


@given(st.lists(POSITIVE, min_size=1, max_size=9), st.sampled_from(["linear", "log2", "log10"]))
def test_an_axis_holds_its_values_and_reads_upwards(values: list[float], kind: str) -> None:
    axis = getattr(scale, kind)("x", values)
    assert axis.low <= min(values) or kind == "linear"
    assert axis.high >= max(values) * (1 - 1e-9)
    places = [axis(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)
    ticks = [value for value, _ in axis.ticks]
    assert 2 <= len(ticks) <= 40
    assert ticks == sorted(set(ticks))
    assert axis.low <= ticks[0] < ticks[-1] <= axis.high
    labels = [label for _, label in axis.ticks]
    assert len(labels) == len(set(labels))


@given(st.lists(st.floats(-1e6, 1e6), min_size=0, max_size=9))
def test_a_linear_axis_begins_at_zero(values: list[float]) -> None:
    axis = scale.linear("x", values)
    assert axis.low <= 0 <= axis.high
    assert 2 <= len(axis.ticks) <= 12


def test_doubling_is_always_the_same_way() -> None:
    axis = scale.log2("c", [1, 64])
    assert [label for _, label in axis.ticks] == ["1", "2", "4", "8", "16", "32", "64"]
    places = [axis(2.0**power) for power in range(7)]
    assert np.diff(places) == pytest.approx([1 / 6] * 6)


def test_time_is_labelled_in_a_fitting_unit() -> None:
    assert scale.minutes("t", 33 * 60).title == "t (min)"
    assert [label for _, label in scale.minutes("t", 33 * 60).ticks] == [
        "0",
        "5",
        "10",
        "15",
        "20",
        "25",
        "30",
    ]
    assert scale.minutes("t", 40).title == "t (s)"
    assert scale.minutes("t", 20 * 3600).title == "t (h)"


@given(st.lists(st.floats(0, 50) | st.just(math.inf), min_size=1, max_size=6))
def test_ratios_lie_around_one(values: list[float]) -> None:
    axis = scale.ratios("r", values)
    assert axis(1.0) == pytest.approx(0.5)
    assert "equal" in [label for _, label in axis.ticks]
    assert len(axis.ticks) >= 3
    assert all(0 <= axis(value) <= 1 for value in values if value > 0)


@given(st.lists(st.floats(0, 250), min_size=1, max_size=12))
def test_labels_keep_apart_and_inside(wanted: list[float]) -> None:
    wanted = sorted(wanted)
    places = spread(wanted, LINE, 0, 250)
    gaps = np.diff(places)
    assert (gaps >= LINE - 1e-6).all()
    assert places[0] >= -1e-6
    assert places[-1] <= 250 + 1e-6


def test_a_label_with_room_stays_where_it_belongs() -> None:
    assert spread([10, 100, 200], LINE, 0, 250) == [10, 100, 200]


# The soak's windows --------------------------------------------------------------------------------------


def test_windows_tile_a_cell() -> None:
    seen = report_kit.Soak().cell(0, "traffic", 300)
    windows = moments(seen, 0.0, 1.0)
    assert len(windows) == 10
    assert windows[0].begin_s == 0
    assert windows[-1].end_s == 300
    assert all(a.end_s == b.begin_s for a, b in itertools.pairwise(windows))
    assert all(0.4 < window.acceptance < 0.5 for window in windows)


def test_a_restart_is_seen_in_its_window() -> None:
    soak = report_kit.Soak()
    seen = soak.cell(0, "traffic", 120)
    half = len(seen.series) // 2
    series = [
        msgspec.structs.replace(one, start_s=9.0) if i >= half else one for i, one in enumerate(seen.series)
    ]
    assert seen.after is not None
    broken = msgspec.structs.replace(
        seen, series=tuple(series), after=msgspec.structs.replace(seen.after, start_s=9.0)
    )
    assert [window.reset for window in moments(broken, 0.0, 1.0)].count(True) == 1
    assert not any(window.reset for window in moments(seen, 0.0, 1.0))


def test_no_line_joins_what_lies_apart() -> None:
    points = [Point(float(i), 0.5, apart=i == 2) for i in range(4)]
    axis = scale.linear("x", [0, 3])
    drawn = lines(Box(0, 0, 100, 100), axis, axis, [Series("s", 0, tuple(points))])
    path = drawn.find(".//path[@class='line s0']")
    assert path is not None
    assert path.get("d", "").count("M") == 2
    path = lines(Box(0, 0, 100, 100), axis, axis, [Series("s", 0, tuple(points[:2]))]).find(".//path")
    assert path is not None
    assert path.get("d", "").count("M") == 1


# Colours -------------------------------------------------------------------------------------------------

# How eyes without one kind of cones see linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "all cones": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
OKLAB = (
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ],
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ],
)
VERDICTS = ("pass", "fail", "invalid", "inconclusive")


def themes() -> dict[str, dict[str, str]]:
    """The style sheets' colours by theme; dark ones are laid over light ones."""
    blocks = re.findall(r":root \{(.*?)\}", (TEMPLATES / "style.css").read_text(), re.DOTALL)
    paper = re.findall(r":root \{(.*?)\}", (TEMPLATES / "print.css").read_text(), re.DOTALL)
    assert len(blocks) == 2
    assert len(paper) == 1
    light, dark, printed = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in (*blocks, *paper))
    return {"light": light, "dark": light | dark, "print": printed}


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio, from 1 to 21."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def apart(one: str, other: str, eye: str) -> float:
    """How far two colours lie apart for an eye: distance in Oklab, where black and white are 1 apart."""
    seen = [np.clip(np.array(EYES[eye]) @ linear(colour), 0, 1) for colour in (one, other)]
    first, second = (np.array(OKLAB[1]) @ np.cbrt(np.array(OKLAB[0]) @ colour) for colour in seen)
    return float(np.linalg.norm(first - second))


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_words_and_marks_stand_out(theme: str) -> None:
    colours = themes()[theme]
    for ground in ("page", "card"):
        for ink in ("ink", "soft", "link"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for verdict in VERDICTS:
        for ground in (colours[f"{verdict}-pale"], colours["card"]):
            assert contrast(colours[verdict], ground) >= 4.5, verdict
    for style in range(6):
        assert contrast(colours[f"s{style}"], colours["card"]) >= 3, style


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_series_differ_for_every_eye(theme: str, eye: str) -> None:
    colours = themes()[theme]
    for one, other in itertools.combinations([colours[f"s{style}"] for style in range(6)], 2):
        assert apart(one, other, eye) >= 0.12


def test_a_confusing_pair_is_seen() -> None:
    red, green = "#b0502c", "#5f8030"  # far apart, but not without green cones
    assert apart(red, green, "all cones") > 0.12
    assert apart(red, green, "deuteranopia") < 0.12
    assert contrast("#e69f00", "#ffffff") < 3
