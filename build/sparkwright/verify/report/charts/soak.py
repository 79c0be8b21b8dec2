"""The soak over time: acceptance of traffic and of probes, cache hits, throughput, memory, and its onset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sparkwright.verify.checks.drift import elapsed
from sparkwright.verify.checks.soak import LEAST_HITS
from sparkwright.verify.report.charts.chart import CACHE_STYLES, WHOLE, Chart
from sparkwright.verify.report.figures import CellFigures, Moment, cells, moments
from sparkwright.verify.report.plots import Axis, Note, Panel, Point, Series, linear, percent, timeline
from sparkwright.verify.report.text import duration, number, share
from sparkwright.verify.run import Run

ORDER = 20  # among the charts of the page

ONSET = "onset s"  # a measurement of the soak's finding: the moment when acceptance began to fall
TITLE = "Prefix-cache soak over time"
MEANING = (
    "Windows of traffic from the server's own counters, and the same questions put again and again (probes), "
    "cold and from the prefix cache. Acceptance should stay where it began."
)


@dataclass(frozen=True)
class _Course:
    """A soak's cells over time: windows of traffic, probes by kind, and free memory in GiB."""

    windows: tuple[Moment, ...]
    probes: dict[str, tuple[Point, ...]]
    memory: tuple[Point, ...]

    @property
    def end_s(self) -> float:
        """The end of the last of them."""
        return max([0.0, *(m.end_s for m in self.windows), *(p.x for ps in self.probes.values() for p in ps)])


def charts(run: Run) -> Iterator[Chart]:
    """Return the soak's timeline, if it lasted for two windows."""
    course = _course(cells(run, "soak"), run.speed)
    if len(course.windows) < 2:  # noqa: PLR2004 - one window is no course
        return
    named = (*_onsets(run), *_resets(course.windows))
    panels, (name, seconds) = _panels(course), _unit(course.end_s)
    x = Axis(f"time since the soak began ({name})", 0.0, course.end_s, unit=seconds)
    lead = _lead(course.windows, named)
    yield Chart(
        key="soak",
        title=TITLE,
        lead=lead,
        meaning=MEANING,
        widths=WHOLE,
        draw=lambda width: timeline(width, x, panels, named),
        columns=("from", "to", "acceptance", "cache hits", "tokens/s", "KV in use", "preemptions"),
        rows=tuple(_row(moment) for moment in course.windows),
    )


def _course(soaked: Sequence[CellFigures], speed: float) -> _Course:
    begun = elapsed([cell.observation for cell in soaked], speed)
    windows: list[Moment] = []
    probes: dict[str, list[Point]] = {}
    memory: list[Point] = []
    for cell in soaked:
        begin_s = begun[cell.observation.cell.name]
        kind = cell.observation.cell.tags.get("kind", "traffic")
        if kind == "traffic":
            windows.extend(moments(cell.observation, begin_s, speed))
        elif kind in CACHE_STYLES and cell.speculation and cell.speculation.drafts:
            rate = cell.speculation.acceptance_rate
            words = f"{kind} probes, {duration(begin_s)}: {share(rate)}"
            probes.setdefault(kind, []).append(Point(begin_s, rate, words, suspect=bool(cell.trouble)))
        memory.extend(_memory(cell, begin_s, speed))
    by_kind = {kind: tuple(points) for kind, points in sorted(probes.items())}
    return _Course(tuple(windows), by_kind, tuple(memory))


def _memory(cell: CellFigures, begin_s: float, speed: float) -> Iterator[Point]:
    """Yield the machine's free memory in GiB."""
    before = cell.observation.before
    for sample in cell.observation.host if before else ():
        if before and sample.memory_available_mib >= 0:
            at_s = begin_s + (sample.at - before.at) * speed / 1e9
            yield Point(at_s, sample.memory_available_mib / 1024)


def _onsets(run: Run) -> Iterator[Note]:
    """Return the moments when acceptance began to fall, by the findings."""
    for finding in run.findings:
        value = finding.measured.get(ONSET)
        if finding.check == "soak" and isinstance(value, float | int) and value >= 0:
            yield Note(value, f"onset {duration(value)}")


def _resets(windows: Sequence[Moment]) -> Iterator[Note]:
    return (Note(moment.begin_s, "counters restarted") for moment in windows if moment.reset)


def _lead(windows: Sequence[Moment], named: Sequence[Note]) -> str:
    rates = [moment.acceptance for moment in windows if math.isfinite(moment.acceptance)]
    if not rates:
        return "Nothing was drafted."
    course = f"Acceptance {share(rates[0])} in the first window, {share(rates[-1])} in the last"
    return f"{course}; {', '.join(mark.label for mark in named)}." if named else f"{course}."


def _panels(course: _Course) -> tuple[Panel, ...]:
    windows = course.windows
    rates = [Series("traffic", 0, _points(windows, lambda moment: moment.acceptance, share))]
    rates += [Series(kind, CACHE_STYLES[kind], points) for kind, points in course.probes.items()]
    speed = _points(windows, lambda moment: moment.tokens_per_s, number)
    hits = _points(windows, lambda moment: moment.hit_rate, share)
    used = _points(windows, lambda moment: moment.kv_usage, share)
    panels = (
        Panel(percent("acceptance"), tuple(one for one in rates if one.points), height=150),
        Panel(
            percent("prefix-cache hits"),
            (Series("hits", 0, hits),),
            (Note(LEAST_HITS, f"at least {share(LEAST_HITS)}"),),
        ),
        Panel(_amount("tokens/s, all requests", speed), (Series("tokens/s", 0, speed),)),
        Panel(percent("KV cache in use"), (Series("KV", 0, used),)),
        Panel(_amount("free memory, GiB", course.memory), (Series("memory", 0, course.memory),)),
    )
    return tuple(panel for panel in panels if any(one.points for one in panel.series))


def _amount(title: str, points: Sequence[Point]) -> Axis:
    return linear(title, [point.y for point in points])


def _unit(seconds: float) -> tuple[str, int]:
    """Return the unit to label a time axis of this length with, and its length in seconds."""
    units = {"h": 3600, "min": 60, "s": 1}
    return next((name, unit) for name, unit in units.items() if seconds >= 3 * unit or unit == 1)


def _points(
    windows: Sequence[Moment], value: Callable[[Moment], float], words: Callable[[float], str]
) -> tuple[Point, ...]:
    """Return one point for each window with a figure; no line joins rounds of traffic."""
    points: list[Point] = []
    apart, end_s = False, 0.0
    for moment in windows:
        apart = apart or moment.begin_s > end_s
        end_s = moment.end_s
        if math.isfinite(value(moment)):
            label = f"{duration(moment.middle_s)}: {words(value(moment))}"
            points.append(Point(moment.middle_s, value(moment), label, moment.reset, apart))
            apart = False
    return tuple(points)


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
