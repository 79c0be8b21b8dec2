"""Cells that two finished runs have in common: the same prompts under the same load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sparkwright.base.errors import ConfigError
from sparkwright.engine.cell import Cell
from sparkwright.engine.observations import Observation
from sparkwright.verify.run import Run

ARMS = ("before", "after")


@dataclass(frozen=True)
class MatchedCells:
    """Observations of cells that every run measured.

    Attributes:
        before: for each run before the upgrade, its observations by the key of their cell.
        after: the same for each run after it.
        keys: keys of the cells that all of them have, in the order of the first run.
        left_out: number of cells that some runs have and others lack.
        speed: server's seconds in one of the client's, the same in all runs.
    """

    before: tuple[dict[str, Observation], ...]
    after: tuple[dict[str, Observation], ...]
    keys: tuple[str, ...]
    left_out: int
    speed: float

    @property
    def starts(self) -> tuple[int, int]:
        """Starts of the server before and after, one a run."""
        return len(self.before), len(self.after)

    def cells(self, check: str, where: Callable[[Cell], bool] = lambda _: True) -> list[str]:
        """Return the keys of the cells of *check* that *where* holds for."""
        first = self.before[0]
        return [key for key in self.keys if first[key].cell.check == check and where(first[key].cell)]

    def of(self, arm: str, keys: Iterable[str]) -> list[list[Observation]]:
        """Return for each run of *arm* its observations of *keys*."""
        runs = self.before if arm == "before" else self.after
        keys = list(keys)
        return [[run[key] for key in keys] for run in runs]


def match_runs(before: Sequence[Run], after: Sequence[Run]) -> MatchedCells:
    """Return the cells that all runs have in common.

    Cells of servers other than the main one are left out: a run's own baseline says nothing about an upgrade.

    Raises:
        ConfigError: they have none in common, or their clocks differ.
    """
    speeds = {run.speed for run in (*before, *after)}
    if len(speeds) > 1:
        raise ConfigError(
            "these runs cannot be compared",
            because=f"their clocks run at {', '.join(f'{one:g}' for one in sorted(speeds))} times real time",
            next_step="compare runs of real servers, or of simulators with the same --speed",
        )
    olds, news = ([_by_key(run) for run in runs] for runs in (before, after))
    keys = [key for key in olds[0] if all(key in run for run in (*olds, *news))]
    if not keys:
        raise ConfigError(
            "these runs have no measurement in common",
            because="no cell of one was measured with the same prompts and the same load in the other",
            next_step="verify both servers with the same --profile, --levels, --categories and --seed",
        )
    union = {key for run in (*olds, *news) for key in run}
    return MatchedCells(tuple(olds), tuple(news), tuple(keys), len(union) - len(keys), speeds.pop())


def _by_key(run: Run) -> dict[str, Observation]:
    return {o.cell.key: o for o in run.observations if o.cell.arm == "main" and o.cell.boot == 0}
