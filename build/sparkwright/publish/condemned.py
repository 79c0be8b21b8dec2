"""The list of what will be removed from a target, by which those who prune and those who publish agree.

A *unit* is the folder of a wheel or of a generation. Removing one takes two steps: a unit that no kept
generation of any channel names is *condemned*, by a line in one file of the target, the list. After a period
of grace its line is marked *removing*, the pointers are read again, and then its files go. Each change of the
list is a conditional write, so of a pruner and a publisher one is first, and the other sees it:

* A publisher puts its files, and settles with the list right before it moves a pointer: it takes the lines of
  its units out, waits for removals that are under way, and puts again what is or was listed.
* A pruner removes only what it marked, and a mark is refused if the list was changed since it was read.
* A unit that is condemned after a publisher has settled is not removed within the period of grace, and after
  that a pointer names it. A publisher that took longer puts its files again, before and after the pointer.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from sparkwright.base.config import Model, convert, to_builtins
from sparkwright.base.digests import sha256_bytes, to_json
from sparkwright.base.errors import LostRaceError, NewerFormatError, PublishError
from sparkwright.base.events import emit
from sparkwright.publish.target import Target

CONDEMNED = "prune/condemned.json"
LEAST_GRACE_S = 3600.0
"""The shortest period of grace, in seconds; a publisher that took half of it puts its files again."""
_FORMAT = 1
_UNIT = re.compile(r"(wheels/[0-9a-f]{2}/[0-9a-f]{64}|channels/[a-z0-9-]+/[1-9][0-9]*-[0-9a-f]{12})/.")
_POLL_S = 0.5


class CondemnedUnit(Model, frozen=True):
    """A unit that no kept generation names.

    Attributes:
        since: when that was found, in UTC.
        why: the reason, for people.
        removing: when its removal began, in UTC; empty before.
        by: the pruner that removes it; empty before.
    """

    since: str
    why: str
    removing: str = ""
    by: str = ""


class CondemnedList(Model, frozen=True):
    """All condemned units of a target, by their folder."""

    format: Literal[1] = 1
    units: dict[str, CondemnedUnit] = msgspec.field(default_factory=dict)


def unit_of(path: str) -> str:
    """Return the unit that the file at *path* belongs to; empty for files that are never removed."""
    found = _UNIT.match(path)
    return found[1] if found else ""


def read_condemned(target: Target) -> tuple[dict[str, CondemnedUnit], str | None]:
    """Return the condemned units at *target* by folder, and the list's tag; `None` if there is no list yet.

    Raises:
        NewerFormatError: a newer sparkwright wrote the list.
        PublishError: it is damaged.
        UploadError: the target cannot be read.
    """
    stored = target.read(CONDEMNED)
    if stored is None:
        return {}, None
    try:
        value = msgspec.json.decode(stored.data)
        if isinstance(value, dict) and isinstance(value.get("format"), int) and value["format"] > _FORMAT:
            raise NewerFormatError(
                f"{target.url(CONDEMNED)} cannot be read",
                because=f"it has format {value['format']}, and this sparkwright reads up to {_FORMAT}",
                next_step="update sparkwright",
            )
        return convert(value, CondemnedList).units, stored.tag
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PublishError(
            f"{target.url(CONDEMNED)} cannot be read",
            because=str(error),
            next_step="if no prune is running, remove that file: the next prune writes it again",
        ) from error


def write_condemned(target: Target, units: dict[str, CondemnedUnit], tag: str | None) -> None:
    """Replace the list at *target*, which was read with *tag*.

    Raises:
        LostRaceError: another one changed it meanwhile.
    """
    target.replace(CONDEMNED, to_json(to_builtins(CondemnedList(units=units))) + b"\n", expected=tag)


@dataclass(frozen=True)
class _Deposit:
    """A file that was put: its digest, and its content or where that is."""

    sha256: str
    content: bytes | Path


@dataclass
class Deposits:
    """The files that one change of a channel puts at a target, and relies on.

    Attributes:
        patience_s: longest wait for removals that are under way, in seconds.
    """

    target: Target
    patience_s: float
    _made: dict[str, _Deposit] = field(default_factory=dict)
    _before: frozenset[str] | None = None
    _at: float = 0.0

    def put(self, path: str, content: bytes | Path, sha256: str = "") -> None:
        """Put *content*, bytes or a file of that digest, at *path*, where it never changes; see `Target`."""
        if self._before is None:
            # What is listed before the first look at a file may be gone after it.
            self._at = time.time()
            self._before = frozenset(read_condemned(self.target)[0])
        digest = sha256 or (sha256_bytes(content) if isinstance(content, bytes) else "")
        made = self._made[path] = _Deposit(digest, content)
        self._put(path, made)

    def settle(self) -> None:
        """Make sure that all files are there, and are not about to be removed.

        Raises:
            LostRaceError: a removal is under way, and did not end in time.
        """
        listed = self._lift()
        doubtful = listed | (self._before or frozenset())
        self._put_again(path for path in self._made if self._is_late or unit_of(path) in doubtful)
        self._before, self._at = frozenset(), time.time()

    def confirm(self) -> None:
        """Put everything again where the time since `settle` was long enough for a removal."""
        if self._is_late:
            self.settle()

    @property
    def _is_late(self) -> bool:
        # The clock of the day counts while a machine sleeps; the monotonic one does not.
        return abs(time.time() - self._at) > LEAST_GRACE_S / 2

    def _lift(self) -> frozenset[str]:
        """Take the units of all files out of the list; return those that were in it."""
        mine, met = {unit_of(path) for path in self._made}, set[str]()
        end = time.monotonic() + self.patience_s
        while True:
            units, tag = read_condemned(self.target)
            found = mine & units.keys()
            met |= found
            if not found:
                return frozenset(met)
            removing = sorted(unit for unit in found if units[unit].removing)
            if time.monotonic() > end:
                raise _being_removed(removing, units)
            if removing:
                time.sleep(_POLL_S)
                continue
            try:
                write_condemned(self.target, {k: v for k, v in units.items() if k not in found}, tag)
            except LostRaceError:
                continue
            emit("publish.lifted", units=sorted(found))

    def _put_again(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._put(path, self._made[path])

    def _put(self, path: str, made: _Deposit) -> None:
        if isinstance(made.content, Path):
            self.target.put_file(path, made.content, made.sha256)
            return
        with tempfile.TemporaryDirectory(prefix="sparkwright-") as folder:
            file = Path(folder) / "file"
            file.write_bytes(made.content)
            self.target.put_file(path, file, made.sha256)


def _being_removed(removing: list[str], units: dict[str, CondemnedUnit]) -> LostRaceError:
    if not removing:
        return LostRaceError(
            "the channel was not changed",
            because=f"others kept changing {CONDEMNED}",
            next_step="run the same command again",
        )
    one = units[removing[0]]
    return LostRaceError(
        "the channel was not changed",
        because=f"{removing[0]} is being removed by a prune of {one.by}, since {one.removing}",
        next_step="run the same command again once that has ended; if it was interrupted, "
        "'sparkwright channel prune' completes it",
    )
