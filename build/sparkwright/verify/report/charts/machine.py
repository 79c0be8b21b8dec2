"""The machine over the whole run: clock, power and temperature of the card, memory and its pressure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from sparkwright.engine.observations import HostSample, Observation
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.report.charts.chart import WHOLE, Chart
from sparkwright.verify.report.figures import CellFigures, cells
from sparkwright.verify.report.plots import Axis, Note, Panel, Point, Series, linear, timeline
from sparkwright.verify.report.text import duration, number
from sparkwright.verify.run import Run

ORDER = 90  # among the charts of the page

_QUANTITIES = (
    ("clock of the card, MHz", "gpu_clock_mhz", 1.0),
    ("power of the card, W", "gpu_power_w", 1.0),
    ("temperature of the card, °C", "gpu_temperature_c", 1.0),
    ("memory available, GiB", "memory_available_mib", 1 / 1024),
    ("time in which processes waited for memory, %", "memory_pressure", 1.0),
)
_MOST = 140  # points of a line: beyond that they are thinned out
_FEWEST = 3
_HEIGHT = 62


def charts(run: Run) -> Iterator[Chart]:
    """Return the course of the machine, if it was sampled."""
    found = cells(run)
    begun, end_s = _begins([cell.observation for cell in found], run.speed)
    panels = tuple(
        Panel(linear(title, [point.y for point in points]), (Series(title, 0, points),), height=_HEIGHT)
        for title, name, scale in _QUANTITIES
        if len(points := _points(found, begun, run.speed, name, scale)) >= _FEWEST
    )
    if not panels:
        return
    marks = _marks(found, begun)
    unit = 60 if end_s >= 180 else 1  # noqa: PLR2004 - three minutes
    x = Axis(f"time in measurements ({'min' if unit > 1 else 's'})", 0.0, end_s, unit=unit)
    yield Chart(
        key="machine",
        title="The machine during the run",
        lead=_lead(found),
        meaning="Samples every few seconds during each measurement, one measurement after the other. Clocks"
        " that are lowered by heat or a power brake, a slow state, swap and waits for memory mark a"
        " measurement, and it is not compared with others.",
        widths=WHOLE,
        draw=lambda width: timeline(width, x, panels, marks),
        columns=("measurement", "from", "MHz", "W", "°C", "available, GiB", "waits, %", "J/token", "marked"),
        rows=tuple(_row(cell, begun[cell.key]) for cell in found if cell.observation.host),
    )


def _begins(made: Sequence[Observation], speed: float) -> tuple[dict[str, float], float]:
    """Return the begin of each measurement by its key, pauses left out, and the end of the last one."""
    begun: dict[str, float] = {}
    total = 0.0
    for observation in made:
        begun[observation.cell.key] = total
        total += observation.seconds * speed
    return begun, max(total, 1e-3)


def _points(
    found: Sequence[CellFigures], begun: dict[str, float], speed: float, name: str, scale: float
) -> tuple[Point, ...]:
    points = [
        Point(
            begun[cell.key] + _since(cell.observation, sample) * speed,
            getattr(sample, name) * scale,
            f"{cell.observation.cell.name}: {number(getattr(sample, name) * scale)}",
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


def _marks(found: Sequence[CellFigures], begun: dict[str, float]) -> tuple[Note, ...]:
    """Return the moment since which the machine was disturbed."""
    marked = [cell for cell in found if disturbances(cell.observation)]
    return tuple(Note(begun[cell.key], f"marked: {cell.observation.cell.name}") for cell in marked[:1])


def _lead(found: Sequence[CellFigures]) -> str:
    marked = [cell for cell in found if disturbances(cell.observation)]
    if marked:
        why = disturbances(marked[0].observation)[0]
        return f"{len(marked)} of {len(found)} measurements are marked: {why}."
    known = [t for cell in found for one in cell.observation.host if (t := one.gpu_temperature_c) >= 0]
    return f"No measurement is marked{f', up to {number(max(known))} °C' if known else ''}."


def _row(cell: CellFigures, begin_s: float) -> tuple[str, ...]:
    middles = []
    for _, name, scale in _QUANTITIES:
        known = [v for one in cell.observation.host if (v := getattr(one, name)) >= 0]
        middles.append(number(median(known) * scale if known else None))
    why = "; ".join(disturbances(cell.observation))
    return (cell.observation.cell.name, duration(round(begin_s)), *middles, number(cell.energy_j), why)
