"""The search as a sequence of questions, without any effect: each evaluation decides the next question.

The same answers lead to the same questions. So a killed search is resumed, and a finished one replayed, by
asking again and answering from the journal, and the next questions can be foretold for either answer.

Changes are put in an order in which each follows what it requires, the most suspected first. The shortest
beginning of that order that shows the difference ends with a change that matters. If it is not enough on its
own, the search goes on among those before it with that change applied: so changes are found that only fail
together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import structs

from sparkwright.base.errors import BisectionError
from sparkwright.engine.outcomes import normalise
from sparkwright.search.model import (
    Calibration,
    Evaluation,
    Role,
    SearchProblem,
    SearchResult,
    SearchStep,
    StepVerdict,
)
from sparkwright.search.posterior import Located, Noise, Posterior, locate
from sparkwright.search.subsets import Changes, ddmin

Questions = Generator["Question", Evaluation, SearchResult]

CONFIDENCE, MOST_RUNS = 0.95, 64
"""Of an answer at which a search ends, and repetitions of one candidate: a rarer failure is refused."""
_RESTARTS = 3  # after an answer that was refuted by its own check
_UNTESTABLE = {StepVerdict.UNTESTABLE, StepVerdict.UNSTABLE}


@dataclass(frozen=True)
class Question:
    """One evaluation that the search needs.

    Attributes:
        heads: those that no other requires; with *attempt* the key of the evaluation.
        attempt: number of the repetition, from 1.
        left: evaluations that are still expected, this one included.
    """

    applied: frozenset[str]
    heads: tuple[str, ...]
    attempt: int
    left: float

    @property
    def key(self) -> tuple[tuple[str, ...], int]:
        """Return the key of its evaluation in a journal."""
        return self.heads, self.attempt


def search(problem: SearchProblem) -> Questions:
    """Return the search for the difference in *problem*: it yields questions, and is sent their evaluations.

    Raises:
        BisectionError: the search is refused; see `calibrate` and `Changes`.
    """
    return _Search(problem).run()


def solve(problem: SearchProblem, evaluate: Callable[[Question], Evaluation]) -> SearchResult:
    """Return the result of the search of *problem* whose questions *evaluate* answers.

    Raises:
        BisectionError: the search is refused.
    """
    searching = search(problem)
    question = next(searching)
    try:
        while True:
            question = searching.send(evaluate(question))
    except StopIteration as done:
        result: SearchResult = done.value
        return result


class _RefutedError(Exception):
    """The check of an answer contradicts it."""


class _Search:
    def __init__(self, problem: SearchProblem) -> None:
        self.problem = problem
        self.changes = Changes(problem)
        self.shows_bad = problem.direction == "broke"
        self.signature: str | None = None  # of the failure being chased: that of the bad end
        self.verdicts: dict[frozenset[str], list[StepVerdict]] = {}
        self.steps: list[SearchStep] = []
        self.upstream = {change.id for change in problem.changes if change.axis == "upstream"}

    def run(self) -> Questions:
        old_end, new_end = frozenset[str](), frozenset(self.changes.order)
        bad_end, good_end = (new_end, old_end) if self.shows_bad else (old_end, new_end)
        calibration, noise = yield from calibrate(
            self.problem, lambda: self._run(bad_end, "bad end"), lambda: self._run(good_end, "good end")
        )
        self.calibration: Calibration = structs.replace(calibration, signature=self.signature or "")
        self.noise: Noise = noise
        self.good_end = good_end
        for _ in range(_RESTARTS):
            try:
                return (yield from self._minimal())
            except _RefutedError:
                continue
        raise BisectionError(
            "the search contradicts itself",
            because="repetitions refute each answer: the failure does not depend on these changes alone",
            next_step="read the evaluations in the report; give a judge that is less noisy",
        )

    # Observations ---------------------------------------------------------------------------

    def _run(
        self, applied: frozenset[str], role: Role, left: float = 1.0
    ) -> Generator[Question, Evaluation, SearchStep]:
        """Judge a candidate once more; a failure with another signature is untestable."""
        past = self.verdicts.setdefault(applied, [])
        question = Question(applied, self.changes.heads(applied), len(past) + 1, left)
        evaluation = yield question
        verdict = evaluation.verdict
        if verdict is StepVerdict.BAD:
            found = "" if self.problem.any_failure else normalise(evaluation.signature)
            if self.signature is None:
                self.signature = found
            if found != self.signature:
                verdict = StepVerdict.UNTESTABLE
        past.append(verdict)
        step = SearchStep(
            applied=question.heads,
            attempt=question.attempt,
            role=role,
            verdict=verdict,
            evaluation=evaluation,
        )
        self.steps.append(step)
        return step

    def _given_up(self, applied: frozenset[str]) -> bool:
        """Tell if the runs of the candidate show that it cannot be tested."""
        past = self.verdicts.get(applied, [])
        return not {StepVerdict.GOOD, StepVerdict.BAD}.intersection(past) and len(past) >= self._tries()

    def _tries(self) -> int:
        return 1 if self.problem.deterministic else 2

    def _observe(self, applied: frozenset[str], left: float) -> Generator[Question, Evaluation, bool | None]:
        """Judge a candidate until it gives one verdict: true for bad; `None` if it cannot be tested."""
        for _ in range(self._tries()):
            step = yield from self._run(applied, "search", left)
            if step.verdict not in _UNTESTABLE:
                return step.verdict is StepVerdict.BAD
        return None

    def _shows(
        self, applied: frozenset[str], *, role: Role = "search"
    ) -> Generator[Question, Evaluation, bool | None]:
        """Judge a candidate until it is certain that it shows the difference, or does not; else `None`."""
        while not self._given_up(applied):
            past = self.verdicts.get(applied, [])
            if StepVerdict.BAD in past:
                return self.shows_bad
            if past.count(StepVerdict.GOOD) >= self.calibration.repetitions:
                return not self.shows_bad
            if sum(verdict in _UNTESTABLE for verdict in past) > self.calibration.repetitions:
                return None
            yield from self._run(applied, role)
        return None

    # The search -----------------------------------------------------------------------------

    def _minimal(self) -> Questions:
        """Find a smallest set that shows the difference; see the head of this module."""
        self.unit_of: dict[str, tuple[str, ...]] = {}
        kept: tuple[str, ...] = ()
        pool = self.changes.order
        confidence = 1.0
        while True:
            base = self.changes.close(kept)
            pool = tuple(name for name in pool if name not in base)
            if not pool:  # all that was left has been kept
                return (yield from self._conclude(base, confidence))
            located = yield from self._locate(base, pool)
            confidence *= located.confidence
            before = base.union(pool[: located.first - 1])
            among = pool[located.first - 1 : located.last]
            if len(among) > 1:
                among = yield from self._split(before, among)
            kept = (*kept, *among)
            pool = pool[: located.first - 1]
            closed = self.changes.close(kept)
            shows = yield from self._shows(closed, role="check")
            if shows:
                return (yield from self._conclude(closed, confidence))
            if shows is None and kept == among:
                # it cannot be judged alone: what stands before it decides, with and without it
                units = self._units(among)
                return (yield from self._result(units, confidence, before, before.union(among)))

    def _split(
        self, before: frozenset[str], among: tuple[str, ...]
    ) -> Generator[Question, Evaluation, tuple[str, ...]]:
        """Return those of *among* that matter on top of *before*; the inseparable become one unit."""
        inseparable = set(among) <= self.upstream  # of commits there are no other subsets
        if not inseparable:
            found = yield from ddmin(self.changes, among, before, self._shows)
            among = tuple(name for name in among if name in found)
            for name in among:
                smaller = self.changes.without(found, (name,))
                inseparable |= bool(smaller) and (yield from self._shows(before | smaller)) is None
        if inseparable:
            self.unit_of |= dict.fromkeys(among, among)
        return among

    def _units(self, heads: Sequence[str]) -> list[tuple[str, ...]]:
        """Return *heads*, those that could not be separated with all of their unit."""
        return list(dict.fromkeys(self.unit_of.get(name, (name,)) for name in heads))

    def _locate(self, base: frozenset[str], pool: Sequence[str]) -> Generator[Question, Evaluation, Located]:
        """Find the change of *pool* with which its beginning shows the difference on top of *base*."""
        weight = dict(zip(self.changes.order, self.changes.weights, strict=True))
        posterior = Posterior([weight[name] for name in pool], self.noise, self.shows_bad)
        untestable = set[int]()
        for applied, past in self.verdicts.items():
            position = len(applied) - len(base)
            if 0 < position < len(pool) and applied == base.union(pool[:position]):
                if self._given_up(applied):
                    untestable.add(position)
                for verdict in past:
                    if verdict not in _UNTESTABLE:
                        posterior.observe(position, bad=verdict is StepVerdict.BAD)
        return (
            yield from locate(
                posterior,
                lambda position, left: self._observe(base.union(pool[:position]), left),
                confidence=CONFIDENCE,
                untestable=untestable,
            )
        )

    def _conclude(self, subset: frozenset[str], confidence: float) -> Questions:
        """Leave out what is not needed of *subset*, which shows the difference."""
        while True:
            unclear = False
            units = self._units(self.changes.heads(subset))
            for unit in units:
                smaller = self.changes.without(subset, unit)
                shows = (yield from self._shows(smaller, role="check")) if smaller else False
                if shows:
                    subset = smaller
                    break
                unclear |= shows is None
            else:
                break
        good = frozenset[str]() if unclear else self.changes.without(subset, units[0])
        return (yield from self._result(units, confidence, good, subset, unclear=unclear))

    def _result(
        self,
        units: Sequence[tuple[str, ...]],
        confidence: float,
        without: frozenset[str],
        with_it: frozenset[str],
        *,
        unclear: bool = False,
    ) -> Questions:
        """Return the answer, if repetitions of its good candidate do not refute it."""
        bad, good = (with_it, without) if self.shows_bad else (without, with_it)
        if self.calibration.repetitions > 1:
            for _ in range(self.calibration.repetitions):
                if (yield from self._run(good, "check")).verdict is StepVerdict.BAD:
                    self._refute(good)
        heads = self.changes.heads(bad), self.changes.heads(good)
        changes = [name for unit in units for name in unit]
        kind: Literal["culprit", "interaction", "range", "set"] = "set"
        if len(changes) == 1:
            kind = "culprit"
        elif len(units) == 1 and set(changes) <= self.upstream:
            kind = "range"
        elif len(units) == len(changes) and not unclear:
            kind = "interaction"
        place = {name: number for number, name in enumerate(change.id for change in self.problem.changes)}
        return SearchResult(
            kind=kind,
            changes=tuple(sorted(changes, key=place.__getitem__)),
            confidence=confidence if kind in {"culprit", "interaction"} else None,
            calibration=self.calibration,
            steps=tuple(self.steps),
            bad=heads[0],
            good=heads[1],
            check=tuple(
                self.problem.command.replace("{applied}", ",".join(ids))
                for ids in heads
                if self.problem.command
            ),
        )

    def _refute(self, good: frozenset[str]) -> None:
        if good == self.good_end:
            name = ends(self.problem)[0]
            raise BisectionError(
                f"{name} is not good",
                because=f"{self.problem.judge} finds it bad now and then",
                next_step="give an end that the judge always finds good",
            )
        raise _RefutedError


# Both ends ----------------------------------------------------------------------------------------

_RUNS = 3  # of the bad end at first, if the judge may say different things
_ENOUGH_SHOWN = 4  # bad runs that make the rate of a flake known well enough
_DOUBT = 1e-4  # that a judge is not deterministic though it says so
_CHECKS = 5  # candidates that share the error which is left, of one search


def calibrate(
    problem: SearchProblem,
    bad: Callable[[], Generator[Any, Any, SearchStep]],
    good: Callable[[], Generator[Any, Any, SearchStep]],
) -> Generator[Any, Any, tuple[Calibration, Noise]]:
    """Run both ends: the bad one until it shows, then the good one as often as a flake demands."""
    good_end, bad_end = ends(problem)
    runs, shown = yield from _run_bad(problem, bad_end, bad)
    doubt = _doubt(runs, shown, deterministic=problem.deterministic)
    repetitions = _repetitions(doubt, runs, shown)
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
    problem: SearchProblem, bad_end: str, bad: Callable[[], Generator[Any, Any, SearchStep]]
) -> Generator[Any, Any, tuple[int, int]]:
    """Run the bad end, doubling the runs until it shows; return runs, and those that were bad."""
    wanted, most = (1, 1) if problem.deterministic else (_RUNS, MOST_RUNS)
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
            next_step="check that the ends are not the wrong way round, or give a judge that provokes it",
        )
    return shown + hidden, shown


def _doubt(runs: int, shown: int, *, deterministic: bool) -> float:
    """Return the probability that the failure is a flake.

    Before the first run a flake of any rate is as likely as none, unless the judge is deterministic.
    """
    if deterministic:
        return _DOUBT
    return 1.0 if shown < runs else 1 / (runs + 2)


def _repetitions(doubt: float, runs: int, shown: int) -> int:
    """Return the number of good runs after which a bad candidate would have shown."""
    allowed = (1 - CONFIDENCE) / _CHECKS
    a, b = 1.0 + shown, 1.0 + runs - shown
    for number in range(1, MOST_RUNS + 1):
        log = math.lgamma(b + number) - math.lgamma(b) + math.lgamma(a + b) - math.lgamma(a + b + number)
        if doubt * math.exp(log) <= allowed:
            return number
    raise BisectionError(
        "the failure is too rare to be searched",
        because=f"it showed in {shown} of {runs} runs: {MOST_RUNS} good runs would not rule it out",
        next_step="give a judge that provokes it more often",
    )
