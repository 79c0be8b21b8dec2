"""Two arms compared: ratios with their intervals, and what could have been seen at all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sparkwright.verify.report.charts.chart import WHOLE, Chart
from sparkwright.verify.report.drawing.kinds import Interval, intervals
from sparkwright.verify.report.drawing.plot import Naming
from sparkwright.verify.report.drawing.scale import ratios
from sparkwright.verify.report.text import NOTHING, number, plural, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkwright.verify.model import Finding
    from sparkwright.verify.report.figures import CellFigures
    from sparkwright.verify.run import Run

# How the finding of a comparison calls its figures; what it does not know is a word.
RATIO, LOW, HIGH = "speed over the baseline's", "low", "high"
DETECTABLE = "smallest difference that would show %"


def compare_charts(run: Run, found: Sequence[CellFigures]) -> Iterator[Chart]:
    """The comparison's intervals, as its findings measured them."""
    del found
    rows = [row for one in run.findings if one.check == "compare" and (row := _interval(one))]
    if not rows:
        return
    x = ratios(RATIO, [edge for row in rows for edge in (row.low, row.ratio, row.high)])
    decided = [row for row in rows if row.low > 1 or row.high < 1]
    lead = f"{plural(len(decided), 'difference')} of {len(rows)} can be told from none."
    meaning = (
        "Ratio of the tested server to the baseline with its 95 % interval over boots. An interval across 1 "
        "decides nothing. The pale band is the least difference that this many boots could have shown."
    )
    yield Chart(
        key="compare",
        title="Tested server against baseline",
        lead=lead,
        meaning=meaning,
        widths=WHOLE,
        draw=lambda key, width: intervals(
            Naming(key, "Tested server against baseline", f"{meaning} {lead}"), width, x, rows
        ),
        columns=("what", "ratio", "low", "high", "minimum detectable", "verdict"),
        rows=tuple(_row(row) for row in rows),
    )


def _interval(finding: Finding) -> Interval | None:
    """What a finding compared, or `None` if it compared nothing."""
    if RATIO not in finding.measured:
        return None
    ratio, low, high, detectable = (
        float(value) if isinstance(value := finding.measured.get(name, ""), float | int) else unknown
        for name, unknown in ((RATIO, math.nan), (LOW, 0.0), (HIGH, math.inf), (DETECTABLE, math.nan))
    )
    words = f"{finding.name}: {number(ratio)} ({number(low)} to {number(high)})"
    return Interval(finding.name, ratio, low, high, detectable / 100, finding.verdict.value, words)


def _row(row: Interval) -> tuple[str, ...]:
    detectable = f"±{share(row.detectable)}" if math.isfinite(row.detectable) else NOTHING
    return row.label, number(row.ratio), number(row.low), number(row.high), detectable, row.verdict
