"""The page of a search: the ranking, the front of throughput against latency, and what was left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.engine.findings import Verdict
from sparkwright.verify.report.charts.chart import Chart, Table
from sparkwright.verify.report.html import render_page
from sparkwright.verify.report.plots import Note, Point, Series, linear, lines, logarithmic
from sparkwright.verify.report.text import NOTHING, at_c, number, plural
from sparkwright.verify.tune.options import TuneOptions
from sparkwright.verify.tune.result import LevelFigures, Outcome, Row, Speculation, TuneResult
from sparkwright.verify.tune.strategy import ASSUMED, OWN, State, percent

LEFT_OUT = {State.REFUSED, State.BREAKS, State.WORSE, State.UNKNOWN}
_VERDICTS = {Outcome.OTHER: Verdict.PASS, Outcome.KEEP: Verdict.PASS, Outcome.NONE: Verdict.FAIL}
_HEADINGS = {
    Outcome.OTHER: "Serve another configuration",
    Outcome.KEEP: "Keep the recipe as it is",
    Outcome.NONE: "No configuration can be recommended",
}


def ranking_columns(options: TuneOptions) -> tuple[str, ...]:
    """Return the heads of the ranking."""
    levels = [f"tok/s {at_c(level)}" for level in options.levels]
    worst = max(options.levels)
    return (
        "configuration",
        "standing",
        "against the recipe",
        *levels,
        f"TTFT p95 s, {at_c(worst)}",
        "starts",
    )


def ranking_row(row: Row, options: TuneOptions) -> tuple[str, ...]:
    """Return one configuration of the ranking."""
    rates = [number(one.rate) for one in row.levels] or [NOTHING] * len(options.levels)
    late = number(max(row.levels, key=lambda one: one.level).ttft_p95) if row.levels else NOTHING
    against = str(row.to_own) if row.to_own is not None else NOTHING
    state = str(row.standing.state)
    return (row.configuration.name, state, against, *rates, late, str(len(row.trial.starts)))


def render_tune(result: TuneResult, options: TuneOptions, told: Mapping[str, str], seconds: float) -> str:
    """Return the page of *result*; it needs no network."""
    sentences = [result.said, *(f"{one.configuration}: {one.said}" for one in result.speculation)]
    running = [row for row in result.rows if row.standing.state not in LEFT_OUT]
    out = [row for row in result.rows if row.standing.state in LEFT_OUT]
    charts = _charts(result)
    values: dict[str, Any] = {
        "title": f"{_HEADINGS[result.outcome]}: {told.get('recipe', '')}",
        "heading": _HEADINGS[result.outcome],
        "verdict": _VERDICTS[result.outcome],
        "small": [plural(result.starts, "start"), f"measured for {number(round(seconds / 60, 1))} min"],
        "subject": told.get("recipe", ""),
        "sentences": sentences,
        "meaning": _meaning(result, options),
        "ranking": {
            "columns": ranking_columns(options),
            "rows": [ranking_row(row, options) for row in running],
        },
        "charts": charts,
        "first": len(charts),
        "troubled": False,
        "out": {
            "columns": ("configuration", "standing", "because"),
            "rows": [(row.configuration.name, str(row.standing.state), row.standing.why) for row in out],
        },
        "provenance": list(told.items()),
    }
    return render_page("tune.html", **values)


def objective_words(options: TuneOptions) -> str:
    """Return what is maximised."""
    kind = f"tokens a second of requests that kept {options.slo}" if options.objective == "goodput" else (
        "tokens a second"
    )  # fmt: skip
    shares = ", ".join(
        f"c={level} {100 * weight:.0f} %"
        for level, weight in zip(options.levels, options.weighted, strict=True)
    )
    return f"{kind}, geometric mean over concurrencies, weighted {shares}"


def _meaning(result: TuneResult, options: TuneOptions) -> str:
    repeated = result.noise.degrees - ASSUMED
    limits = f" Limit: {options.slo}." if options.slo else ""
    reserve = f" {options.reserve_gib:g} GiB of memory stay available." if options.reserve_gib else ""
    return (
        f"Objective: {objective_words(options)}. Starts of a server are the unit of replication; they differ"
        f" by {100 * result.noise.spread:.1f} % ({repeated:.0f} of them repeated one), and intervals follow"
        f" from that.{limits}{reserve}"
    )


# Charts ----------------------------------------------------------------------------------------------------


def _charts(result: TuneResult) -> list[Chart]:
    running = [row for row in result.rows if row.standing.state not in LEFT_OUT and row.levels]
    charts = [_front(running, result)] if running else []
    return charts + [
        _speculation(one, number_) for number_, one in enumerate(result.speculation) if len(one.payoffs) > 1
    ]


def _front(rows: Sequence[Row], result: TuneResult) -> Chart:
    points = [one for row in rows for one in row.levels]
    front = sorted((one for one in points if one.on_front), key=lambda one: one.tpot_p50)
    fastest = front[0]
    return Chart(
        key="front",
        title="Throughput against latency",
        lead=f"{plural(len(front), 'point')} of {len(points)} are on the front; at best a request gets a"
        f" token every {number(fastest.tpot_p50 * 1000)} ms.",
        meaning="Tokens a second of all requests over the time of each token of one request; a point is a"
        " configuration at a concurrency. Points on the front are beaten by none in both.",
        whole=True,
        draw=lambda width: lines(
            width,
            logarithmic("ms a token of one request (p50), logarithmic", [_ms(one) for one in points]),
            logarithmic("tokens a second, logarithmic", [one.rate for one in points]),
            _series(rows, front, result),
            listed=True,
        ),
        table=Table.of(
            [(row, one) for row in rows for one in row.levels],
            {
                "configuration": lambda of: of[0].configuration.name,
                "c": lambda of: str(of[1].level),
                "tokens/s": lambda of: number(of[1].rate),
                "ms a token": lambda of: number(_ms(of[1])),
                "TTFT p50 s": lambda of: number(of[1].ttft_p50),
                "TTFT p95 s": lambda of: number(of[1].ttft_p95),
                "on the front": lambda of: "yes" if of[1].on_front else "",
            },
        ),
    )


def _ms(one: LevelFigures) -> float:
    return one.tpot_p50 * 1000


def _series(rows: Sequence[Row], front: Sequence[LevelFigures], result: TuneResult) -> list[Series]:
    """Return the front as a line, named configurations as lines, and all others as points."""
    named: dict[str, Row] = {}
    if result.chosen is not None:
        named["to serve"] = result.chosen
    plain = {one.without for one in result.speculation}
    for row in rows:
        if row.index == OWN and row is not result.chosen:
            named["the recipe"] = row
        elif row.configuration.name in plain and row is not result.chosen:
            named["no speculation"] = row
    series = [Series("front", 0, tuple(_point(one, "on the front") for one in front))]
    series += [
        Series(name, style, tuple(_point(one, row.configuration.name) for one in row.levels))
        for style, (name, row) in enumerate(named.items(), 1)
    ]
    others = [row for row in rows if row.index not in {one.index for one in named.values()}]
    points = [_point(one, row.configuration.name, apart=True) for row in others for one in row.levels]
    return series + ([Series("others", len(series), tuple(points))] if points else [])


def _point(one: LevelFigures, name: str, *, apart: bool = False) -> Point:
    words = f"{name}, {at_c(one.level)}: {number(one.rate)} tokens/s, {number(_ms(one))} ms a token"
    return Point(_ms(one), one.rate, words, apart=apart)


def _speculation(of: Speculation, number_: int) -> Chart:
    ratios = [(one.level, one.ratio) for one in of.payoffs]
    parts = (("at most", 1, "high"), ("with over without", 0, "value"), ("at least", 2, "low"))
    return Chart(
        key=f"speculation-{number_}",
        title=f"Speed with speculation over that without: {of.configuration}",
        lead=f"{of.said[:1].upper()}{of.said[1:]}.",
        meaning=f"Tokens a second of {of.configuration} over those of {of.without}, by concurrency, with"
        " 95 % intervals. Speculation pays above 1.",
        whole=True,
        draw=lambda width: lines(
            width,
            logarithmic("concurrency, logarithmic", [level for level, _ in ratios], base=2),
            linear("times as fast", [min(ratio.high, 10 * ratio.value) for _, ratio in ratios]),
            [
                Series(
                    name,
                    style,
                    tuple(
                        Point(level, getattr(ratio, part), f"{at_c(level)}: {percent(getattr(ratio, part))}")
                        for level, ratio in ratios
                        if math.isfinite(getattr(ratio, part))
                    ),
                )
                for name, style, part in parts
            ],
            [Note(1.0, "as fast as without")],
        ),
        table=Table.of(
            ratios,
            {
                "c": lambda of: str(of[0]),
                "with over without": lambda of: percent(of[1].value),
                "at least": lambda of: percent(of[1].low),
                "at most": lambda of: percent(of[1].high),
            },
        ),
    )
