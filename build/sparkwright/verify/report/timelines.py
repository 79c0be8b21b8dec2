"""Charts over time: a soak, and the machine during the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from sparkwright.engine.observations import HostSample, Observation
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.checks.soak import LEAST_HITS
from sparkwright.verify.checks.soak_rounds import elapsed
from sparkwright.verify.report.charts import Chart, Table, name_of
from sparkwright.verify.report.figures import CellFigures, Moment, cells, moments
from sparkwright.verify.report.svg import Axis, Note, Panel, Point, Series, linear, percent, timeline
from sparkwright.verify.report.text import duration, number, share
from sparkwright.verify.run import Run

# Soak ----------------------------------------------------------------------------------------------------

_KINDS = {"cold": 3, "cached": 2}  # of probes, and their styles


@dataclass(frozen=True)
class _Course:
    """A soak's cells over time: windows of traffic, probes by kind, and free memory in GiB."""

    windows: list[Moment] = field(default_factory=list)
    probes: dict[str, list[Point]] = field(default_factory=dict)
    memory: list[Point] = field(default_factory=list)

    @classmethod
    def of(cls, soaked: Sequence[CellFigures], speed: float) -> _Course:
        """Return the course of the cells of a soak."""
        course = cls()
        begun = elapsed([cell.observation for cell in soaked], speed)
        for cell in soaked:
            begin_s = begun[name_of(cell)]
            kind = cell.observation.cell.tags.get("kind", "traffic")
            if kind == "traffic":
                course.windows.extend(moments(cell.observation, begin_s, speed))
            elif kind in _KINDS and cell.speculation and cell.speculation.drafts:
                rate = cell.speculation.acceptance_rate
                words = f"{kind} probes, {duration(begin_s)}: {share(rate)}"
                point = Point(begin_s, rate, words, suspect=bool(cell.trouble))
                course.probes.setdefault(kind, []).append(point)
            if before := cell.observation.before:
                course.memory.extend(
                    Point(begin_s + (sample.at - before.at) * speed / 1e9, sample.memory_available_mib / 1024)
                    for sample in cell.observation.host
                    if sample.memory_available_mib >= 0
                )
        return course

    def panels(self) -> list[Panel]:
        """Return the panels that have figures."""
        rates = [Series("traffic", 0, self._points(lambda moment: moment.acceptance, share))]
        rates += [Series(kind, _KINDS[kind], tuple(self.probes[kind])) for kind in sorted(self.probes)]
        speed = self._points(lambda moment: moment.tokens_per_s, number)
        hits = self._points(lambda moment: moment.hit_rate, share)
        used = self._points(lambda moment: moment.kv_usage, share)
        least = (Note(LEAST_HITS, f"at least {share(LEAST_HITS)}"),)
        panels = (
            Panel(percent("acceptance"), tuple(one for one in rates if one.points), height=150),
            Panel(percent("prefix-cache hits"), (Series("", 0, hits),), least),
            Panel(_amount("tokens/s, all requests", speed), (Series("", 0, speed),)),
            Panel(percent("KV cache in use"), (Series("", 0, used),)),
            Panel(_amount("free memory, GiB", self.memory), (Series("", 0, tuple(self.memory)),)),
        )
        return [panel for panel in panels if any(one.points for one in panel.series)]

    def _points(self, value: Callable[[Moment], float], words: Callable[[float], str]) -> tuple[Point, ...]:
        """Return one point for each window with a figure; no line joins rounds of traffic."""
        points: list[Point] = []
        apart, end_s = False, 0.0
        for moment in self.windows:
            apart = apart or moment.begin_s > end_s
            end_s = moment.end_s
            if math.isfinite(value(moment)):
                label = f"{duration(moment.middle_s)}: {words(value(moment))}"
                points.append(Point(moment.middle_s, value(moment), label, moment.reset, apart))
                apart = False
        return tuple(points)


def _amount(title: str, points: Sequence[Point]) -> Axis:
    return linear(title, [point.y for point in points])


