"""The journal of a run: one JSON line for each thing seen, on the disk before the next is begun.

A line is written and synced as a whole. What a killed run leaves is therefore a journal whose last line may
be cut; opening it again drops that line, and its cell is measured again. Nothing else is ever rewritten.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import msgspec

from sparkwright.base.config import Model
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import BusyError, ConfigError, NewerFormatError, StorageError
from sparkwright.verify.model import BootFacts, Finding, Observation

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from sparkwright.verify.model import Cell

FILE = "journal.jsonl"
_FORMAT = 1


class Manifest(Model, frozen=True, tag="run", tag_field="kind"):
    """The subject of a run; a run is resumed with an equal manifest only.

    Attributes:
        format: of the journal.
        run: the run's name.
        created: when it began, ISO 8601 in UTC.
        server: what is served, and how: recipe, address, command, in words.
        identity: what decides the answers, by name: the wheel's SHA-256, the versions, the recipe's digest,
            the model. Part of every cell's key.
        options: what the user asked for, to plan the same cells again.
        client: the machine that sends, and versions.
    """

    run: str
    created: str
    server: str
    identity: dict[str, str]
    options: dict[str, Any]
    client: dict[str, str] = msgspec.field(default_factory=dict)
    format: int = _FORMAT


class BootRecord(Model, frozen=True, tag="boot", tag_field="kind"):
    """One start of a server.

    Attributes:
        arm: which server.
        boot: which start, as the checks count them.
        facts: what it said.
        restart: how often it had to be started again because it had ended by itself.
        log_seen: whether its log can be read.
    """

    arm: str
    boot: int
    facts: BootFacts
    restart: int = 0
    log_seen: bool = True


class Measured(Model, frozen=True, tag="cell", tag_field="kind"):
    """A cell that was measured."""

    id: str
    observation: Observation


class Concluded(Model, frozen=True, tag="findings", tag_field="kind"):
    """The conclusions; the last such line counts."""

    findings: tuple[Finding, ...]


class Noted(Model, frozen=True, tag="note", tag_field="kind"):
    """Anything else worth keeping, such as the client's own accuracy.

    Attributes:
        name: what it is.
        data: JSON-ready details.
    """

    name: str
    data: dict[str, Any]


Record = Manifest | BootRecord | Measured | Concluded | Noted


@dataclass(frozen=True)
class Contents:
    """The contents of a journal.

    Attributes:
        manifest: its first line.
        boots: the last start of each server, by arm and number.
        measured: observations by the id of their cell, in order.
        findings: what was concluded, if it came to that.
        notes: the last note of each name.
        restarts: how often servers had to be started again.
    """

    manifest: Manifest
    boots: dict[tuple[str, int], BootRecord] = field(default_factory=dict)
    measured: dict[str, Observation] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    restarts: int = 0


def cell_id(cell: Cell, identity: dict[str, str]) -> str:
    """The name under which a cell's result is kept: what is sent, and what answers."""
    return digest_of([cell.key, identity])[:16]


class Journal:
    """A run's journal, open for writing; one process at a time."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Open the journal in *folder*, or begin it with *manifest*.

        Raises:
            BusyError: another process writes to it.
            ConfigError: it belongs to a run of something else, or is none of ours.
            StorageError: the disk is full or cannot be written.
        """
        self.path = folder / FILE
        _require_regular(self.path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            self._lock()
            self._take_up(manifest)
        except BaseException:
            os.close(self._file)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                f"{self.path.parent} is being written by another run",
                because="its journal is locked",
                next_step="wait for that run, or choose another folder with --out",
            ) from error

    def _take_up(self, manifest: Manifest) -> None:
        whole = _whole_length(self.path)
        os.ftruncate(self._file, whole)
        os.lseek(self._file, 0, os.SEEK_END)
        if whole == 0:
            self.write(manifest)
        found = read_journal(self.path.parent).manifest
        if changed := _differences(found, manifest):
            raise ConfigError(
                f"{self.path.parent} holds a run of something else",
                because="; ".join(changed),
                next_step="begin a new run in another folder: results of both do not mix",
            )

    def write(self, record: Record) -> None:
        """Append *record*; it is on the disk when this returns.

        Raises:
            StorageError: it could not be written; the journal is as it was before.
        """
        end = os.lseek(self._file, 0, os.SEEK_END)
        left = memoryview(msgspec.json.encode(record) + b"\n")
        try:
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise _unwritable(self.path, error) from error

    def close(self) -> None:
        """Let others write."""
        os.close(self._file)

    def __enter__(self) -> Self:
        """The journal itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def read_journal(folder: Path) -> Contents:
    """Everything that the journal in *folder* holds; a cut last line is left out.

    Raises:
        ConfigError: there is none, or it is not one of ours.
    """
    path = folder / FILE
    _require_regular(path)
    try:
        lines = path.read_bytes()[: _whole_length(path)].splitlines()
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} is not the folder of a run", because=f"it has no {FILE}", next_step="name another one"
        ) from error
    decoder = msgspec.json.Decoder(Record)
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise _damaged(path, number, str(error)) from error
    if not records or not isinstance(records[0], Manifest):
        raise _damaged(path, 1, "a journal begins with what the run is about")
    if (found := records[0].format) > _FORMAT:
        raise NewerFormatError(
            f"{path} cannot be read",
            because=f"its format is {found}, and this sparkwright knows {_FORMAT}",
            next_step="go on with the sparkwright that began the run, or a newer one",
        )
    if found != _FORMAT:
        raise _damaged(path, 1, f"there is no format {found}")
    return _contents(records[0], records[1:])


def _require_regular(path: Path) -> None:
    """Do nothing if *path* is a file or nothing at all; a pipe would never be read to its end.

    Raises:
        ConfigError: it is something else.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(
            f"{path} is not the journal of a run",
            because=f"{path.name} is no regular file",
            next_step="name another folder",
        )


def _contents(manifest: Manifest, records: list[Record]) -> Contents:
    boots = [record for record in records if isinstance(record, BootRecord)]
    concluded = [record.findings for record in records if isinstance(record, Concluded)]
    return Contents(
        manifest,
        boots={(record.arm, record.boot): record for record in boots},
        measured={record.id: record.observation for record in records if isinstance(record, Measured)},
        findings=concluded[-1] if concluded else (),
        notes={record.name: record.data for record in records if isinstance(record, Noted)},
        restarts=sum(record.restart > 0 for record in boots),
    )


def _whole_length(path: Path) -> int:
    """Bytes up to and including the last whole line."""
    return path.read_bytes().rfind(b"\n") + 1


def _differences(found: Manifest, wanted: Manifest) -> list[str]:
    """In what two runs are not the same, in words."""
    named: list[tuple[str, Any, Any]] = [("server", found.server, wanted.server)]
    pairs = (("identity", found.identity, wanted.identity), ("options", found.options, wanted.options))
    for title, one, other in pairs:
        names = sorted({*one, *other})
        named += [(f"{title} {name}", one.get(name), other.get(name)) for name in names]
    return [f"its {name} is {one}, not {other}" for name, one, other in named if one != other]


def _damaged(path: Path, line: int, why: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read", because=f"line {line}: {why}", next_step="begin a new run in another folder"
    )


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path} could not be written",
        because=error.strerror or str(error),
        next_step="make room, then run the same command again: it goes on from here",
    )
