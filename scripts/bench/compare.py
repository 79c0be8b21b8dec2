"""Count false alarms and finds of a comparison of two servers, over starts drawn by chance.

    python scripts/bench/compare.py [--trials 2000]

A start is a value at each of three concurrencies: the logarithm of the server's speed with the luck of the
start, and half a per cent of its own. Rows with a fixed number of starts are what ``verify compare --boots
N`` says, or as many finished runs; *default* makes three to ten, as without it. Bounds are one-sided, at 95 %
(Clopper and Pearson): from above where the servers are equal, else from below.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from scipy.stats import beta

from sparkwright.engine.findings import Verdict
from sparkwright.verify.compare import Compared, Look, looks_of

CASES = ((0.0, 0.015), (0.0, 0.05), (0.0, 0.08), (-0.04, 0.015), (-0.10, 0.05))
PLANS = {"3": (3, 3), "5": (5, 5), "8": (8, 8), "default": (3, 10)}
LEVELS, OWN = (1, 8, 32), 0.005


def compared(
    looks: list[Look], slower: float, spread: float, random: np.random.Generator
) -> tuple[Verdict, int]:
    """Return the verdict on a server that is *slower*, and the starts of each that it took."""
    most = looks[-1].starts

    def drawn(mean: float) -> dict[int, list[float]]:
        starts = random.normal(mean, spread, most)
        return {level: list(starts + random.normal(0, OWN, most)) for level in LEVELS}

    sides = drawn(math.log1p(slower)), drawn(0.0)
    for look in looks:
        main, baseline = ({level: of[: look.starts] for level, of in side.items()} for side in sides)
        verdict = Compared(main, baseline, look).verdict
        if verdict is not Verdict.INCONCLUSIVE or look.last:
            return verdict, look.starts
    raise AssertionError("the last look ends")


def main() -> int:
    """Print a row for each plan and case."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--trials", type=int, default=2000)
    trials: int = options.parse_args().trials
    heads = ("starts", "slower", "spread", "worse", "bound", "passed", "undecided", "mean starts")
    print("  ".join(f"{head:>11}" for head in heads))
    for name, (least, most) in PLANS.items():
        looks = looks_of(least, most)
        for slower, spread in CASES:
            random = np.random.default_rng([trials, least, most])
            found = [compared(looks, slower, spread, random) for _ in range(trials)]
            verdicts = [verdict for verdict, _ in found]
            worse = verdicts.count(Verdict.FAIL)
            if slower:
                bound = float(beta.ppf(0.05, worse, trials - worse + 1)) if worse else 0.0
            else:
                bound = float(beta.ppf(0.95, worse + 1, trials - worse))
            row = (
                name, f"{100 * abs(slower):.0f} %", f"{100 * spread:.1f} %", f"{worse}",
                f"{100 * bound:.2f} %", f"{verdicts.count(Verdict.PASS)}",
                f"{verdicts.count(Verdict.INCONCLUSIVE)}",
                f"{sum(starts for _, starts in found) / trials:.1f}",
            )  # fmt: skip
            print("  ".join(f"{word:>11}" for word in row), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
