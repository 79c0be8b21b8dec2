"""The journal of a bisection: one JSON line for each evaluation, on the disk before the next is begun.

A line is written and synced as a whole. A killed search leaves a journal whose last line may be cut; opening it
again drops that line, and that evaluation is made again. Nothing else is ever rewritten, and nothing is derived
from it that the search would not derive again: resuming and replaying are the same search over what is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from sparkwright.base.config import Model
from sparkwright.search.model import Evaluation, Problem

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

FILE = "journal.jsonl"
_FORMAT = 1


class Begun(Model, frozen=True, tag="bisection", tag_field="kind"):
    """The first line: what is searched."""

    problem: Problem
    format: int = _FORMAT


class Evaluated(Model, frozen=True, tag="evaluation", tag_field="kind"):
    """One finished evaluation.

    Attributes:
        applied: ids as in `Step.applied`.
        attempt: the number of the repetition, from 1.
        evaluation: what the judge said.
    """

    applied: tuple[str, ...]
    attempt: int
    evaluation: Evaluation


class Stopped(Model, frozen=True, tag="stopped", tag_field="kind"):
    """A failure of the infrastructure, which counts as no verdict."""

    applied: tuple[str, ...]
    attempt: int
    error: str


Record = Begun | Evaluated | Stopped
Known = dict[tuple[tuple[str, ...], int], Evaluation]


@dataclass(frozen=True)
class Recorded:
    """The contents of a journal.

    Attributes:
        problem: its first line's.
        known: evaluations by candidate and attempt, in the order in which they ended.
        stopped: failures of the infrastructure, in order.
    """

    problem: Problem
    known: Known = field(default_factory=dict)
    stopped: tuple[Stopped, ...] = ()


class Journal:
    """A bisection's journal, open for writing; one process at a time."""

    def __init__(self, folder: Path, problem: Problem) -> None:
        """Open the journal in *folder*, or begin it with *problem*.

        Raises:
            BusyError: another bisection writes to it.
            ConfigError: it belongs to another problem, or is damaged.
            StorageError: the disk is full or cannot be written.
        """
        raise NotImplementedError

    def write(self, record: Record) -> None:
        """Append *record*; it is on the disk when this returns.

        Raises:
            StorageError: it could not be written; the journal is as it was before.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let others write."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return the journal itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def read_journal(folder: Path) -> Recorded:
    """Return everything that the journal in *folder* holds; a cut last line is left out.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    raise NotImplementedError
