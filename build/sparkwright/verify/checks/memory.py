"""Lifetimes of server processes and trends of memory."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.engine.observations import Observation
from sparkwright.verify.checks.drift import clock, elapsed
from sparkwright.verify.statistics import theil_sen

GROWTH_MIB = 256.0
GROWTH = 0.05


def lives(made: Sequence[Observation]) -> dict[float, list[Observation]]:
    """Return the observations by server process."""
    lives: dict[float, list[Observation]] = {}
    for observation in made:
        if observation.before is not None and observation.after is not None:
            lives.setdefault(observation.after.start_s, []).append(observation)
    return lives


def longest_life(made: Sequence[Observation], speed: float) -> float:
    """Return the longest time, in server seconds, for which one process was observed."""
    return max(
        (
            sum((o.after.at - o.before.at) * speed / 1e9 for o in life if o.after and o.before)
            for life in lives(made).values()
        ),
        default=0.0,
    )


def memory_figures(made: Sequence[Observation], speed: float) -> dict[str, float | str]:
    """Return changes of memory over the whole soak by robust slopes, in MiB."""
    figures: dict[str, float | str] = {}
    for name, field in (("server RSS", "server_rss_mib"), ("available memory", "memory_available_mib")):
        times, values = _host(made, field, speed)
        if len(set(times)) > 2:  # noqa: PLR2004 - no trend from two
            span = times[-1] - times[0]
            slope = theil_sen(times, values)
            figures[f"{name} change MiB"] = round(slope.slope * span, 1)
            figures[f"{name} at the start MiB"] = round(values[0], 1)
    return figures


def memory_warnings(made: Sequence[Observation], speed: float) -> list[str]:
    """Return warnings on memory that grows steadily."""
    found = []
    for name, field, sign in (
        ("the server's resident memory grew", "server_rss_mib", 1),
        ("the machine's available memory shrank", "memory_available_mib", -1),
    ):
        times, values = _host(made, field, speed)
        if len(set(times)) <= 2:  # noqa: PLR2004 - see above
            continue
        span = times[-1] - times[0]
        slope = theil_sen(times, values)
        change = sign * slope.slope * span
        sure = slope.low > 0 if sign > 0 else slope.high < 0
        if sure and change > max(GROWTH_MIB, GROWTH * values[0]):
            found.append(f"{name} steadily: by {change:.0f} MiB in {clock(span)}, from {values[0]:.0f} MiB")
    return found


def _host(made: Sequence[Observation], field: str, speed: float) -> tuple[list[float], list[float]]:
    """Return times in the server's seconds and values, thinned out to 200."""
    begun = elapsed(made, speed)
    pairs = [
        (begun[o.cell.name] + (sample.at - o.before.at) * speed / 1e9, getattr(sample, field))
        for o in made
        if o.before is not None
        for sample in o.host
        if getattr(sample, field) >= 0
    ]
    thinned = pairs[:: max(1, len(pairs) // 200)]
    return [at for at, _ in thinned], [value for _, value in thinned]
