"""Evaluations that a search takes, against plain binary search and plain ddmin, on the same planted culprits.

Binary search is ``git bisect``'s: over prefixes of the order, one run of each candidate, without a prior.
ddmin is that of Zeller and Hildebrandt with a cache, as picire runs it: subsets, then complements, one run of
each; it cannot search commits, of which no subset exists. Evaluations of both ends count. An answer is
right if it is the planted set; binary search can name one change only.

    python scripts/bench/bisection.py [--changes 17] [--seeds 20]
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparkwright.base.errors import BisectionError
from sparkwright.search.model import Change, Evaluation, SearchProblem, StepVerdict
from sparkwright.search.strategy import search

Applied = frozenset[str]
_SUSPECTED = 100.0


@dataclass
class Planted:
    """A judge that knows the answer.

    Attributes:
        names: all changes, in order.
        culprit: the changes that fail together.
        rate: share of runs in which they do.
        seed: of the runs.
        untestable: numbers of changes of candidates that cannot be judged.
    """

    names: tuple[str, ...]
    culprit: Applied
    rate: float = 1.0
    seed: int = 0
    untestable: frozenset[int] = frozenset()
    evaluations: int = 0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - no secret

    def verdict(self, applied: Applied) -> StepVerdict:
        """Judge a candidate once more."""
        self.evaluations += 1
        if len(applied) in self.untestable:
            return StepVerdict.UNTESTABLE
        fails = applied >= self.culprit and self.random.random() < self.rate
        return StepVerdict.BAD if fails else StepVerdict.GOOD


def ours(judge: Planted, problem: SearchProblem) -> Applied:
    """Search as the package does; nothing if it refuses."""
    searching = search(problem)
    question = next(searching)
    try:
        while True:
            question = searching.send(Evaluation(verdict=judge.verdict(question.applied)))
    except StopIteration as done:
        return frozenset(done.value.changes)
    except BisectionError:
        return frozenset()


def binary(judge: Planted) -> Applied:
    """Search prefixes by halves; what cannot be judged is skipped, as by ``git bisect skip``."""
    names = judge.names
    judge.verdict(frozenset(names))
    judge.verdict(frozenset())
    good, bad = 0, len(names)
    skipped: set[int] = set()
    while left := [place for place in range(good + 1, bad) if place not in skipped]:
        place = left[(len(left) - 1) // 2]
        verdict = judge.verdict(frozenset(names[:place]))
        if verdict is StepVerdict.UNTESTABLE:
            skipped.add(place)
        elif verdict is StepVerdict.BAD:
            bad = place
        else:
            good = place
    return frozenset(names[good:bad])


def plain_ddmin(judge: Planted) -> Applied:
    """Minimise the set of changes by subsets and complements, each tested once."""
    cache: dict[Applied, bool] = {}

    def fails(subset: Sequence[str]) -> bool:
        key = frozenset(subset)
        if key not in cache:
            cache[key] = judge.verdict(key) is StepVerdict.BAD
        return cache[key]

    current = list(judge.names)
    fails(current)
    fails([])
    pieces = 2
    while len(current) > 1:
        bounds = [len(current) * piece // pieces for piece in range(pieces + 1)]
        chunks = [current[one:other] for one, other in itertools.pairwise(bounds)]
        complements = [[name for name in current if name not in chunk] for chunk in chunks]
        tried = [(chunk, 2) for chunk in chunks]
        tried += [(rest, max(2, pieces - 1)) for rest in complements if pieces > 2]  # noqa: PLR2004 - two are each other's
        found = next(((subset, more) for subset, more in tried if fails(subset)), None)
        if found:
            current, pieces = found
        elif pieces == len(current):
            break
        else:
            pieces = min(2 * pieces, len(current))
    return frozenset(current)


@dataclass(frozen=True)
class Case:
    """A kind of planted culprit.

    Attributes:
        judges: makes the judges, alike for each strategy.
        deterministic: as it is said of the judge.
        suspects: makes the prior of a judge, if there is one.
    """

    title: str
    judges: Callable[[], list[Planted]]
    axis: str = "carries"
    deterministic: bool = True
    suspects: Callable[[Planted], dict[str, float]] | None = None


def cases(changes: int, seeds: int) -> list[Case]:
    """Return all cases for so many changes."""
    names = tuple(f"c{number}" for number in range(1, changes + 1))
    singles = [frozenset({name}) for name in names]
    pairs = [frozenset(pair) for pair in itertools.combinations(names, 2)]
    middle = frozenset(range(changes // 2 - 1, changes // 2 + 2))

    def neighbours(judge: Planted) -> dict[str, float]:
        (name,) = judge.culprit
        return {name: _SUSPECTED, names[names.index(name) - 1]: _SUSPECTED}

    def each(sets: list[Applied]) -> Callable[[], list[Planted]]:
        return lambda: [Planted(names, one) for one in sets]

    def flaky(rate: float) -> Callable[[], list[Planted]]:
        return lambda: [
            Planted(names, singles[seed * 7 % changes], rate, 1000 + seed) for seed in range(seeds)
        ]

    return [
        Case("one carry, no prior", each(singles)),
        Case("one carry, two suspected", each(singles), suspects=neighbours),
        Case("one upstream commit", each(singles), axis="upstream"),
        Case("a pair that only fails together", each(pairs)),
        Case("a flake of 60 %", flaky(0.6), deterministic=False),
        Case("a flake of 30 %", flaky(0.3), deterministic=False),
        Case(
            "upstream, three untestable in the middle",
            lambda: [Planted(names, one, untestable=middle) for one in singles],
            axis="upstream",
        ),
    ]


def measure(strategy: Callable[[Planted], Applied], judges: list[Planted]) -> str:
    """Return right answers, and the mean and most evaluations, as a cell."""
    right = sum(
        judge.culprit <= (found := strategy(judge)) and len(found) == len(judge.culprit) for judge in judges
    )
    taken = [judge.evaluations for judge in judges]
    return f"{right:3}/{len(judges):<3} {statistics.mean(taken):6.1f} {max(taken):4}"


def main() -> None:
    """Print a line for each case: right answers, mean and most evaluations of each strategy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--changes", type=int, default=17)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    print(f"{options.changes} changes; right answers, mean and most evaluations, both ends included")
    print(f"{'':42} {'sparkwright':20} {'binary search':20} {'ddmin':20}")
    started = time.perf_counter()
    for case in cases(options.changes, options.seeds):

        def searched(judge: Planted, case: Case = case) -> Applied:
            changes = [{"id": name, "axis": case.axis, "title": name} for name in judge.names]
            return ours(
                judge,
                SearchProblem(
                    start="good",
                    end="bad",
                    judge="planted",
                    changes=tuple(Change(**change) for change in changes),  # type: ignore[arg-type]
                    deterministic=case.deterministic,
                    weights=case.suspects(judge) if case.suspects else {},
                ),
            )

        strategies = (searched, binary) if case.axis == "upstream" else (searched, binary, plain_ddmin)
        cells = [measure(strategy, case.judges()) for strategy in strategies]
        print(f"{case.title:42} " + " ".join(f"{cell:20}" for cell in cells))
    print(f"{time.perf_counter() - started:.1f} s in all: the strategies' own time", file=sys.stderr)


if __name__ == "__main__":
    main()