def soak_charts(run: Run) -> Iterator[Chart]:
    """Yield the soak's timeline, if it lasted for two windows."""
    course = _Course.of(cells(run, "soak"), run.speed)
    windows, panels = course.windows, course.panels()
    if len(windows) < 2:  # noqa: PLR2004 - one window is no course
        return
    resets = [Note(moment.begin_s, "counters restarted") for moment in windows if moment.reset]
    end_s = max(0.0, *(m.end_s for m in windows), *(p.x for ps in course.probes.values() for p in ps))
    units = {"h": 3600, "min": 60, "s": 1}
    name = next(name for name, unit in units.items() if end_s >= 3 * unit or unit == 1)
    x = Axis(f"time since the soak began ({name})", 0.0, end_s, unit=units[name])
    rates = [moment.acceptance for moment in windows if math.isfinite(moment.acceptance)]
    lead = "Nothing was drafted."
    if rates:
        lead = f"Acceptance {share(rates[0])} in the first window, {share(rates[-1])} in the last."
    yield Chart(
        "soak",
        "Prefix-cache soak over time",
        "Windows of traffic from the server's own counters, and the same questions put again and again"
        " (probes), cold and from the prefix cache. Acceptance should stay where it began.",
        lead,
        lambda width: timeline(width, x, panels, resets),
        Table.of(
            windows,
            {
                "from": lambda moment: duration(round(moment.begin_s)),
                "to": lambda moment: duration(round(moment.end_s)),
                "acceptance": lambda moment: share(moment.acceptance),
                "cache hits": lambda moment: share(moment.hit_rate),
                "tokens/s": lambda moment: number(moment.tokens_per_s),
                "KV in use": lambda moment: share(moment.kv_usage),
                "preemptions": lambda moment: number(moment.preemptions),
            },
        ),
    )


# The machine ---------------------------------------------------------------------------------------------

_QUANTITIES = (
    ("clock of the card, MHz", "MHz", "gpu_clock_mhz", 1.0),
    ("power of the card, W", "W", "gpu_power_w", 1.0),
    ("temperature of the card, °C", "°C", "gpu_temperature_c", 1.0),
    ("memory available, GiB", "available, GiB", "memory_available_mib", 1 / 1024),
    ("time in which processes waited for memory, %", "waits, %", "memory_pressure", 1.0),
)
_MOST = 140  # points of a line: beyond that they are thinned out
_FEWEST = 3


def machine_charts(run: Run) -> Iterator[Chart]:
    """Yield the course of the machine, if it was sampled."""
    found = cells(run)
    begun: dict[str, float] = {}  # of each measurement, pauses left out
    end_s = 0.0
    for cell in found:
        begun[cell.key] = end_s
        end_s += cell.observation.seconds * run.speed
    end_s = max(end_s, 1e-3)
    panels = [
        Panel(_amount(title, points), (Series("", 0, points),), height=62)
        for title, _, name, scale in _QUANTITIES
        if len(points := _samples(found, begun, run.speed, name, scale)) >= _FEWEST
    ]
    if not panels:
        return
    marked = [cell for cell in found if disturbances(cell.observation)]
    marks = [Note(begun[cell.key], f"marked: {name_of(cell)}") for cell in marked[:1]]
    unit = 60 if end_s >= 180 else 1  # noqa: PLR2004 - three minutes
    x = Axis(f"time in measurements ({'min' if unit > 1 else 's'})", 0.0, end_s, unit=unit)
    known = [t for cell in found for one in cell.observation.host if (t := one.gpu_temperature_c) >= 0]
    lead = f"No measurement is marked{f', up to {number(max(known))} °C' if known else ''}."
    if marked:
        why = disturbances(marked[0].observation)[0]
        lead = f"{len(marked)} of {len(found)} measurements are marked: {why}."
    yield Chart(
        "machine",
        "The machine during the run",
        "Samples every few seconds during each measurement, one measurement after the other. Clocks that are"
        " lowered by heat or a power brake, a slow state, swap and waits for memory mark a measurement, and"
        " it is not compared with others.",
        lead,
        lambda width: timeline(width, x, panels, marks),
        Table.of(
            [cell for cell in found if cell.observation.host],
            {
                "measurement": name_of,
                "from": lambda cell: duration(round(begun[cell.key])),
                **{head: _middle(name, scale) for _, head, name, scale in _QUANTITIES},
                "J/token": lambda cell: number(cell.energy_j),
                "marked": lambda cell: "; ".join(disturbances(cell.observation)),
            },
        ),
    )


def _middle(name: str, scale: float) -> Callable[[CellFigures], str]:
    """Return the column with the median of a quantity."""

    def write(cell: CellFigures) -> str:
        known = [value for one in cell.observation.host if (value := getattr(one, name)) >= 0]
        return number(median(known) * scale if known else None)

    return write


def _samples(
    found: Sequence[CellFigures], begun: Mapping[str, float], speed: float, name: str, scale: float
) -> tuple[Point, ...]:
    points = [
        Point(
            begun[cell.key] + _since(cell.observation, sample) * speed,
            getattr(sample, name) * scale,
            f"{name_of(cell)}: {number(getattr(sample, name) * scale)}",
        )
        for cell in found
        for sample in cell.observation.host
        if getattr(sample, name) >= 0
    ]
    return tuple(points[:: -(-len(points) // _MOST) or 1])


def _since(observation: Observation, sample: HostSample) -> float:
    """Return the seconds from the first request of *observation* to *sample*, both of the client's clock."""
    begin = min((one.started for one in observation.samples), default=sample.at)
    return min(max(0.0, (sample.at - begin) / 1e9), observation.seconds)
