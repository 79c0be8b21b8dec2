"""Run a search: evaluate what it asks for, ahead of it where several jobs may run, and keep all in the journal.

`bisect` is the function to call; `replay` derives the result again from a journal alone, `status` how far it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.search.model import CandidateJudge, Problem, SearchResult


def bisect(
    problem: Problem,
    judge: CandidateJudge,
    folder: Path,
    *,
    jobs: int = 1,
    retries: int = 2,
    pause_s: float = 5.0,
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

    Raises:
        BisectionError: nothing lies between the ends, an end is not what it is said to be, or the failure is
            too rare.
        BusyError: another process works on *folder*.
        ConfigError: *folder* holds another problem.
        StorageError: the journal could not be written.
        SparkwrightError: the judge's, after its retries; the journal is whole, and the search can be resumed.
    """
    raise NotImplementedError


def replay(folder: Path) -> SearchResult | None:
    """Return the result that the journal in *folder* leads to; `None` if the search has not ended.

    Raises:
        ConfigError: there is no journal, or it is damaged.
        BisectionError: the search was refused.
    """
    raise NotImplementedError


@dataclass(frozen=True)
class Progress:
    """How far a bisection is.

    Attributes:
        problem: what is searched.
        evaluations: finished.
        seconds: that they took in all.
        result: `None` if it has not ended.
        next: the candidate that is to be judged next, as in `Step.applied`; `None` if it has ended.
        refused: reason why the search cannot go on, or empty.
        stopped: the last failure of the infrastructure, or empty.
    """

    problem: Problem
    evaluations: int
    seconds: float
    result: SearchResult | None
    next: tuple[str, ...] | None
    refused: str = ""
    stopped: str = ""


def status(folder: Path) -> Progress:
    """Return how far the bisection in *folder* is, from its journal alone.

    Raises:
        ConfigError: there is no journal, or it is damaged.
    """
    raise NotImplementedError
