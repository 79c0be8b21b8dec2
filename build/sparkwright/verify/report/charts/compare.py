"""The comparison of two servers: ratios with their intervals, and the least detectable difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparkwright.base.text import clean
from sparkwright.engine.findings import Finding
from sparkwright.verify.report.charts.chart import WHOLE, Chart
from sparkwright.verify.report.plots import COLOUR, WORDS, Axis, Spec, field, layer, whole
from sparkwright.verify.report.text import NOTHING, number, plural, share
from sparkwright.verify.run import Run

ORDER = 50  # among the charts of the page

# Names of a comparison's measurements; unknown ones are words.
RATIO, LOW, HIGH = "speed over the baseline's", "low", "high"
DETECTABLE = "smallest difference that would show %"

_TICKS = (0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.5, 2, 3, 4)
_END = "M-.15,-.6h.3v1.2h-.3Z"  # an upright stroke


@dataclass(frozen=True)
class ComparisonInterval:
    """A ratio between two servers with its interval, and the least difference that would show."""

    label: str
    ratio: float
    low: float
    high: float
    detectable: float
    verdict: str


def charts(run: Run) -> Iterator[Chart]:
    """Return the intervals of the comparison, as its findings hold them."""
    rows = [row for one in run.findings if one.check == "compare" and (row := _interval(one))]
    if not rows:
        return
    decided = [row for row in rows if row.low > 1 or row.high < 1]
    lead = f"{plural(len(decided), 'difference')} of {len(rows)} can be told from none."
    meaning = (
        "Ratio of the tested server to the baseline with its interval over starts. An interval across 1 "
        "decides nothing. The pale band is the least difference that this many starts could have shown."
    )
    yield Chart(
        key="compare",
        title="Tested server against baseline",
        lead=lead,
        meaning=meaning,
        widths=WHOLE,
        draw=lambda width: _intervals(width, rows),
        columns=("comparison", "ratio", "low", "high", "minimum detectable", "verdict"),
        rows=tuple(_row(row) for row in rows),
    )


def _interval(finding: Finding) -> ComparisonInterval | None:
    """Return the interval of a finding, or `None` if it has none."""
    if RATIO not in finding.measured:
        return None
    ratio, low, high, detectable = (
        float(value) if isinstance(value := finding.measured.get(name, ""), float | int) else unknown
        for name, unknown in ((RATIO, math.nan), (LOW, 0.0), (HIGH, math.inf), (DETECTABLE, math.nan))
    )
    return ComparisonInterval(finding.name, ratio, low, high, detectable / 100, finding.verdict.value)


def _axis(rows: Sequence[ComparisonInterval]) -> Axis:
    """Return a logarithmic axis with 1 in its middle, from ±10 % to a quarter and four times."""
    found = [abs(math.log(v)) for row in rows for v in (row.low, row.ratio, row.high) if 0 < v < math.inf]
    reach = math.exp(min(math.log(4), max(math.log(1.1), *found) * 1.1))
    return Axis(RATIO, 1 / reach, reach, 10)


def _intervals(width: float, rows: Sequence[ComparisonInterval]) -> Spec:
    """Return intervals around 1; those that go beyond the axis end in an arrow."""
    x = _axis(rows)
    values = [{"row": index, **_marks(row, x)} for index, row in enumerate(rows)]
    across = x.encoding(
        "ratio",
        width,
        grid=True,
        values=[ratio for ratio in _TICKS if x.low <= ratio <= x.high],
        labelExpr="datum.value == 1 ? 'equal' : format(datum.value - 1, '+.0%')",
        gridColor={"condition": {"test": "datum.value == 1", "value": "var(--soft)"}, "value": "var(--line)"},
    )
    y = field("row", "ordinal", axis=None)
    beside = width > 700  # noqa: PLR2004 - names fit at the left
    text = (
        {"align": "right", "dx": -14, "limit": 300} if beside else {"align": "left", "dy": -24, "limit": 340}
    )
    band = {"type": "rule", "strokeWidth": 22, "opacity": 0.16, "color": "var(--soft)"}
    known = [value for value in values if math.isfinite(value["below"])]
    end = {"type": "point", "filled": True, "size": 70, "opacity": 1}
    layers = [
        layer(band, known, x={**across, "field": "below"}, x2={"field": "above"}, y=y),
        layer(
            {"type": "rule", "strokeWidth": 2.5},
            values,
            x={**across, "field": "low"},
            x2={"field": "high"},
            y=y,
            color=COLOUR,
        ),
        layer(end, values, x={**across, "field": "low"}, y=y, color=COLOUR, shape=field("left", scale=None)),
        layer(
            end, values, x={**across, "field": "high"}, y=y, color=COLOUR, shape=field("right", scale=None)
        ),
        layer(
            {"type": "circle", "size": 80, "opacity": 1},
            values,
            x=across,
            y=y,
            color=COLOUR,
            description=WORDS,
        ),
        layer({"type": "text", **text}, values, x={"value": 0}, y=y, text=field("label")),
    ]
    return whole(width, {"step": 34 if beside else 54}, layers)


def _marks(row: ComparisonInterval, x: Axis) -> Spec:
    places = {"ratio": row.ratio, "low": row.low, "high": row.high}
    places |= {"below": 1 / (1 + row.detectable), "above": 1 + row.detectable}
    return {
        **{name: min(x.high, max(x.low, value)) for name, value in places.items()},
        "label": clean(row.label),
        "words": clean(f"{row.label}: {number(row.ratio)} ({number(row.low)} to {number(row.high)})"),
        "colour": f"var(--{row.verdict})",
        "left": "triangle-left" if row.low < x.low else _END,
        "right": "triangle-right" if row.high > x.high else _END,
    }


def _row(row: ComparisonInterval) -> tuple[str, ...]:
    detectable = f"±{share(row.detectable)}" if math.isfinite(row.detectable) else NOTHING
    return row.label, number(row.ratio), number(row.low), number(row.high), detectable, row.verdict
