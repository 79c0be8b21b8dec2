"""The nights of a series in a checkout, a JSON file each, written when the night is complete.

A run that is killed leaves no file. One process at a time writes: the command holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkwright.base.config import Model, decode_json
from sparkwright.base.errors import StorageError
from sparkwright.nightly.model import Mark, Night, Standing, TargetKind, TargetNight, standing_of
from sparkwright.store import storing, write_atomically

Heads = dict[tuple[str, int], str]
"""Of pull requests, by repository and number."""


class RecordedNight(Model, frozen=True):
    """A night, the digest of what it looked at, and the heads of pull requests that it or one before saw."""

    inputs: str
    heads: tuple[tuple[str, int, str], ...]
    night: Night


@dataclass(frozen=True)
class NightState:
    """The nights in *folder*, which is made with the first one."""

    folder: Path

    def recorded(self) -> Iterator[RecordedNight]:
        """Yield what was recorded, newest first.

        Raises:
            StorageError: a file cannot be read, or is no night.
        """
        for path in sorted(self.folder.glob("*.json"), key=lambda path: int(path.stem), reverse=True):
            try:
                yield decode_json(path.read_bytes(), RecordedNight)
            except (OSError, msgspec.MsgspecError) as error:
                raise StorageError(
                    f"the night in {path} cannot be read",
                    because=str(error),
                    next_step=f"move {self.folder} away: the next night counts days red from then on",
                ) from error

    def nights(self) -> Iterator[Night]:
        """Yield the nights, newest first."""
        return (one.night for one in self.recorded())

    def last_target(self, kind: TargetKind) -> TargetNight | None:
        """Return the newest findings on a target of that *kind*."""
        found = (one for night in self.nights() for one in reversed(night.targets))
        return next((one for one in found if one.target.kind == kind), None)

    def last_inputs(self) -> str:
        """Return the digest of what the last night looked at; empty before the first."""
        return next((one.inputs for one in self.recorded()), "")

    def heads(self) -> Heads:
        """Return the heads of pull requests as they were last seen."""
        last = next(self.recorded(), None)
        listed = () if last is None else last.heads
        return {(repository, number): head for repository, number, head in listed}

    def next_id(self) -> str:
        """Return the name that the next night gets."""
        return str(max((int(path.stem) for path in self.folder.glob("*.json")), default=0) + 1)

    def record(self, night: Night, *, inputs: str, heads: Heads) -> None:
        """Add *night*, with the digest of its *inputs* and the *heads* that it saw beside those of before."""
        known = {**self.heads(), **heads}
        listed = tuple((repository, number, head) for (repository, number), head in known.items())
        made = RecordedNight(inputs=inputs, heads=listed, night=night)
        with storing(f"recording the night in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / f"{night.id}.json", msgspec.json.encode(made))


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
