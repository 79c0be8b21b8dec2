"""Changes over time: acceptance by windows of counters, the onset of a fall, processes and their memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparkwright.engine.metrics import SpeculationAbsentError, speculation
from sparkwright.engine.observations import Observation
from sparkwright.verify.statistics import change_point, theil_sen

_FEW_DRAFTS = 20
_LEAST_WINDOWS = 6
_FULL = 0.5  # a window shorter than this share of what it should be is the drain of a cell
_LONGEST_PAUSE_NS = 60_000_000_000  # of the client's clock, for counters to settle and a canary
_SLACK_S = 0.5  # scrapes are not on the second


GROWTH_MIB, GROWTH = 256.0, 0.05
"""Least growth of memory that is worth a warning, also as a share of what it was."""


@dataclass(frozen=True)
class TimedValue:
    """One window; seconds are the server's since the first measurement, see `elapsed`."""

    begin_s: float
    end_s: float
    drafts: float
    draft_tokens: float
    accepted: float

    @property
    def rate(self) -> float:
        """Accepted tokens a draft."""
        return self.accepted / self.drafts

    @property
    def logit(self) -> float:
        """Logit of the share of drafted tokens that were accepted, half a token added to either side."""
        return math.log((self.accepted + 0.5) / (self.draft_tokens - self.accepted + 0.5))


@dataclass(frozen=True)
class Fall:
    """A change of acceptance over a series of windows.

    Attributes:
        remains: accepted tokens a draft after the clearest change over those before it (medians).
        p: probability of so clear a change by chance.
        trend: factor of the odds of acceptance from the first window to the last, by the robust slope.
        trend_high: upper end of the 99 % interval of `trend`.
    """

    remains: float
    p: float
    trend: float
    trend_high: float


@dataclass(frozen=True)
class Onset:
    """The onset of a fall, in accepted tokens a draft before and after it; a step takes 0 s."""

    at_s: float
    over_s: float
    before: float
    after: float

    def __str__(self) -> str:
        how = f"over {clock(self.over_s)}" if self.over_s else "at once"
        levels = f"from {self.before:.2f} to {self.after:.2f} accepted tokens a draft"
        return f"from {clock(self.at_s)} on, {how}, {levels}"


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


def windows(
    observations: Sequence[Observation], begun: Mapping[str, float], length_s: float, speed: float
) -> list[TimedValue]:
    """Return windows of about *length_s* from the counters of these observations, in order of time.

    A window ends with the first snapshot that is long enough after its beginning, and never reaches beyond
    its cell. Those without speculation or with next to no drafts are left out.
    """
    points: list[TimedValue] = []
    for observation in observations:
        if observation.before is None or observation.after is None:
            continue
        start, origin = observation.before, observation.before.at
        for moment in (*observation.series, observation.after):
            long = (moment.at - start.at) * speed / 1e9
            last = moment is observation.after
            if long < length_s - _SLACK_S and not (last and long >= length_s * _FULL):
                continue
            base = begun[observation.cell.name] - origin * speed / 1e9
            begin_s, end_s = (base + one.at * speed / 1e9 for one in (start, moment))
            with contextlib.suppress(SpeculationAbsentError):
                seen = speculation(start, moment)
                if seen.drafts >= _FEW_DRAFTS:
                    counts = seen.drafts, seen.draft_tokens, seen.accepted
                    points.append(TimedValue(begin_s, end_s, *counts))
            start = moment
    return points


def find_fall(points: Sequence[TimedValue], seed: int) -> Fall | None:
    """Return the clearest change and the trend of acceptance; `None` with fewer than six windows."""
    import numpy as np

    if len(points) < _LEAST_WINDOWS:
        return None
    logits = [point.logit for point in points]
    change = change_point(logits, seed)
    before, after = points[: change.index], points[change.index :]
    level = float(np.median([point.rate for point in before]))
    remains = float(np.median([point.rate for point in after])) / level if level > 0 else 1.0
    slope = theil_sen([point.begin_s for point in points], logits, level=0.99)
    span = points[-1].begin_s - points[0].begin_s
    return Fall(remains, change.p, math.exp(slope.slope * span), math.exp(min(slope.high * span, 700.0)))


def find_onset(points: Sequence[TimedValue]) -> Onset | None:
    """Return the onset of a fall: the best fit of all steps and ramps from one level to a lower one.

    Least squares over all pairs of windows that the fall may lie between; `None` with fewer than six windows,
    or where no fit goes down.
    """
    import numpy as np

    if len(points) < _LEAST_WINDOWS:
        return None
    rates = np.array([point.rate for point in points])
    middles = np.array([(point.begin_s + point.end_s) / 2 for point in points])
    # Between two windows lie probes: what happened there happened in the middle, for all that is known.
    edges = [points[0].begin_s, *((earlier.end_s + later.begin_s) / 2 for earlier, later in pairwise(points))]
    best, found = math.inf, None
    for first in range(1, len(points)):
        for last in range(first, len(points)):
            begin, end = edges[first], edges[last]
            share = np.clip((middles - begin) / (end - begin), 0, 1) if last > first else middles > begin
            varying = np.asarray(share, dtype=float) - np.mean(share)
            spread = float((varying**2).sum())
            slope = float((varying * (rates - rates.mean())).sum()) / spread if spread > 0 else 0.0
            level = float(rates.mean() - slope * np.mean(share))
            error = float(((level + slope * share - rates) ** 2).sum())
            if slope < 0 and error < best - 1e-12:
                best, found = error, Onset(begin, end - begin, level, max(0.0, level + slope))
    return found


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
