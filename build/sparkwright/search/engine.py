"""Run a search: evaluate what it asks for, and keep every evaluation in the journal.

`bisect` is the function to call; `status` says from the journal alone how far a search is, and its result.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import BisectionError
from sparkwright.base.events import emit, task
from sparkwright.search.journal import Evaluated, Known, SearchJournal, read_journal
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


def bisect(problem: SearchProblem, judge: CandidateJudge, folder: Path) -> SearchResult:
    """Search for the change between both ends of *problem*; resume what *folder* holds of it.

    Logs of an evaluation go to a folder of its own below *folder*; ``journal.jsonl`` there is the journal.

    Raises:
        BisectionError: nothing lies between the ends, an end is not what it is said to be, or the failure is
            too rare.
        BusyError: another process works on *folder*.
        ConfigError: *folder* holds another problem.
        StorageError: the journal could not be written.
        SparkwrightError: the judge's; the journal is whole, and the search can be resumed.
    """
    _ = next(search(problem))  # an impossible problem is refused before anything is written
    with SearchJournal(folder, problem) as journal, task("bisecting", unit="evaluations") as progress:
        known = dict(journal.recorded.known)

        def answer(question: Question) -> Evaluation:
            if question.key not in known:
                known[question.key] = _evaluated(judge, journal, question)
            mean = math.fsum(one.seconds for one in known.values()) / len(known)
            progress.advance(left=question.left * mean)
            return known[question.key]

        return solve(problem, answer)


def _evaluated(judge: CandidateJudge, journal: SearchJournal, question: Question) -> Evaluation:
    """Evaluate *question* in a folder of its own, and write the evaluation into the journal."""
    name = f"{digest_of(list(question.heads))[:12]}-{question.attempt}"
    folder = journal.path.parent / "evaluations" / name
    with storing(f"preparing {folder}"):
        if folder.exists():  # of an evaluation that was cut short
            remove_tree(folder)
        folder.mkdir(parents=True)
    found = evaluate(judge, question.applied, question.attempt, folder)
    journal.write(Evaluated(applied=question.heads, attempt=question.attempt, evaluation=found))
    emit(
        "bisect.evaluated",
        applied=question.heads,
        attempt=question.attempt,
        verdict=found.verdict.value,
        seconds=round(found.seconds, 3),
        detail=found.detail,
    )
    return found


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
    """

    problem: SearchProblem
    evaluations: int
    seconds: float
    result: SearchResult | None = None
    next: tuple[str, ...] | None = None
    left: float = 0.0
    refused: BisectionError | None = None


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
