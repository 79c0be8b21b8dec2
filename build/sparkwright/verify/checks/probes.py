"""Probes of a soak: the same questions in every round, cold and cached, and their acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkwright.engine.observations import Observation
from sparkwright.verify.checks.acceptance import RatioInterval, acceptance, paired_ratio
from sparkwright.verify.checks.common import CheckedCells

HOLD = 0.8
"""Accepted tokens a draft over those of the first probes, or cached over cold, below which it is a decay."""
SURE = 0.01


@dataclass(frozen=True)
class Probe:
    """One repetition of all questions, which began so many seconds after the soak."""

    number: int
    at_s: float
    seen: Observation


@dataclass(frozen=True)
class Probes:
    """All probes, by kind and in order of time."""

    cold: tuple[Probe, ...]
    cached: tuple[Probe, ...]

    @classmethod
    def of(cls, seen: CheckedCells, begun: Mapping[str, float]) -> Probes:
        """Return the probes among the sound observations of a soak whose cells began at *begun*."""

        def kind(name: str) -> tuple[Probe, ...]:
            return tuple(
                Probe(int(o.cell.tags["round"]), begun[o.cell.name], o)
                for o in seen.tagged(kind=name).sound
                if acceptance(o) is not None
            )

        return cls(kind("cold"), kind("cached"))

    @property
    def rounds(self) -> int:
        """Number of rounds with probes of both kinds."""
        return min(len(self.cold), len(self.cached))

    def over_first(self) -> list[tuple[str, Probe, RatioInterval]]:
        """Return each later probe over the first of its kind; all intervals together err in 1 % of soaks."""
        comparisons = max(1, len(self.cold) + len(self.cached) - 2)
        found = []
        for kind, probes in (("cold", self.cold), ("cached", self.cached)):
            for probe in probes[1:]:
                ratio = paired_ratio([probe.seen], [probes[0].seen], comparisons, SURE)
                if ratio is not None:
                    found.append((kind, probe, ratio))
        return found

    def last_over_first(self) -> dict[str, float]:
        """Return the last probe over the first one, by kind."""
        last = {kind: ratio.value for kind, _, ratio in self.over_first()}
        return last or dict.fromkeys(("cold", "cached"), 1.0)

    def steady_pairs(self) -> list[tuple[Probe, Probe]]:
        """Return cold and cached probes of each round in which cold ones are as good as they were at first.

        While acceptance falls anyway, a cached asking is worse for coming later than a cold one; so a round
        is left out where its cold asking or the one after it has surely fallen.
        """
        fallen = {
            probe.number for kind, probe, ratio in self.over_first() if kind == "cold" and ratio.high < HOLD
        }
        cached = {probe.number: probe for probe in self.cached}
        return [
            (probe, cached[probe.number])
            for probe in self.cold
            if probe.number in cached and not fallen & {probe.number, probe.number + 1}
        ]
