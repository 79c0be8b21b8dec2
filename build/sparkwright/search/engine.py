"""Run a search: evaluate what it asks for, and keep every evaluation in the journal.

`bisect` is the function to call; `status` says from the journal alone how far a search is, and its result.
Where several jobs may run, others evaluate what is likely to be asked next.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import (
    BisectionError,
    BusyError,
    EndpointError,
    EnvironmentSetupError,
    FetchError,
    NotEnoughMemoryError,
    ProcessError,
    ServerError,
    SparkwrightError,
    StorageError,
)
from sparkwright.base.events import emit, task
from sparkwright.search.journal import Evaluated, Known, SearchJournal, Stopped, read_journal
from sparkwright.search.model import (
    CandidateJudge,
    Evaluation,
    SearchProblem,
    SearchResult,
    StepVerdict,
    UntestableError,
)
from sparkwright.search.strategy import Question, search, solve
from sparkwright.store.atomic import storing
from sparkwright.store.removal import remove_tree

_PASSING = (
    BusyError,
    EndpointError,
    EnvironmentSetupError,
    FetchError,
    NotEnoughMemoryError,
    ProcessError,
    ServerError,
    StorageError,
)
"""Failures of the infrastructure that may be gone after a while."""


def bisect(
    problem: SearchProblem,
    judge: CandidateJudge,
    folder: Path,
    *,
    jobs: int = 1,
    retries: int = 2,
    pause_s: float = 5.0,
    stop: threading.Event | None = None,
) -> SearchResult:
    """Search for the change between both ends of *problem*; resume what *folder* holds of it.

    Logs of an evaluation go to a folder of its own below *folder*; ``journal.jsonl`` there is the journal.

    Args:
        problem: what is searched.
        judge: judges candidates; what it raises is a failure of the infrastructure.
        folder: of this bisection, and of no other.
        jobs: evaluations at a time; those above the first are guesses at the next steps.
        retries: repetitions of an evaluation after a failure of the infrastructure that may pass.
        pause_s: pause before each of them.
        stop: ends evaluations of *judge*; set when the search ends while guesses still run.

    Raises:
        BisectionError: nothing lies between the ends, an end is not what it is said to be, or the failure is
            too rare.
        BusyError: another process works on *folder*.
        ConfigError: *folder* holds another problem.
        StorageError: the journal could not be written.
        SparkwrightError: the judge's, after its retries; the journal is whole, and the search can be resumed.
    """
    _ = next(search(problem))  # an impossible problem is refused before anything is written
    with (
        SearchJournal(folder, problem) as journal,
        task("bisecting", unit="evaluations") as progress,
        _Evaluations(judge, journal, jobs=jobs, retries=retries, pause_s=pause_s, stop=stop) as evaluations,
    ):

        def answer(question: Question) -> Evaluation:
            evaluation = evaluations.answer(question)
            progress.advance(left=question.left * evaluations.mean_seconds())
            return evaluation

        return solve(problem, answer)


def evaluate(judge: CandidateJudge, applied: frozenset[str], attempt: int, folder: Path) -> Evaluation:
    """Return what *judge* says of a candidate, with the time that it took."""
    started = time.monotonic()
    try:
        found = judge.evaluate(applied, attempt=attempt, folder=folder)
    except UntestableError as error:
        found = Evaluation(verdict=StepVerdict.UNTESTABLE, detail=str(error))
    seconds = found.seconds or round(time.monotonic() - started, 3)
    return msgspec.structs.replace(found, seconds=seconds)


@dataclass(frozen=True)
class Progress:
    """The progress of a bisection.

    Attributes:
        seconds: of all evaluations.
        result: `None` if it has not ended.
        next: the candidate that is to be judged next, as in `SearchStep.applied`; `None` if it has ended.
        left: evaluations that are still expected.
        refused: the reason why the search cannot go on.
        stopped: failures of the infrastructure, in order.
    """

    problem: SearchProblem
    evaluations: int
    seconds: float
    result: SearchResult | None = None
    next: tuple[str, ...] | None = None
    left: float = 0.0
    refused: BisectionError | None = None
    stopped: tuple[str, ...] = ()


def status(folder: Path) -> Progress:
    """Return how far the bisection in *folder* is, from its journal alone.

    Raises:
        ConfigError: there is no journal, or it is damaged.
    """
    recorded = read_journal(folder)
    so_far = Progress(
        recorded.problem,
        len(recorded.known),
        sum(evaluation.seconds for evaluation in recorded.known.values()),
        stopped=tuple(one.error for one in recorded.stopped),
    )
    try:
        found = _follow(recorded.problem, recorded.known)
    except BisectionError as error:
        return replace(so_far, refused=error)
    if isinstance(found, SearchResult):
        return replace(so_far, result=found)
    return replace(so_far, next=found.heads, left=found.left)


def _follow(problem: SearchProblem, known: Known) -> SearchResult | Question:
    """Return the result that *known* evaluations lead to, or the first question that they do not answer."""
    searching = search(problem)
    question = next(searching)
    try:
        while (evaluation := known.get(question.key)) is not None:
            question = searching.send(evaluation)
    except StopIteration as done:
        result: SearchResult = done.value
        return result
    return question


def likely(problem: SearchProblem, known: Known, count: int) -> list[Question]:
    """Return the next question and those that follow on either answer, the nearest first; *count* at most."""
    bad = next(
        (one for one in known.values() if one.verdict is StepVerdict.BAD), Evaluation(verdict=StepVerdict.BAD)
    )
    answers = (Evaluation(verdict=StepVerdict.GOOD), bad)
    found: dict[tuple[tuple[str, ...], int], Question] = {}
    waiting = deque([known])
    while waiting and len(found) < count:
        assumed = waiting.popleft()
        try:
            question = _follow(problem, assumed)
        except SparkwrightError:
            continue
        if isinstance(question, Question):
            found.setdefault(question.key, question)
            waiting.extend({**assumed, question.key: answer} for answer in answers)
    return list(found.values())


class _Evaluations:
    """Answers questions by the journal or by the judge, while other jobs answer those likely to follow."""

    def __init__(
        self,
        judge: CandidateJudge,
        journal: SearchJournal,
        *,
        jobs: int,
        retries: int,
        pause_s: float,
        stop: threading.Event | None,
    ) -> None:
        self.judge, self.journal, self.stop = judge, journal, stop
        self.jobs, self.retries, self.pause_s = jobs, retries, pause_s
        self.known = dict(journal.recorded.known)
        self.running: dict[Future[Evaluation], Question] = {}
        self.failed = set[tuple[tuple[str, ...], int]]()  # guesses, not tried again until they are needed
        self.executor = ThreadPoolExecutor(jobs) if jobs > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the guesses that still run, and keep those that ended well."""
        if self.executor is None:
            return
        if self.running and self.stop is not None:
            self.stop.set()
        self.executor.shutdown(wait=True, cancel_futures=True)
        with contextlib.suppress(StorageError):  # the search itself has ended, or failed for its own reason
            for future, question in self.running.items():
                if not future.cancelled() and future.exception() is None:
                    self._keep(question, future.result())

    def mean_seconds(self) -> float:
        """Return the mean time of an evaluation."""
        return math.fsum(one.seconds for one in self.known.values()) / max(1, len(self.known))

    def answer(self, question: Question) -> Evaluation:
        """Return the evaluation of *question*, from the journal if it holds it.

        Raises:
            SparkwrightError: the judge's.
            StorageError: the journal could not be written.
        """
        while question.key not in self.known:
            try:
                if self.executor is None:
                    self._keep(question, self._run(question))
                else:
                    self._start(self.executor, question)
                    self._collect(question)
            except SparkwrightError as error:
                with contextlib.suppress(StorageError):  # a full disk takes no note of itself
                    self.journal.write(
                        Stopped(applied=question.heads, attempt=question.attempt, error=str(error))
                    )
                raise
        return self.known[question.key]

    def _run(self, question: Question) -> Evaluation:
        """Evaluate *question* in a folder of its own, and once more after a failure that may pass."""
        name = f"{digest_of(list(question.heads))[:12]}-{question.attempt}"
        folder = self.journal.path.parent / "evaluations" / name
        for tried in range(self.retries + 1):
            with storing(f"preparing {folder}"):
                if folder.exists():  # of an evaluation that was cut short
                    remove_tree(folder)
                folder.mkdir(parents=True)
            try:
                return evaluate(self.judge, question.applied, question.attempt, folder)
            except _PASSING as error:
                if tried == self.retries:
                    raise
                emit("bisect.retry", what=question.heads, error=str(error), wait_s=self.pause_s)
                time.sleep(self.pause_s)
        raise AssertionError  # pragma: no cover - the last try returns or raises

    def _start(self, executor: ThreadPoolExecutor, question: Question) -> None:
        """Fill all jobs: with *question*, and with those that are likely to follow."""
        underway = {one.key for one in self.running.values()} | (self.failed - {question.key})
        for one in likely(self.journal.recorded.problem, self.known, self.jobs):
            must = one.key == question.key
            if one.key not in underway and (must or len(self.running) < self.jobs):
                self.running[executor.submit(copy_context().run, self._run, one)] = one

    def _collect(self, question: Question) -> None:
        """Wait until an evaluation ends, and keep it; the failure of a guess does not matter yet.

        Raises:
            SparkwrightError: *question* failed.
        """
        for future in wait(self.running, return_when=FIRST_COMPLETED).done:
            ended = self.running.pop(future)
            error = future.exception()
            if error is None:
                self._keep(ended, future.result())
            elif ended.key == question.key or not isinstance(error, SparkwrightError):
                raise error
            else:
                self.failed.add(ended.key)

    def _keep(self, question: Question, evaluation: Evaluation) -> None:
        self.journal.write(Evaluated(applied=question.heads, attempt=question.attempt, evaluation=evaluation))
        self.known[question.key] = evaluation
        emit(
            "bisect.evaluated",
            applied=question.heads,
            attempt=question.attempt,
            verdict=evaluation.verdict.value,
            seconds=round(evaluation.seconds, 3),
            detail=evaluation.detail,
        )
