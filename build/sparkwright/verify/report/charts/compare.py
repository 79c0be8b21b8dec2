"""Two arms compared: ratios with their intervals, and what could have been seen at all."""

from __future__ import annotations

import math
import re
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

__all__ = ["compare_charts"]

_FIGURE = re.compile(r"(?:(?P<what>.+?) )?(?P<figure>ratio|low|high|minimum detectable)(?P<percent> ?%)?$")


def compare_charts(run: Run, found: Sequence[CellFigures]) -> Iterator[Chart]:
    """The comparison's intervals, as its findings measured them."""
    del found
    rows = [row for one in run.findings if one.check == "compare" for row in _intervals(one)]
    if not rows:
        return
    x = ratios(
        "tested server over baseline", [edge for row in rows for edge in (row.low, row.ratio, row.high)]
    )
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


def _intervals(finding: Finding) -> Iterator[Interval]:
    """What a finding compared: figures called ``ratio``, ``low``, ``high`` and ``minimum detectable``.

    Where it compared several things, their names stand before: ``TTFT ratio``, ``TTFT low`` and so on.
    """
    compared: dict[str, dict[str, float]] = {}
    for name, value in finding.measured.items():
        match = _FIGURE.match(name.replace("_", " "))
        if match and isinstance(value, float | int):
            share_of = 0.01 if match["percent"] else 1.0
            what = (match["what"] or "").removesuffix("ratio").strip()  # also ``ratio low``
            compared.setdefault(what, {})[match["figure"]] = value * share_of
    for what, figures in compared.items():
        if not {"ratio", "low", "high"} <= figures.keys():
            continue
        label = f"{finding.name}: {what}" if what else finding.name
        ratio, low, high = figures["ratio"], figures["low"], figures["high"]
        words = f"{label}: {number(ratio)} ({number(low)} to {number(high)})"
        detectable = figures.get("minimum detectable", math.nan)
        yield Interval(label, ratio, low, high, detectable, finding.verdict.value, words)


def _row(row: Interval) -> tuple[str, ...]:
    detectable = f"±{share(row.detectable)}" if math.isfinite(row.detectable) else NOTHING
    return row.label, number(row.ratio), number(row.low), number(row.high), detectable, row.verdict
