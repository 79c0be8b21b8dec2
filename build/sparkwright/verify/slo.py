"""A service-level objective: limits of a request's times, and the share of requests that must keep all."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sparkwright.base.errors import ConfigError
from sparkwright.engine.observations import Sample

TIMES = ("ttft", "tpot", "e2e")
SHARES = (50, 90, 95, 99)
_LIMIT = re.compile(r"(?P<name>[a-z0-9]+)_p(?P<share>\d+)=(?P<value>\d+(?:\.\d+)?)(?P<unit>[a-z]*)")
_UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Slo:
    """Limits that a share of all requests must keep, all of them at once.

    Attributes:
        limits: seconds by the time that they limit: ``ttft`` to the first token, ``tpot`` for each token
            after it, ``e2e`` to the last one.
        share: of the requests, 0 to 1.
    """

    limits: dict[str, float]
    share: float

    def __str__(self) -> str:
        shown = (f"{name.upper()} p{self.share * 100:.0f} ≤ {_shown(s)}" for name, s in self.limits.items())
        return " and ".join(shown)

    @property
    def text(self) -> str:
        """The objective in the form that `parse_slo` reads."""
        # `parse_slo` reads no exponent.
        limits = {name: f"{s * 1000:.6f}".rstrip("0").rstrip(".") for name, s in self.limits.items()}
        return ",".join(f"{name}_p{self.share * 100:.0f}={ms}ms" for name, ms in limits.items())

    def met_by(self, sample: Sample, speed: float) -> bool:
        """Tell if *sample* did not fail and kept every limit; *speed* is the server's seconds in one."""
        times = times_of(sample, speed)
        return sample.failure is None and all(times[name] <= most for name, most in self.limits.items())


def times_of(sample: Sample, speed: float) -> dict[str, float]:
    """Return the times of *sample* in seconds of the server's clock, NaN where it has none.

    They count from the moment at which the request was due, so that no delay on the way is left out.
    """
    begin, scale = sample.due or sample.started, speed / 1e9
    return {
        "ttft": (sample.first - begin) * scale if sample.first else math.nan,
        "tpot": sample.tpot_ms * speed / 1e3,
        "e2e": (sample.last - begin) * scale if sample.last else math.nan,
    }


def parse_slo(text: str) -> Slo:
    """Return the objective that *text* states, such as ``ttft_p95=2s,tpot_p95=100ms``.

    Raises:
        ConfigError: a name, a percentile or a unit is unknown, or the percentiles differ.
    """
    limits: dict[str, float] = {}
    shares: set[int] = set()
    for word in (part.strip() for part in text.split(",")):
        found = _LIMIT.fullmatch(word)
        if found is None:
            raise _refused(word, "it is not of the form NAME_pPERCENT=TIME")
        name, share = found["name"], int(found["share"])
        if name not in TIMES:
            raise _refused(word, f"there is no time {name!r}; there are {', '.join(TIMES)}")
        if share not in SHARES:
            raise _refused(word, f"p{share} is none of {', '.join(f'p{one}' for one in SHARES)}")
        if found["unit"] not in _UNITS:
            raise _refused(word, f"its unit is {found['unit'] or 'missing'}; there are ms and s")
        seconds = float(found["value"]) * _UNITS[found["unit"]]
        if name in limits or not seconds:
            raise _refused(word, f"{name} is limited twice" if name in limits else "no request takes no time")
        limits[name] = seconds
        shares.add(share)
    if len(shares) > 1:
        raise _refused(text, "its percentiles differ, and a request counts as good if it keeps all limits")
    return Slo(limits, shares.pop() / 100)


def _refused(word: str, because: str) -> ConfigError:
    return ConfigError(
        f"the objective {word!r} cannot be used",
        because=because,
        next_step="give limits such as ttft_p95=2s,tpot_p95=100ms",
    )


def _shown(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"
