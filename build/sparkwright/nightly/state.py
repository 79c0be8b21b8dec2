"""The nights of a checkout, in a small SQLite file: findings, red runs, and heads last seen.

One table holds the nights whole, as JSON; two others repeat what is looked up by carry and by pull request.
Each series has nights of its own. A night is written in one transaction when it is complete, so a run that is
killed leaves none.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import NewerFormatError, StorageError
from sparkwright.merge import OutcomeKind
from sparkwright.nightly.model import Judgement, Mark, Night, Standing, TargetKind, TargetNight, standing_of

SCHEMA = 2
_BUSY_MS = 30_000
_TABLES = """
CREATE TABLE nights (
    id INTEGER PRIMARY KEY, patchset TEXT NOT NULL, date TEXT NOT NULL, inputs TEXT NOT NULL,
    night TEXT NOT NULL
);
CREATE TABLE marks (
    night INTEGER NOT NULL REFERENCES nights (id), patchset TEXT NOT NULL, kind TEXT NOT NULL,
    date TEXT NOT NULL, target TEXT NOT NULL, carry TEXT NOT NULL, outcome TEXT NOT NULL,
    judgement TEXT NOT NULL, PRIMARY KEY (night, kind, target, carry)
);
CREATE INDEX marks_of ON marks (patchset, carry, kind, night);
"""
_PULLS = """
CREATE TABLE pulls (
    patchset TEXT NOT NULL, repository TEXT NOT NULL, number INTEGER NOT NULL, head TEXT NOT NULL,
    PRIMARY KEY (patchset, repository, number)
);
"""
# Schema 1 was written when one series, 0.24, had the one patchset, spark.
_FROM_1 = """
ALTER TABLE pulls RENAME TO old_pulls;
{pulls}
INSERT INTO pulls SELECT '0.24', repository, number, head FROM old_pulls;
DROP TABLE old_pulls;
UPDATE nights SET patchset = '0.24' WHERE patchset = 'spark';
UPDATE marks SET patchset = '0.24' WHERE patchset = 'spark';
""".replace("{pulls}", _PULLS)


@dataclass(frozen=True)
class NightState:
    """An open state file; see `open_state`."""

    connection: sqlite3.Connection
    path: Path

    def last_inputs(self, patchset: str) -> str:
        """Return the digest of what the last night of *patchset* looked at; empty before the first."""
        row = self.connection.execute(
            "SELECT inputs FROM nights WHERE patchset = ? ORDER BY id DESC LIMIT 1", (patchset,)
        ).fetchone()
        return "" if row is None else str(row[0])

    def nights(self, patchset: str, *, most: int = 1) -> tuple[Night, ...]:
        """Return the last nights of *patchset*, newest first."""
        rows = self.connection.execute(
            "SELECT night FROM nights WHERE patchset = ? ORDER BY id DESC LIMIT ?", (patchset, most)
        ).fetchall()
        return tuple(self._read(text) for (text,) in rows)

    def night(self, number: str) -> Night | None:
        """Return the night called *number*, if there is one."""
        row = self.connection.execute("SELECT night FROM nights WHERE id = ?", (number,)).fetchone()
        return None if row is None else self._read(row[0])

    def last_target(self, patchset: str, kind: TargetKind) -> TargetNight | None:
        """Return the newest findings of *patchset* on a target of that *kind*."""
        row = self.connection.execute(
            "SELECT nights.night FROM nights JOIN marks ON marks.night = nights.id"
            " WHERE nights.patchset = ? AND marks.kind = ? ORDER BY nights.id DESC LIMIT 1",
            (patchset, kind),
        ).fetchone()
        if row is None:
            return None
        found = [one for one in self._read(row[0]).targets if one.target.kind == kind]
        return found[-1] if found else None

    def history(self, patchset: str, kind: TargetKind, carry: str, *, most: int = 60) -> tuple[Mark, ...]:
        """Return the last marks of *carry* on targets of that *kind*, oldest first."""
        rows = self.connection.execute(
            "SELECT night, date, target, outcome, judgement FROM marks"
            " WHERE patchset = ? AND carry = ? AND kind = ? ORDER BY night DESC, rowid DESC LIMIT ?",
            (patchset, carry, kind, most),
        ).fetchall()
        return tuple(
            Mark(
                night=str(night),
                date=date,
                target=target,
                outcome=OutcomeKind(outcome),
                judgement=Judgement(judgement),
            )
            for night, date, target, outcome, judgement in reversed(rows)
        )

    def next_id(self) -> str:
        """Return the name that the next night gets."""
        (number,) = self.connection.execute("SELECT coalesce(max(id), 0) + 1 FROM nights").fetchone()
        return str(number)

    def heads(self, patchset: str) -> dict[tuple[str, int], str]:
        """Return the heads of pull requests as *patchset* last saw them, by repository and number."""
        query = "SELECT repository, number, head FROM pulls WHERE patchset = ?"
        rows = self.connection.execute(query, (patchset,)).fetchall()
        return {(repository, number): head for repository, number, head in rows}

    def record(self, night: Night, *, inputs: str, heads: dict[tuple[str, int], str]) -> None:
        """Add *night*, with the digest of its *inputs* and the *heads* that it saw."""
        marks = [
            (
                night.id,
                night.patchset,
                one.target.kind,
                night.date,
                one.target.label,
                carry.name,
                str(carry.outcome),
                str(carry.judgement),
            )
            for one in night.targets
            for carry in one.carries
        ]
        with _explained(self.path), self.connection:
            self.connection.execute(
                "INSERT INTO nights VALUES (?, ?, ?, ?, ?)",
                (night.id, night.patchset, night.date, inputs, msgspec.json.encode(night).decode()),
            )
            self.connection.executemany("INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", marks)
            self.connection.executemany(
                "INSERT OR REPLACE INTO pulls VALUES (?, ?, ?, ?)",
                [(night.patchset, repository, number, head) for (repository, number), head in heads.items()],
            )

    def _read(self, text: str) -> Night:
        try:
            return decode_json(text, Night)
        except msgspec.MsgspecError as error:
            raise _damaged(self.path, str(error)) from error


@contextlib.contextmanager
def open_state(path: Path) -> Iterator[NightState]:
    """Open the state file at *path*, made when missing.

    Raises:
        NewerFormatError: a newer sparkwright wrote it.
        StorageError: it cannot be read or written, or is no such file.
    """
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=_BUSY_MS / 1000)
    with contextlib.closing(connection):
        with _explained(path):
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
            _prepare(connection, path)
        yield NightState(connection, path)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file; two runs that find it new take turns."""
    connection.execute("BEGIN IMMEDIATE")
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    if schema > SCHEMA:
        raise NewerFormatError(
            f"{path} cannot be read",
            because=f"it has schema {schema}, and this sparkwright reads up to {SCHEMA}",
            next_step="update sparkwright, or name another file with --state",
        )
    if schema < SCHEMA:
        for statement in (_FROM_1 if schema else _TABLES + _PULLS).split(";"):
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
