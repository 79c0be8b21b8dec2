"""Run a search: evaluate what it asks for, and keep every evaluation in the journal.

`bisect` is the function to call; `status` says from the journal alone how far a search is, and its result.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from sparkwright.base.config import Model, json_decoder
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import BisectionError, ConfigError
from sparkwright.base.events import emit, task
from sparkwright.base.journal import JournalFile, read_lines
from sparkwright.search.model import (
    CandidateJudge,
    Evaluation,
    SearchProblem,
    SearchResult,
    StepVerdict,
    UntestableError,
)
from sparkwright.search.strategy import Question, search, solve
from sparkwright.store.disk import remove_tree, storing


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
    with JournalFile(folder / FILE, subject="bisection") as journal:
        known = dict(take_up(journal, problem).known)
        with task("bisecting", unit="evaluations") as progress:

            def answer(question: Question) -> Evaluation:
                if question.key not in known:
                    known[question.key] = _evaluated(judge, journal, question)
                mean = math.fsum(one.seconds for one in known.values()) / len(known)
                progress.advance(left=question.left * mean)
                return known[question.key]

            return solve(problem, answer)


def _evaluated(judge: CandidateJudge, journal: JournalFile, question: Question) -> Evaluation:
    """Evaluate *question* in a folder of its own, and write the evaluation into the journal."""
    name = f"{digest_of(list(question.heads))[:12]}-{question.attempt}"
    folder = journal.path.parent / "evaluations" / name
    with storing(f"preparing {folder}"):
        if folder.exists():  # of an evaluation that was cut short
            remove_tree(folder)
        folder.mkdir(parents=True)
    found = evaluate(judge, question.applied, question.attempt, folder)
    record = Evaluated(applied=question.heads, attempt=question.attempt, evaluation=found)
    journal.append(msgspec.json.encode(record))
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
    """The progress of a bisection: its result, the evaluations that are left, or why it cannot go on."""

    problem: SearchProblem
    evaluations: int
    result: SearchResult | None = None
    left: float = 0.0
    refused: BisectionError | None = None


def status(folder: Path) -> Progress:
    """Return how far the bisection in *folder* is, from its journal alone.

    Raises:
        ConfigError: there is no journal, or it is damaged.
    """
    recorded = read_journal(folder)
    so_far = Progress(recorded.problem, len(recorded.known))
    try:
        searching = search(recorded.problem)
        question = next(searching)
        while (evaluation := recorded.known.get(question.key)) is not None:
            question = searching.send(evaluation)
    except BisectionError as error:
        return replace(so_far, refused=error)
    except StopIteration as done:
        return replace(so_far, result=done.value)
    return replace(so_far, left=question.left)


# The journal --------------------------------------------------------------------------------------

# One JSON line for each evaluation, written and synced as a whole before the next is begun. A killed search
# leaves a journal whose last line may be cut; opening it again drops that line, and that evaluation is made
# again. Nothing else is ever rewritten. No conclusion is kept: resuming and replaying are the same search
# over what is known.

FILE = "journal.jsonl"


class Begun(Model, frozen=True, tag="bisection", tag_field="kind"):
    """The first line: what is searched."""

    problem: SearchProblem


class Evaluated(Model, frozen=True, tag="evaluation", tag_field="kind"):
    """One finished evaluation of a candidate, as in `SearchStep`."""

    applied: tuple[str, ...]
    attempt: int
    evaluation: Evaluation


Record = Begun | Evaluated
Known = dict[tuple[tuple[str, ...], int], Evaluation]


@dataclass(frozen=True)
class Recorded:
    """The contents of a journal: evaluations by candidate and attempt, in the order in which they ended."""

    problem: SearchProblem
    known: Known


def take_up(journal: JournalFile, problem: SearchProblem) -> Recorded:
    """Return what *journal* holds of *problem*, with which it is begun where it is empty."""
    if journal.empty:
        journal.append(msgspec.json.encode(Begun(problem=problem)))
    recorded = read_journal(journal.path.parent)
    if recorded.problem != problem:
        raise ConfigError(
            f"{journal.path.parent} holds another bisection",
            because=f"it searches from {recorded.problem.start} on, or has other options",
            next_step="use another folder, or give the same specs, judge and options",
        )
    return recorded


def read_journal(folder: Path) -> Recorded:
    """Return everything that the journal in *folder* holds; a cut last line is left out.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    path = folder / FILE
    lines = read_lines(path, subject="bisection")
    decoder = json_decoder(Record)
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise _damaged(path, number, str(error)) from error
    if not records or not isinstance(records[0], Begun):
        raise _damaged(path, 1, "it does not say what is searched")
    evaluated = (record for record in records if isinstance(record, Evaluated))
    return Recorded(records[0].problem, {(one.applied, one.attempt): one.evaluation for one in evaluated})


def _damaged(path: Path, line: int, why: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read", because=f"line {line}: {why}", next_step="begin again in another folder"
    )
