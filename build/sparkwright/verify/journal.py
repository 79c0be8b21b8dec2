"""The journal of a run: one JSON line for each thing seen, on the disk before the next is begun.

A line is written and synced as a whole. What a killed run leaves is therefore a journal whose last line may
be cut; opening it again drops that line, and its cell is measured again. Nothing else is ever rewritten.
`Run` is what reports show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.config import Model, json_decoder
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError, NewerFormatError
from sparkwright.base.journal import JournalFile, read_lines
from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation

FILE = "journal.jsonl"
_FORMAT = 1


class Manifest(Model, frozen=True, tag="run", tag_field="kind"):
    """The subject of a run; a run is resumed with an equal manifest only.

    Attributes:
        run: the run's name.
        created: when it began, ISO 8601 in UTC.
        server: what is served, and how: recipe, address, command, in words.
        identity: what decides the answers, by name: the wheel's SHA-256, the versions, the recipe's digest,
            the model. Part of every cell's key.
        options: what the user asked for, to plan the same cells again.
        client: the machine that sends, and versions.
        lacks: reasons by the capability that the main server lacks and need not have.
    """

    run: str
    created: str
    server: str
    identity: dict[str, str]
    options: dict[str, Any]
    client: dict[str, str] = msgspec.field(default_factory=dict)
    lacks: dict[str, str] = msgspec.field(default_factory=dict)
    format: int = _FORMAT


class BootRecord(Model, frozen=True, tag="boot", tag_field="kind"):
    """One start of a server."""

    arm: str
    boot: int
    facts: BootFacts
    restart: int = 0


class Measured(Model, frozen=True, tag="cell", tag_field="kind"):
    """A cell that was measured."""

    id: str
    observation: Observation


class Concluded(Model, frozen=True, tag="findings", tag_field="kind"):
    """The conclusions; the last such line counts."""

    findings: tuple[Finding, ...]


class Noted(Model, frozen=True, tag="note", tag_field="kind"):
    """Something to read in the journal itself, such as the traceback of an error in a check."""

    name: str
    data: dict[str, Any]


Record = Manifest | BootRecord | Measured | Concluded | Noted


@dataclass(frozen=True)
class Contents:
    """The contents of a journal."""

    manifest: Manifest
    boots: dict[tuple[str, int], BootRecord] = field(default_factory=dict)
    measured: dict[str, Observation] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    restarts: int = 0


def cell_id(cell: Cell, identity: dict[str, str]) -> str:
    """Return the name under which a cell's result is kept: what is sent, and what answers."""
    return digest_of([cell.key, identity])[:16]


class Journal(JournalFile):
    """A run's journal, open for writing; one process at a time."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Open the journal in *folder*, or begin it with *manifest*.

        Raises:
            BusyError: another process writes to it.
            ConfigError: it belongs to a run of something else, or is no journal of a run.
            StorageError: the disk is full or cannot be written.
        """
        super().__init__(folder / FILE, subject="run")
        try:
            self._take_up(manifest)
        except BaseException:
            self.close()
            raise

    def _take_up(self, manifest: Manifest) -> None:
        if self.empty:
            self.write(manifest)
        found = read_journal(self.path.parent).manifest
        if changed := _differences(found, manifest):
            raise ConfigError(
                f"{self.path.parent} holds a run of something else",
                because="; ".join(changed),
                next_step="begin a new run in another folder: results of both do not mix",
            )

    def write(self, record: Record) -> None:
        """Append *record*; see `JournalFile.append`."""
        self.append(msgspec.json.encode(record))


def read_journal(folder: Path) -> Contents:
    """Return the content of the journal in *folder*; a cut last line is left out.

    Raises:
        ConfigError: there is none, or it is not one of ours.
    """
    path = folder / FILE
    lines = read_lines(path, subject="run")
    decoder = json_decoder(Record)
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
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


def _contents(manifest: Manifest, records: list[Record]) -> Contents:
    boots = [record for record in records if isinstance(record, BootRecord)]
    concluded = [record.findings for record in records if isinstance(record, Concluded)]
    return Contents(
        manifest,
        boots={(record.arm, record.boot): record for record in boots},
        measured={record.id: record.observation for record in records if isinstance(record, Measured)},
        findings=concluded[-1] if concluded else (),
        restarts=sum(record.restart > 0 for record in boots),
    )


def _differences(found: Manifest, wanted: Manifest) -> list[str]:
    """Return the differences of two runs, in words."""
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


# From bad to good: the first of these among several verdicts is that of all.
_ORDER = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.NOT_APPLICABLE)


def worst(findings: Sequence[Finding]) -> Verdict:
    """Return the worst verdict of *findings*, not applicable if all are; inconclusive if there are none."""
    found = {finding.verdict for finding in findings}
    return next((verdict for verdict in _ORDER if verdict in found), Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class RunCoverage:
    """The checks of a profile that came to a conclusion."""

    judged: tuple[str, ...]
    without: tuple[str, ...]
    applicable: int
    conclusions: int

    @property
    def whole(self) -> bool:
        """Tell if every conclusion of every check was applicable."""
        return not self.without and self.applicable == self.conclusions

    def __str__(self) -> str:
        shown = f"{len(self.judged)} of {len(self.judged) + len(self.without)} checks"
        left_out = self.conclusions - self.applicable
        shown += f", {self.applicable} of {self.conclusions} conclusions" if left_out else ""
        return shown + (f", without: {', '.join(self.without)}" if self.without else "")


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run.

    Attributes:
        manifest: description of the run; every key is optional. Reports show separately ``title``,
            ``profile``, ``started`` (ISO 8601, UTC), ``seconds``, ``speed`` (server's seconds in one of the
            client's), ``model``, ``url``, ``wheel`` (``{"name": …, "sha256": …}``), ``interrupted`` (the
            reason, if it is not complete), ``report`` (path of the HTML page) and ``files`` (paths relative
            to that page, by title), and ``checks`` (those of the profile).
            Other keys are listed as they are; it must hold no secrets.
        facts: facts of each start of a server, by arm and boot number.
        observations: every cell that was measured, in order.
        findings: by check, in order.
        lacks: reasons by the capability that the server lacks and need not have.
    """

    manifest: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[tuple[str, int], BootFacts] = field(default_factory=dict)
    observations: Sequence[Observation] = ()
    findings: Sequence[Finding] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Verdict of the run: that of its worst finding; inconclusive if none was applicable."""
        verdict = worst(self.findings)
        return Verdict.INCONCLUSIVE if verdict is Verdict.NOT_APPLICABLE else verdict

    @property
    def coverage(self) -> RunCoverage:
        """The part of the profile's checks that came to a conclusion."""
        applicable = [one for one in self.findings if one.verdict is not Verdict.NOT_APPLICABLE]
        judged = {finding.check for finding in applicable}
        planned = dict.fromkeys([*self.manifest.get("checks", ()), *self.by_check])
        return RunCoverage(
            judged=tuple(name for name in planned if name in judged),
            without=tuple(name for name in planned if name not in judged),
            applicable=len(applicable),
            conclusions=len(self.findings),
        )

    @property
    def speed(self) -> float:
        """Server's seconds in one of the client's."""
        return float(self.manifest.get("speed", 1.0))

    @property
    def by_check(self) -> dict[str, list[Finding]]:
        """Findings by check, in order."""
        grouped: dict[str, list[Finding]] = {}
        for finding in self.findings:
            grouped.setdefault(finding.check, []).append(finding)
        return grouped
