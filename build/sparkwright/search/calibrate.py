"""Both ends of a search: do they reproduce, and how many good runs make a candidate good?"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import TypeVar

from sparkwright.base.errors import BisectionError
from sparkwright.search.model import Calibration, SearchProblem, SearchStep, StepVerdict
from sparkwright.search.posterior import Noise

_RUNS = 3  # of the bad end at first, if the judge may say different things
_ENOUGH_SHOWN = 4  # bad runs that make the rate of a flake known well enough
_DOUBT = 1e-4  # that a judge is not deterministic though it says so
_CHECKS = 5  # candidates that share the error which is left, of one search

AskT = TypeVar("AskT")
ReplyT = TypeVar("ReplyT")


def calibrate(
    problem: SearchProblem,
    bad: Callable[[], Generator[AskT, ReplyT, SearchStep]],
    good: Callable[[], Generator[AskT, ReplyT, SearchStep]],
) -> Generator[AskT, ReplyT, tuple[Calibration, Noise]]:
    """Run both ends: the bad one until it shows, then the good one as often as a flake demands.

    Raises:
        BisectionError: an end is not what it is said to be, or cannot be judged; or the failure is too rare.
    """
    good_end, bad_end = ends(problem)
    runs, shown = yield from _run_bad(problem, bad_end, bad)
    doubt = _doubt(runs, shown, deterministic=problem.deterministic)
    repetitions = _repetitions(problem, doubt, runs, shown)
    for _ in range(repetitions):
        step = yield from good()
        if step.verdict is StepVerdict.BAD:
            raise BisectionError(
                f"{good_end} is not good",
                because=f"{problem.judge} finds it bad, like {bad_end}",
                next_step="give an end that the judge finds good",
            )
        if step.verdict is not StepVerdict.GOOD:
            raise _unusable(problem, f"{good_end} cannot be used as the good end", step)
    noise = Noise(doubt, shown, runs - shown, repetitions)
    return Calibration(runs=runs, shown=shown, repetitions=repetitions), noise


def _unusable(problem: SearchProblem, what: str, step: SearchStep) -> BisectionError:
    found = step.evaluation
    verdict = "fails in another way" if found.verdict is StepVerdict.BAD else found.verdict
    return BisectionError(
        what,
        because=f"{problem.judge} finds it {verdict}: {found.detail or found.signature}",
        next_step=f"read {found.evidence or 'its log'}, or give another end or another judge",
    )


def ends(problem: SearchProblem) -> tuple[str, str]:
    """Return the names of the good and the bad end."""
    pair = problem.start, problem.end
    return pair if problem.direction == "broke" else pair[::-1]


def _run_bad(
    problem: SearchProblem, bad_end: str, bad: Callable[[], Generator[AskT, ReplyT, SearchStep]]
) -> Generator[AskT, ReplyT, tuple[int, int]]:
    """Run the bad end, doubling the runs until it shows; return runs, and those that were bad."""
    wanted = 1 if problem.deterministic else min(_RUNS, problem.most_runs)
    most = 1 if problem.deterministic else problem.most_runs
    runs: list[SearchStep] = []
    while True:
        while len(runs) < wanted:
            runs.append((yield from bad()))
        shown, hidden = (
            sum(step.verdict is verdict for step in runs) for verdict in (StepVerdict.BAD, StepVerdict.GOOD)
        )
        if not shown + hidden:
            raise _unusable(problem, f"{bad_end} cannot be used as the bad end", runs[-1])
        enough = shown >= _ENOUGH_SHOWN or (shown and not hidden)
        if enough or wanted >= most:
            break
        wanted = min(2 * wanted, most)
    if not shown:
        raise BisectionError(
            f"{bad_end} is not bad",
            because=f"{problem.judge} finds it good in {hidden} of {hidden} runs",
            next_step="check that the ends are not the wrong way round, or allow more runs",
        )
    return shown + hidden, shown


def _doubt(runs: int, shown: int, *, deterministic: bool) -> float:
    """Return the probability that the failure is a flake.

    Before the first run a flake of any rate is as likely as none, unless the judge is deterministic.
    """
    if deterministic:
        return _DOUBT
    return 1.0 if shown < runs else 1 / (runs + 2)


def _repetitions(problem: SearchProblem, doubt: float, runs: int, shown: int) -> int:
    """Return the number of good runs after which a bad candidate would have shown.

    Raises:
        BisectionError: more would be needed than are allowed.
    """
    allowed = (1 - problem.confidence) / _CHECKS
    a, b = 1.0 + shown, 1.0 + runs - shown
    for number in range(1, problem.most_runs + 1):
        log = math.lgamma(b + number) - math.lgamma(b) + math.lgamma(a + b) - math.lgamma(a + b + number)
        if doubt * math.exp(log) <= allowed:
            return number
    raise BisectionError(
        "the failure is too rare to be searched",
        because=f"it showed in {shown} of {runs} runs: {problem.most_runs} good runs would not rule it out",
        next_step="give a judge that provokes it more often, or allow more runs",
    )
