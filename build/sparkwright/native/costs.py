"""Expected costs of units: measured on this machine, seeded from the lock, or guessed.

Each unit's cost is recorded as soon as it compiled, so a build that is killed counts too. Costs are kept
in the machine's own store: seconds on another machine mean something else.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from statistics import median

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.native.model import Cost, Target, Unit
from sparkwright.store import Store

_KIND = "unit-cost"
_NEW = 0.4
"""Weight of the newest build in the mean."""

# For a unit without measurements of it or of similar ones: by size of its source, from the times of nvcc
# and g++ for the units of vLLM 0.24.0. Only the order and a first guess depend on it.
_GUESS = {".cu": (20.0, 1200), ".cpp": (5.0, 600)}
_GUESS_OTHER = (5.0, 600)
_GUESS_SECONDS_A_KIB = 0.5
_GUESS_LARGEST_KIB = 200.0


class _Learned(Model, frozen=True):
    """The cost of a unit, as the store keeps it."""

    unit: str
    cost: Cost


@dataclass
class UnitCosts:
    """Expected costs of units, learned from builds.

    Attributes:
        seeds: seconds and MiB by unit name, from the lock.
        host: machine that compiles, such as ``x86_64``.
    """

    store: Store
    target: Target
    seeds: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    host: str = field(default_factory=platform.machine)

    def learned(self, name: str) -> Cost | None:
        """Return the cost of the unit *name* in earlier builds here; `None` if it was never compiled."""
        record = self.store.find_record_as(_Learned, _KIND, self._key(name))
        cost = record.cost if record is not None else None
        return cost if cost is not None and cost.seconds >= 0 and cost.mib >= 0 else None

    def learn(self, name: str, cost: Cost) -> None:
        """Record that the unit called *name* just took *cost*.

        Seconds become the exponentially weighted mean of all builds. So does memory, but it rises at once:
        to expect too little may cost the build, to expect too much costs time.
        """
        mean = cost
        if (before := self.learned(name)) is not None:
            mean = Cost(
                seconds=before.seconds + _NEW * (cost.seconds - before.seconds),
                mib=max(cost.mib, round(before.mib + _NEW * (cost.mib - before.mib))),
            )
        self.store.put_record(_KIND, self._key(name), to_builtins(_Learned(unit=name, cost=mean)))

    def expected(self, units: Iterable[Unit], sizes: Mapping[str, int]) -> dict[str, Cost]:
        """Return the expected cost of each of *units*, by unit name.

        In this order: the learned cost; the lock's seed, at this machine's pace; the median of known units
        in the same folder, then of those in the same language; a guess by the size of the source.

        Args:
            units: all units of a build: the costs of some help to estimate the others.
            sizes: bytes of the source files, by `Unit.source`, as far as known.
        """
        units = list(units)
        learned = {unit.name: cost for unit in units if (cost := self.learned(unit.name))}
        known = learned | {
            unit.name: seed
            for unit in units
            if unit.name not in learned and (seed := self._seed(unit.name, self._pace(learned)))
        }
        like: dict[tuple[str, str], list[Cost]] = {}
        for unit in units:
            if unit.name in known:
                for group in _groups(unit):
                    like.setdefault(group, []).append(known[unit.name])
        return {
            unit.name: known.get(unit.name)
            or _by_others(unit, like)
            or _guess(unit, sizes.get(unit.source, 0))
            for unit in units
        }

    def _seed(self, name: str, pace: float) -> Cost | None:
        found = self.seeds.get(name)
        return None if found is None else Cost(seconds=found[0] * pace, mib=found[1])

    def _pace(self, learned: Mapping[str, Cost]) -> float:
        """Return the ratio of times here to those in the lock."""
        ratios = (
            cost.seconds / self.seeds[n][0] for n, cost in learned.items() if self.seeds.get(n, (0, 0))[0] > 0
        )
        return median([*ratios] or [1.0]) or 1.0

    def _key(self, name: str) -> str:
        return digest_of([self.host, self.target.machine, self.target.arch, name])


def _groups(unit: Unit) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the groups of similar units: those of its folder and language, then those of its language."""
    path = PurePosixPath(unit.source)
    return (str(path.parent), path.suffix), ("", path.suffix)


def _by_others(unit: Unit, like: Mapping[tuple[str, str], list[Cost]]) -> Cost | None:
    for group in _groups(unit):
        if found := like.get(group):
            return Cost(
                seconds=median(cost.seconds for cost in found), mib=round(median(cost.mib for cost in found))
            )
    return None


def _guess(unit: Unit, size: int) -> Cost:
    seconds, mib = _GUESS.get(PurePosixPath(unit.source).suffix, _GUESS_OTHER)
    return Cost(seconds=seconds + _GUESS_SECONDS_A_KIB * min(size / 1024, _GUESS_LARGEST_KIB), mib=mib)
