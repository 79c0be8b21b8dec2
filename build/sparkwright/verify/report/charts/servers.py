"""Charts of servers: loads that they survived, the comparison of two, and the memory of each start."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sparkwright.base.text import clean
from sparkwright.engine.findings import Finding
from sparkwright.engine.observations import BootFacts
from sparkwright.verify.checks.settings import NAME as SETTINGS
from sparkwright.verify.report.charts.chart import Chart, Table, chart_of, name_of, trouble_of
from sparkwright.verify.report.figures import CellFigures, cells
from sparkwright.verify.report.plots import (
    Axis,
    linear,
)
from sparkwright.verify.report.text import NOTHING, number, plural, share
from sparkwright.verify.report.vega import Spec, bind
from sparkwright.verify.run import Run

# Crash ------------------------------------------------------------------------------------------------

_TILE = 46  # pixels, with the gap


def crash_charts(run: Run) -> Iterator[Chart]:
    """Yield the outcome of each load, if any was measured."""
    hunted = cells(run, "crash")
    if not hunted:
        return
    bad = [cell for cell in hunted if cell.trouble]
    lead = f"{plural(len(hunted), 'load')}, all survived."
    if bad:
        lead = f"{plural(len(bad), 'load')} of {len(hunted)} went wrong, first {name_of(bad[0])}."
    yield chart_of(
        "crash",
        lead=lead,
        draw=lambda width: _tiles(width, hunted),
        table=Table.of(
            hunted,
            {
                "load": name_of,
                "shape": lambda cell: cell.observation.cell.load.shape,
                "c": lambda cell: str(cell.concurrency),
                "requests": lambda cell: str(len(cell.observation.samples)),
                "failed": lambda cell: str(len(cell.observation.failed)),
                "trouble": trouble_of,
            },
        ),
    )


def _tiles(width: float, hunted: Sequence[CellFigures]) -> Spec:
    """Return a square for each load, in order: a tick where it passed, a cross where not."""
    columns = max(1, int(width // _TILE))
    tiles = [
        {"column": index % columns, "line": index // columns, **_tile(cell)}
        for index, cell in enumerate(hunted)
    ]
    return bind("tiles", size=_TILE, tiles=tiles, columns=list(range(columns)))


def _tile(cell: CellFigures) -> Spec:
    load, bad = cell.observation.cell.load, bool(cell.trouble)
    wave = cell.observation.cell.tags.get("kind") == "wave"
    drain = load.shape == "drain" and not wave
    return {
        "label": f"{'~' if wave else ''}{load.concurrency}{'↓' if drain else ''}",
        "sign": "✗" if bad else "✓",
        "words": clean(f"{name_of(cell)}: {trouble_of(cell) or 'passed'}"),
        "ground": "var(--fail)" if bad else "var(--pass-pale)",
        "colour": "var(--card)" if bad else "var(--pass)",
    }


# Comparison -------------------------------------------------------------------------------------------

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

    @classmethod
    def of(cls, finding: Finding) -> ComparisonInterval:
        """Return the interval of a finding that has one."""
        ratio, low, high, detectable = (
            float(value) if isinstance(value := finding.measured.get(name, ""), float | int) else unknown
            for name, unknown in ((RATIO, math.nan), (LOW, 0.0), (HIGH, math.inf), (DETECTABLE, math.nan))
        )
        return cls(finding.name, ratio, low, high, detectable / 100, finding.verdict.value)


def compare_charts(run: Run) -> Iterator[Chart]:
    """Yield the intervals of the comparison, as its findings hold them."""
    checks = {"compare", SETTINGS}
    compared = [one for one in run.findings if one.check in checks and RATIO in one.measured]
    rows = [ComparisonInterval.of(one) for one in compared]
    if not rows:
        return
    decided = [row for row in rows if row.low > 1 or row.high < 1]
    yield chart_of(
        "compare",
        lead=f"{plural(len(decided), 'difference')} of {len(rows)} can be told from none.",
        draw=lambda width: _intervals(width, rows),
        table=Table.of(
            rows,
            {
                "comparison": lambda row: row.label,
                "ratio": lambda row: number(row.ratio),
                "low": lambda row: number(row.low),
                "high": lambda row: number(row.high),
                "minimum detectable": lambda row: (
                    f"±{share(row.detectable)}" if math.isfinite(row.detectable) else NOTHING
                ),
                "verdict": lambda row: row.verdict,
            },
        ),
    )


def _intervals(width: float, rows: Sequence[ComparisonInterval]) -> Spec:
    """Return intervals around 1, on an axis from ±10 % to a quarter and four times, with arrows beyond it."""
    found = [abs(math.log(v)) for row in rows for v in (row.low, row.ratio, row.high) if 0 < v < math.inf]
    reach = math.exp(min(math.log(4), max(math.log(1.1), *found) * 1.1))
    x = Axis(RATIO, 1 / reach, reach, 10)
    values = [{"row": index, **_marks(row, x)} for index, row in enumerate(rows)]
    beside = width > 700  # noqa: PLR2004 - names fit at the left
    places = {
        name: x.encoding(
            name,
            width,
            grid=True,
            values=[ratio for ratio in _TICKS if x.low <= ratio <= x.high],
            labelExpr="datum.value == 1 ? 'equal' : format(datum.value - 1, '+.0%')",
            gridColor=bind("equal"),
        )
        for name in ("ratio", "low", "high", "below")
    }
    known = [value for value in values if math.isfinite(value["below"])]
    text = bind("beside" if beside else "above")
    return bind(
        "intervals", **places, width=width, step=34 if beside else 54, rows=values, known=known, text=text
    )


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


# Boot -------------------------------------------------------------------------------------------------


def boot_charts(run: Run) -> Iterator[Chart]:
    """Yield the memory by boot, if any boot log records it."""
    rows = [
        (f"{arm}, start {boot + 1}", facts) for (arm, boot), facts in run.facts.items() if facts.kv_gib > 0
    ]
    if not rows:
        return

    def column(value: Callable[[BootFacts], float]) -> Callable[[tuple[str, BootFacts]], str]:
        return lambda row: number(value(row[1])) if value(row[1]) >= 0 else NOTHING

    yield chart_of(
        "memory",
        lead=_memory_lead(rows),
        draw=lambda width: _memory(width, rows),
        table=Table.of(
            rows,
            {
                "start": lambda row: row[0],
                "weights, GiB": column(lambda facts: facts.weights_gib),
                "graphs, GiB": column(_graphs),
                "KV, GiB": column(lambda facts: facts.kv_gib),
                "KV tokens": column(lambda facts: facts.kv_tokens),
                "limit, GiB": column(_limit),
                "card, GiB": column(lambda facts: facts.total_gib),
            },
        ),
    )


def _graphs(facts: BootFacts) -> float:
    """Return the memory of CUDA graphs in GiB: as captured, else as estimated; 0 if unknown or negative."""
    if facts.graph_actual_gib >= 0:
        return facts.graph_actual_gib
    return max(0.0, facts.graph_gib or 0.0)


def _limit(facts: BootFacts) -> float:
    known = facts.total_gib > 0 and facts.utilization > 0
    return facts.total_gib * facts.utilization if known else 0.0


def _memory_lead(rows: Sequence[tuple[str, BootFacts]]) -> str:
    over = [label for label, facts in rows if 0 < _limit(facts) < facts.kv_gib + max(0.0, facts.weights_gib)]
    negative = [label for label, facts in rows if facts.graph_gib is not None and facts.graph_gib < 0]
    if over or negative:
        parts = [f"{', '.join(over)}: over the limit"] if over else []
        parts += [f"{', '.join(negative)}: CUDA graphs estimated below zero"] if negative else []
        return f"{'; '.join(parts)}."
    tokens = [facts.kv_tokens for _, facts in rows if facts.kv_tokens > 0]
    return f"{number(min(tokens))} tokens fit into the KV cache." if tokens else "All within the limit."


def _memory(width: float, rows: Sequence[tuple[str, BootFacts]]) -> Spec:
    """Return a bar for each boot, made of its parts, within the card's memory and the limit."""
    uses = [
        {
            "weights": (max(0.0, facts.weights_gib), "var(--s0)"),
            "CUDA graphs": (_graphs(facts), "var(--s1)"),
            "KV cache": (facts.kv_gib, "var(--s4)"),
        }
        for _, facts in rows
    ]
    used = [sum(gib for gib, _ in parts.values()) for parts in uses]
    x = linear("GiB", [*used, *(max(facts.total_gib, _limit(facts)) for _, facts in rows)])
    boots: list[Spec] = []
    shares: list[Spec] = []
    for index, ((label, facts), parts) in enumerate(zip(rows, uses, strict=True)):
        place = {"boot": index, "label": clean(label)}
        boots.append({**place, "begin": 0, "end": max(0.0, facts.total_gib), "limit": _limit(facts)})
        begin = 0.0
        for name, (gib, colour) in parts.items():
            fits = x(gib) * (width - 40) > len(name) * 7 + 14
            words = clean(f"{label}: {name} {gib:.1f} GiB")
            part = {"begin": begin, "end": begin + gib, "colour": colour, "words": words}
            shares.append({**place, **part, "name": name if fits else ""})
            begin += gib
    return bind(
        "memory",
        width=width,
        inner=width - 20,
        across=x.encoding("begin", width, grid=True),
        limit=x.encoding("limit", width, grid=True),
        boots=boots,
        shares=shares,
        limits=[row for row in boots if row["limit"] > 0],
    )
