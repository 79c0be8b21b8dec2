"""The soak over time: acceptance, cache hits, throughput and memory above each other, and the onset of decay."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from sparkwright.verify.report.charts.chart import WHOLE, Chart
from sparkwright.verify.report.drawing import scale
from sparkwright.verify.report.drawing.kinds import Naming, Panel, timeline
from sparkwright.verify.report.drawing.plot import Mark, Point, Rule, Series
from sparkwright.verify.report.figures import moments
from sparkwright.verify.report.text import duration, number, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkwright.verify.model import Observation
    from sparkwright.verify.report.figures import CellFigures, Moment
    from sparkwright.verify.run import Run

__all__ = ["soak_charts"]

LEAST_HITS = 0.2  # the soak's own condition: below, the cache is not exercised

_ONSET = re.compile(r"^onset\b.*?(?:_|\s|\()?(?P<unit>min|s)?\)?$")


def soak_charts(run: Run, found: Sequence[CellFigures]) -> Iterator[Chart]:
    """The soak's timeline, if there was one that lasted for two windows."""
    observations = [cell.observation for cell in found if cell.observation.cell.check == "soak"]
    seen = moments(observations, run.speed)
    if len(seen) < 2:  # noqa: PLR2004 - one window is no course
        return
    marks = (*_onsets(run), *_resets(seen))
    panels = _panels(seen, _memory(observations, run.speed))
    x = scale.minutes("time since the soak began", seen[-1].end_s)
    lead = _lead(seen, marks)
    meaning = (
        f"Windows of {duration(round(seen[0].end_s - seen[0].begin_s))} from the server's own counters. Acceptance "
        f"should stay where it began, and the prefix cache must be hit, or nothing was tested."
    )
    yield Chart(
        key="soak",
        title="Prefix-cache soak over time",
        lead=lead,
        meaning=meaning,
        widths=WHOLE,
        draw=lambda key, width: timeline(
            Naming(key, "Prefix-cache soak over time", f"{meaning} {lead}"), width, x, panels, marks
        ),
        columns=("from", "to", "acceptance", "cache hits", "tokens/s", "KV in use", "preemptions"),
        rows=tuple(_row(moment) for moment in seen),
    )


def _onsets(run: Run) -> Iterator[Mark]:
    """When a finding says that decay set in."""
    for finding in run.findings:
        for name, value in finding.measured.items():
            match = _ONSET.match(name)
            if finding.check == "soak" and match and isinstance(value, float | int) and value >= 0:
                seconds = value * 60 if match["unit"] == "min" else value
                yield Mark(seconds, f"onset {duration(seconds)}")


def _resets(seen: Sequence[Moment]) -> Iterator[Mark]:
    return (Mark(moment.begin_s, "counters began anew") for moment in seen if moment.reset)


def _lead(seen: Sequence[Moment], marks: Sequence[Mark]) -> str:
    seen_rates = [moment.acceptance for moment in seen if math.isfinite(moment.acceptance)]
    if not seen_rates:
        return "Nothing was drafted."
    course = f"Acceptance {share(seen_rates[0])} in the first window, {share(seen_rates[-1])} in the last"
    return f"{course}; {', '.join(mark.label for mark in marks)}." if marks else f"{course}."


def _panels(seen: Sequence[Moment], memory: tuple[Point, ...]) -> tuple[Panel, ...]:
    rates = scale.linear("acceptance", [1.0], most=1.0, ticks=4, percent=True)
    hits = scale.linear("prefix-cache hits", [1.0], most=1.0, ticks=2, percent=True)
    speed = _points(seen, lambda moment: moment.tokens_per_s, number)
    panels = [
        Panel(rates, (Series("acceptance", 0, _points(seen, lambda m: m.acceptance, share)),), height=150),
        Panel(
            hits,
            (Series("cache hits", 1, _points(seen, lambda m: m.hit_rate, share)),),
            (Rule(LEAST_HITS, f"at least {share(LEAST_HITS)}"),),
        ),
        Panel(
            scale.linear("tokens/s, all requests", [point.y for point in speed], ticks=2),
            (Series("tokens/s", 2, speed),),
        ),
        Panel(
            scale.linear("KV cache in use", [1.0], most=1.0, ticks=2, percent=True),
            (Series("KV", 3, _points(seen, lambda m: m.kv_usage, share)),),
        ),
    ]
    if memory:
        y = scale.linear("memory left, GiB", [point.y for point in memory], ticks=2)
        panels.append(Panel(y, (Series("memory left", 4, memory),)))
    return tuple(panel for panel in panels if panel.series[0].points)


def _points(
    seen: Sequence[Moment], value: Callable[[Moment], float], say: Callable[[float], str]
) -> tuple[Point, ...]:
    return tuple(
        Point(
            moment.middle_s, value(moment), f"{duration(moment.middle_s)}: {say(value(moment))}", moment.reset
        )
        for moment in seen
        if math.isfinite(value(moment))
    )


def _memory(observations: Sequence[Observation], speed: float) -> tuple[Point, ...]:
    """The machine's free memory in GiB, for soaks of one cell, whose clock is the timeline's."""
    if len(observations) != 1 or observations[0].before is None:
        return ()
    begin = observations[0].before.at
    return tuple(
        Point((sample.at - begin) * speed / 1e9, sample.memory_available_mib / 1024)
        for sample in observations[0].host
        if sample.memory_available_mib >= 0
    )


def _row(moment: Moment) -> tuple[str, ...]:
    return (
        duration(round(moment.begin_s)),
        duration(round(moment.end_s)),
        share(moment.acceptance),
        share(moment.hit_rate),
        number(moment.tokens_per_s),
        share(moment.kv_usage),
        number(moment.preemptions),
    )

