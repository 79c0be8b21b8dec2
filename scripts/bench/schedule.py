"""Compiling longest first against ninja's order: simulated makespans of a real build.

Durations are read from a ``.ninja_log`` (``# ninja log vN``, then start and end in ms, time stamp, output and
digest of the command in each line); ninja's order is that of the starts in it. Only objects count, not links.
No order can be faster than the bound: all the time over all the jobs, or the longest unit. ``guessed`` is
longest first with every duration wrong by a random factor between half and double: what a first build on a
new machine can expect of the seeds in the lock.

A duration is of the clock, with the other jobs of that build beside it: what else the machine did is in it.

    python scripts/bench/schedule.py path/to/.ninja_log [--jobs 2 4 8 16 20]
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass
from pathlib import Path

from sparkwright.native.model import Cost
from sparkwright.native.schedule import Waiting, in_order, makespan

_GUESSES = 51


@dataclass(frozen=True)
class Built:
    """One object of the log: its name, when it was started, and how long it took, in seconds."""

    output: str
    started: float
    seconds: float


def read_log(path: Path) -> list[Built]:
    """Return every object that the log tells of, in the order of their starts; of several builds the last."""
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    if not head.startswith("# ninja log v"):
        raise SystemExit(f"{path} is no log of ninja's")
    found = {}
    for line in lines:
        start, end, _, output, *_ = line.split("\t")
        if output.endswith(".o"):
            found[output] = Built(output, int(start) / 1000, (int(end) - int(start)) / 1000)
    return sorted(found.values(), key=lambda built: built.started)


def longest_first(units: list[Built], jobs: int, factor: dict[str, float] | None = None) -> float:
    """Return the makespan in the driver's order, where a duration is thought to be longer by its *factor*."""
    seconds = {unit.output: unit.seconds for unit in units}
    wrong = factor or dict.fromkeys(seconds, 1.0)
    waiting = [Waiting(name, Cost(seconds=seconds[name] * wrong[name], mib=0)) for name in seconds]
    return makespan((seconds[unit.name] for unit in in_order(waiting)), jobs)


def guessed(units: list[Built], jobs: int) -> float:
    """Return the median makespan over many wrong guesses."""
    dice = random.Random(0)  # noqa: S311 - a simulation
    return statistics.median(
        longest_first(units, jobs, {unit.output: 2 ** dice.uniform(-1, 1) for unit in units})
        for _ in range(_GUESSES)
    )


def main() -> None:
    """Print one line for each number of jobs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4, 8, 16, 20])
    args = parser.parse_args()
    units = read_log(args.log)
    if not units:
        raise SystemExit(f"{args.log} tells of no object")
    seconds = [unit.seconds for unit in units]
    print(f"{len(units)} units, {sum(seconds):.0f} s in all, the longest {max(seconds):.0f} s")
    print(f"{'jobs':>4} {'bound':>8} {'ninja':>8} {'longest first':>14} {'guessed':>8}   saved")
    for jobs in args.jobs:
        bound = max(sum(seconds) / jobs, *seconds)
        ninja, first = makespan(seconds, jobs), longest_first(units, jobs)
        saved = f"{round(1 - first / ninja, 4) + 0.0:7.1%}"
        print(f"{jobs:4} {bound:7.0f}s {ninja:7.0f}s {first:13.0f}s {guessed(units, jobs):7.0f}s {saved}")


if __name__ == "__main__":
    main()
