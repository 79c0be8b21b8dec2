"""The nights of a checkout, in a small SQLite file; each series has nights of its own.

A night is one row: its findings whole as JSON, a digest of what it looked at, and the heads of pull requests
that it saw. It is written in one transaction when it is complete, so a run that is killed leaves none.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import NewerFormatError, StorageError
from sparkwright.nightly.model import Mark, Night, Standing, TargetKind, TargetNight, standing_of

ReadT = TypeVar("ReadT")
SCHEMA = 3
_BUSY_MS = 30_000
_TABLES = """
CREATE TABLE nights (
    id INTEGER PRIMARY KEY, patchset TEXT NOT NULL, inputs TEXT NOT NULL, heads TEXT NOT NULL,
    night TEXT NOT NULL
);
CREATE INDEX nights_of ON nights (patchset, id);
"""
_OF_PATCHSET = "FROM nights WHERE patchset = ? ORDER BY id DESC"

Heads = dict[tuple[str, int], str]
"""Of pull requests, by repository and number."""


@dataclass(frozen=True)
class NightState:
    """An open state file; see `open_state`."""

    connection: sqlite3.Connection
    path: Path

    def nights(self, patchset: str) -> Iterator[Night]:
        """Yield the nights of *patchset*, newest first."""
        for (text,) in self.connection.execute(f"SELECT night {_OF_PATCHSET}", (patchset,)):
            yield self._read(text, Night)

    def last_target(self, patchset: str, kind: TargetKind) -> TargetNight | None:
        """Return the newest findings of *patchset* on a target of that *kind*."""
        found = (one for night in self.nights(patchset) for one in reversed(night.targets))
        return next((one for one in found if one.target.kind == kind), None)

    def last_inputs(self, patchset: str) -> str:
        """Return the digest of what the last night of *patchset* looked at; empty before the first."""
        row = self.connection.execute(f"SELECT inputs {_OF_PATCHSET}", (patchset,)).fetchone()
        return "" if row is None else str(row[0])

    def heads(self, patchset: str) -> Heads:
        """Return the heads of pull requests as *patchset* last saw them."""
        row = self.connection.execute(f"SELECT heads {_OF_PATCHSET}", (patchset,)).fetchone()
        listed = [] if row is None else self._read(row[0], list[tuple[str, int, str]])
        return {(repository, number): head for repository, number, head in listed}

    def next_id(self) -> str:
        """Return the name that the next night gets."""
        (number,) = self.connection.execute("SELECT coalesce(max(id), 0) + 1 FROM nights").fetchone()
        return str(number)

    def record(self, night: Night, *, inputs: str, heads: Heads) -> None:
        """Add *night*, with the digest of its *inputs* and the *heads* that it saw beside those of before."""
        known = {**self.heads(night.patchset), **heads}
        listed = [(repository, number, head) for (repository, number), head in known.items()]
        row = [night.id, night.patchset, inputs]
        row += [msgspec.json.encode(one).decode() for one in (listed, night)]
        with _explained(self.path), self.connection:
            self.connection.execute("INSERT INTO nights VALUES (?, ?, ?, ?, ?)", row)

    def _read(self, text: str, model: type[ReadT]) -> ReadT:
        try:
            return decode_json(text, model)
        except msgspec.MsgspecError as error:
            raise _damaged(self.path, str(error)) from error


@contextlib.contextmanager
def open_state(path: Path) -> Iterator[NightState]:
    """Open the state file at *path*, made when missing.

    Raises:
        NewerFormatError: another version of sparkwright wrote it.
        StorageError: it cannot be read or written, or is no such file.
    """
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=_BUSY_MS / 1000)
    with contextlib.closing(connection):
        with _explained(path):
            connection.execute("PRAGMA journal_mode = WAL")
            _prepare(connection, path)
        yield NightState(connection, path)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file; two runs that find it new take turns."""
    connection.execute("BEGIN IMMEDIATE")
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    if schema not in {0, SCHEMA}:
        raise NewerFormatError(
            f"{path} cannot be read",
            because=f"it has schema {schema}, and this sparkwright reads {SCHEMA}",
            next_step="name another file with --state, or move it away: the next night begins a new one",
        )
    if not schema:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
    connection.commit()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        f"the state file {path} cannot be used",
        because=why,
        next_step="move it away: the next night begins a new one, and counts days red from then on",
    )


def red_since(marks: Sequence[Mark], today: str) -> str:
    """Return the date on which the present red run of *marks*, oldest first and tonight's last, began.

    It is empty where the last one is not red; *today* where nothing before it is.
    """
    if not marks or standing_of(marks[-1].judgement) is not Standing.RED:
        return ""
    since = today
    for mark in reversed(marks):
        if standing_of(mark.judgement) is not Standing.RED:
            break
        since = mark.date
    return since


def holds(marks: Sequence[Mark], pin: str) -> str:
    """Return the label of the newest target in *marks* on which the carry was good, or the *pin*'s."""
    good = (mark.target for mark in reversed(marks) if standing_of(mark.judgement) is Standing.GOOD)
    return next(good, pin)
