"""Count the starts and the misses of a search on surfaces whose best point is known.

    python scripts/bench/settings.py [--seeds 200] [--spread 1.5,5] [--configurations 24] [--minutes 10]

A surface has a random effect for each value of four settings and for each pair of values; each start draws
its own luck. *compare* is ``sparkwright verify compare --vary``; the grid gives three starts to each
configuration. A
miss is an answer more than 3 % below the best point; *kept* are misses that kept the recipe as it is, because
nothing was surely better. On flat surfaces every configuration is the same, and
any answer but the recipe as it is counts as a miss.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from dataclasses import dataclass
from statistics import fmean

from sparkwright.verify.checks.settings import OWN, Trial, contenders, next_start, recommended

MISS = 0.03
SHAPES = {8: (4, 2), 12: (3, 2, 2), 24: (3, 2, 2, 2), 48: (4, 3, 2, 2)}
HEAD = ("spread", "search", "starts", "hours", "of the grid", "misses", "kept", "worst", "mean loss")


@dataclass(frozen=True)
class Surface:
    """Logarithms of the objective, the recipe as it is first; *spread* is that of starts."""

    truth: tuple[float, ...]
    spread: float
    seed: int

    @classmethod
    def drawn(cls, shape: tuple[int, ...], spread: float, seed: int, effect: float) -> Surface:
        """Return a surface with effects of settings, and of pairs of them a third as large."""
        luck = random.Random(f"surface {seed}")  # noqa: S311 - no secret
        single = [[luck.gauss(0, effect) for _ in range(size)] for size in shape]
        pairs = {
            (a, b): [[luck.gauss(0, effect / 3) for _ in range(shape[b])] for _ in range(shape[a])]
            for a, b in itertools.combinations(range(len(shape)), 2)
        }
        truth = tuple(
            sum(single[a][x] for a, x in enumerate(point))
            + sum(table[point[a]][point[b]] for (a, b), table in pairs.items())
            for point in itertools.product(*map(range, shape))
        )
        return cls(truth, spread, seed)

    def start(self, index: int, number: int) -> float:
        """Return the logarithm of the objective of one start, the same each time."""
        luck = random.Random(f"start {self.seed} {index} {number}")  # noqa: S311 - no secret
        return self.truth[index] + luck.gauss(0, self.spread)

    def loss(self, index: int) -> float:
        """Return the share by which *index* is below the best point."""
        return 1 - math.exp(self.truth[index] - max(self.truth))


def search(surface: Surface) -> tuple[int, int]:
    """Return the answer of a comparison, and the starts that it took."""
    trials = [Trial() for _ in surface.truth]
    while (planned := next_start(trials, 3, quality=False)) is not None:
        known = trials[planned.index]
        score = surface.start(planned.index, known.starts)
        trials[planned.index] = Trial((*known.scores, score), known.starts + 1)
    answer = recommended(contenders(trials))
    return OWN if answer is None else answer, sum(trial.starts for trial in trials)


def grid_search(surface: Surface) -> tuple[int, int]:
    """Return the best mean of three starts of each."""
    indices = range(len(surface.truth))
    mean = {index: fmean(surface.start(index, number) for number in range(3)) for index in indices}
    return max(mean, key=lambda index: mean[index]), 3 * len(mean)


def main() -> int:
    """Print a row for each spread and search."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seeds", type=int, default=200)
    options.add_argument("--spread", default="1.5,5", help="between starts, in per cent")
    options.add_argument("--effect", type=float, default=10.0, help="of one value of a setting, in per cent")
    options.add_argument("--configurations", type=int, choices=sorted(SHAPES), default=24)
    options.add_argument("--minutes", type=float, default=10.0, help="of one start with its measurement")
    given = options.parse_args()
    print("  ".join(f"{head:>11}" for head in HEAD))
    for spread in map(float, given.spread.split(",")):
        _compare(given, spread / 100)
        _flat(given, spread / 100)
    return 0


def _compare(given: argparse.Namespace, spread: float) -> None:
    shape = SHAPES[given.configurations]
    surfaces = [Surface.drawn(shape, spread, seed, given.effect / 100) for seed in range(given.seeds)]
    compared = [search(one) for one in surfaces]
    grid = [grid_search(one) for one in surfaces]
    of_grid = fmean(starts for _, starts in grid)
    for name, found in (("compare", compared), ("grid", grid)):
        losses = [one.loss(answer) for one, (answer, _) in zip(surfaces, found, strict=True)]
        starts = fmean(starts for _, starts in found)
        missed = sum(loss > MISS for loss in losses)
        kept = sum(loss > MISS and answer == OWN for loss, (answer, _) in zip(losses, found, strict=True))
        row = (
            f"{100 * spread:.1f} %", name, f"{starts:.1f}", f"{starts * given.minutes / 60:.1f}",
            f"{starts / of_grid:.2f}", f"{missed}/{len(losses)}", str(kept), f"{100 * max(losses):.1f} %",
            f"{100 * fmean(losses):.2f} %",
        )  # fmt: skip
        print("  ".join(f"{word:>11}" for word in row), flush=True)


def _flat(given: argparse.Namespace, spread: float) -> None:
    """Print how often a configuration is named where all are the same."""
    flat = (0.0,) * given.configurations
    found = [search(Surface(flat, spread, seed)) for seed in range(given.seeds)]
    alarms = sum(answer != OWN for answer, _ in found)
    starts = fmean(starts for _, starts in found)
    row = (f"{100 * spread:.1f} %", "all equal", f"{starts:.1f}", f"{starts * given.minutes / 60:.1f}",
           f"{starts / 3 / len(flat):.2f}", f"{alarms}/{given.seeds}", "", "", "")  # fmt: skip
    print("  ".join(f"{word:>11}" for word in row), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
