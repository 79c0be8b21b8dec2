"""Run a search: evaluate what it asks for, and keep every evaluation in the journal."""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec

from sparkwright.base.config import Model, json_decoder
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError
from sparkwright.base.events import task
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
        ConfigError: *folder* holds another problem, or its journal is damaged.
        StorageError: the journal could not be written.
        SparkwrightError: the judge's; the journal is whole, and the search can be resumed.
    """
    _ = next(search(problem))  # an impossible problem is refused before anything is written
    with JournalFile(folder / FILE, subject="bisection") as journal:
        if journal.empty:
            journal.append(msgspec.json.encode(Begun(problem=problem)))
        known = read_evaluations(folder, problem)
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


Known = dict[tuple[tuple[str, ...], int], Evaluation]
"""Evaluations by candidate and attempt, in the order in which they ended."""


def read_evaluations(folder: Path, problem: SearchProblem) -> Known:
    """Return the evaluations of *problem* that the journal in *folder* holds; a cut last line is left out.

    Raises:
        ConfigError: it is of another problem, or damaged.
    """
    begun: SearchProblem | None = None
    known: Known = {}
    decoder = json_decoder(Begun | Evaluated)
    for number, line in enumerate(read_lines(folder / FILE, subject="bisection"), 1):
        try:
            record = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ConfigError(
                f"{folder / FILE} cannot be read",
                because=f"line {number}: {error}",
                next_step=f"move {folder} away, and begin again",
            ) from error
        if isinstance(record, Begun):
            begun = record.problem
        else:
            known[record.applied, record.attempt] = record.evaluation
    if begun != problem:
        raise ConfigError(
            f"{folder} holds another bisection",
            because=f"it searches from {begun.start} on, or has other options" if begun else "it names none",
            next_step=f"move {folder} away, and begin again",
        )
    return known
