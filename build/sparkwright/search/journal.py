"""The journal of a bisection: one JSON line for each evaluation, on the disk before the next is begun.

A line is written and synced as a whole. A killed search leaves a journal whose last line may be cut; opening
it again drops that line, and that evaluation is made again. Nothing else is ever rewritten. No conclusion is
kept: resuming and replaying are the same search over what is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkwright.base.config import Model, json_decoder
from sparkwright.base.errors import ConfigError
from sparkwright.base.journal import JournalFile, read_lines
from sparkwright.search.model import Evaluation, SearchProblem

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


class SearchJournal(JournalFile):
    """A bisection's journal, open for writing; one process at a time."""

    def __init__(self, folder: Path, problem: SearchProblem) -> None:
        """Open the journal in *folder*, or begin it with *problem*.

        Raises:
            BusyError: another bisection writes to it.
            ConfigError: it belongs to another problem, or is damaged.
            StorageError: the disk is full or cannot be written.
        """
        super().__init__(folder / FILE, subject="bisection")
        try:
            self.recorded = self._take_up(problem)
        except BaseException:
            self.close()
            raise

    def _take_up(self, problem: SearchProblem) -> Recorded:
        if self.empty:
            self.write(Begun(problem=problem))
        recorded = read_journal(self.path.parent)
        if recorded.problem != problem:
            raise ConfigError(
                f"{self.path.parent} holds another bisection",
                because=f"it searches from {recorded.problem.start} on, or has other options",
                next_step="use another folder, or give the same specs, judge and options",
            )
        return recorded

    def write(self, record: Record) -> None:
        """Append *record*; see `JournalFile.append`."""
        self.append(msgspec.json.encode(record))


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
        except msgspec.MsgspecError as error:
            raise _damaged(path, number, str(error)) from error
    if not records or not isinstance(records[0], Begun):
        raise _damaged(path, 1, "it does not say what is searched")
    evaluated = (record for record in records if isinstance(record, Evaluated))
    return Recorded(records[0].problem, {(one.applied, one.attempt): one.evaluation for one in evaluated})


def _damaged(path: Path, line: int, why: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read", because=f"line {line}: {why}", next_step="begin again in another folder"
    )
