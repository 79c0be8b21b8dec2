"""A soak's time: when its cells began, how long processes lived, and how their memory grew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkwright.engine.observations import Observation
from sparkwright.verify.statistics import theil_sen

_LONGEST_PAUSE_NS = 60_000_000_000  # of the client's clock, for counters to settle and a canary
GROWTH_MIB, GROWTH = 256.0, 0.05
"""Least growth of memory that is worth a warning, also as a share of what it was."""


def clock(seconds: float) -> str:
    """Format a duration: ``90 s``, ``10 min``, ``10 min 30 s``."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 2:  # noqa: PLR2004 - 90 s reads better than 1 min 30 s
        return f"{whole} s"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def elapsed(observations: Iterable[Observation], speed: float) -> dict[str, float]:
    """Return the start of each cell, by its name, in seconds of the server's clock since the first one did.

    Cells' durations are added up, with the pauses between them, but for long ones: the clock's origin may
    change when a run is resumed, and what the server did meanwhile was not soaking.

    Args:
        observations: in the order in which they were made.
        speed: server's seconds in one of the client's.
    """
    begun: dict[str, float] = {}
    total, last = 0.0, None
    for observation in observations:
        before, after = observation.before, observation.after
        if before is not None and last is not None and 0 < before.at - last <= _LONGEST_PAUSE_NS:
            total += (before.at - last) * speed / 1e9
        begun[observation.cell.name] = total
        if before is not None and after is not None:
            total += (after.at - before.at) * speed / 1e9
        last = after.at if after is not None else None
    return begun


# Processes and memory -------------------------------------------------------------------------------------


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


def memory_trends(made: Sequence[Observation], speed: float) -> tuple[dict[str, float | str], list[str]]:
    """Return changes of memory over a soak by robust slopes, in MiB, and warnings on steady growth.

    A clock that runs faster is a simulator's, whose memory is not this machine's.
    """
    figures: dict[str, float | str] = {}
    warnings = []
    begun = elapsed(made, speed)
    watched = (
        ("server RSS", "server_rss_mib", 1, "the server's resident memory grew"),
        ("available memory", "memory_available_mib", -1, "the machine's available memory shrank"),
    )
    for name, field, sign, shown in watched if speed == 1 else watched[:1]:
        pairs = [
            (begun[o.cell.name] + (sample.at - o.before.at) * speed / 1e9, getattr(sample, field))
            for o in made
            if o.before is not None
            for sample in o.host
            if getattr(sample, field) >= 0
        ]
        thinned = pairs[:: max(1, len(pairs) // 200)]
        times, values = [at for at, _ in thinned], [value for _, value in thinned]
        if len(set(times)) <= 2:  # noqa: PLR2004 - no trend from two
            continue
        span, slope = times[-1] - times[0], theil_sen(times, values)
        figures |= {
            f"{name} change MiB": round(slope.slope * span, 1),
            f"{name} at the start MiB": round(values[0], 1),
        }
        change = sign * slope.slope * span
        sure = slope.low > 0 if sign > 0 else slope.high < 0
        if sure and change > max(GROWTH_MIB, GROWTH * values[0]):
            how = f"by {change:.0f} MiB in {clock(span)}, from {values[0]:.0f} MiB"
            warnings.append(f"{shown} steadily: {how}")
    return figures, warnings
