"""The search: servers are started one at a time, measured, and left out by `strategy`, until it is decided.

Every cell and every refusal is in the journal at once. A stopped search continues with the cell that it was
stopped in; nothing else is measured again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.base.errors import EndpointError, IncompatibleOptionsError, ServerError, SparkwrightError
from sparkwright.base.events import emit, task
from sparkwright.engine.cell import Cell
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.engine.server import ServerFailedError
from sparkwright.engine.servers import MeasuredServer
from sparkwright.verify.capacity.slo import parse_slo
from sparkwright.verify.check import Context
from sparkwright.verify.corpus import Corpus
from sparkwright.verify.journal import (
    BootRecord,
    Contents,
    Journal,
    Manifest,
    Measured,
    Noted,
    cell_id,
    read_journal,
)
from sparkwright.verify.measure import measure
from sparkwright.verify.tune import quality
from sparkwright.verify.tune.figures import speed_cells, start_figures, trouble_of
from sparkwright.verify.tune.options import TuneOptions
from sparkwright.verify.tune.space import Configuration, Space
from sparkwright.verify.tune.strategy import Planned, Rules, StartFigures, Trial, next_start

_LONGEST = 300  # characters of a line of a log
REFUSED, ASKED = "refused", "asked before any start"


@dataclass(frozen=True)
class Search:
    """The parts of a search.

    Attributes:
        space: all configurations.
        start: returns one start of a configuration, given the name of its folder.
        made_up: whether the model's weights are made up.
        refused: asked once, before the first start: reasons by the key of a configuration that should not be
            started.
    """

    options: TuneOptions
    space: Space
    corpus: Corpus
    start: Callable[[Configuration, str], AbstractAsyncContextManager[MeasuredServer]]
    made_up: bool = False
    refused: Callable[[], Mapping[str, str]] | None = None


def rules_of(search: Search) -> Rules:
    """Return the rules of *search*: those of its options, without quality where weights are made up."""
    options = search.options
    return Rules(
        strategy=options.strategy,
        starts=options.starts,
        most_starts=max(options.starts, options.most_starts),
        within=options.within,
        spread=options.spread,
        limits=parse_slo(options.slo).limits if options.slo else {},
        reserve_mib=options.reserve_gib * 1024,
        quality=options.quality and not search.made_up,
    )


def pairs_of(space: Space) -> dict[int, int]:
    """Return the configuration without speculation, for each that speculates and has one."""
    found = {i: space.without_drafts(i) for i, one in enumerate(space.configurations) if one.drafts}
    return {index: plain for index, plain in found.items() if plain is not None}


@dataclass
class Known:
    """Trials of a search, read from its journal.

    Attributes:
        identity: of the journal's cells.
        measured: observations by the id of their cell.
        refused: reasons by the key of a configuration.
        facts: of each start, by key and number.
    """

    search: Search
    identity: dict[str, str]
    measured: dict[str, Observation] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    facts: dict[tuple[str, int], BootFacts] = field(default_factory=dict)
    _cells: dict[tuple[str, int], tuple[Cell, ...]] = field(default_factory=dict)
    _figures: dict[tuple[str, int], StartFigures] = field(default_factory=dict)

    @classmethod
    def of(cls, search: Search, contents: Contents) -> Known:
        """Return what the journal's *contents* hold."""
        refused = {
            name.removeprefix(f"{REFUSED} "): str(data["because"])
            for name, data in contents.notes.items()
            if name.startswith(f"{REFUSED} ")
        }
        facts = {place: boot.facts for place, boot in contents.boots.items()}
        return cls(search, contents.manifest.identity, dict(contents.measured), refused, facts)

    @property
    def context(self) -> Context:
        """The input of checks."""
        search = self.search
        return Context(search.options.profile, search.corpus, {}, made_up=search.made_up)

    def cells(self, key: str, number: int) -> tuple[Cell, ...]:
        """Return the cells of one start of the configuration *key*."""
        if (key, number) not in self._cells:
            plan = quality.quality_cells(self.context, key) if number == quality.NUMBER else None
            self._cells[key, number] = plan or speed_cells(self.context, key, number)
        return self._cells[key, number]

    def seen(self, cells: Sequence[Cell]) -> list[Observation]:
        """Return the observations of *cells* that there are."""
        found = (self.measured.get(cell_id(cell, self.identity)) for cell in cells)
        return [observation for observation in found if observation is not None]

    def trials(self) -> list[Trial]:
        """Return what is known of every configuration."""
        judged = self.qualities()
        return [self._trial(one, judged) for one in self.search.space.configurations]

    def _trial(self, configuration: Configuration, judged: Mapping[str, quality.JudgedQuality]) -> Trial:
        key, starts = configuration.key, list[StartFigures]()
        refused = self.refused.get(key, "")
        options, speed = self.search.options, self.search.options.profile.speed
        while not refused:
            cells = self.cells(key, len(starts))
            seen = self.seen(cells)
            refused = next((why for why in map(trouble_of, seen) if why), "")
            if refused or len(seen) < len(cells):
                break
            place = key, len(starts)
            if place not in self._figures:
                self._figures[place] = start_figures(seen, options, speed)
            starts.append(self._figures[place])
        found = judged.get(key)
        return Trial(tuple(starts), refused, found.worse if found is not None else None)

    def qualities(self) -> dict[str, quality.JudgedQuality]:
        """Return the quality of every configuration that was asked, by key."""
        context, found = self.context, {}
        own: list[Observation] = []
        for index, configuration in enumerate(self.search.space.configurations):
            cells = self.cells(configuration.key, quality.NUMBER)
            seen = self.seen(cells)
            if seen and (len(seen) == len(cells) or any(map(trouble_of, seen))):
                found[configuration.key] = quality.judge(context, configuration, seen, own)
            if index == 0:
                own = seen
        return found


async def run_search(search: Search, folder: Path, manifest: Manifest) -> Known:
    """Measure until everything is decided; return what is known.

    Raises:
        BusyError: another process works on this search.
        ConfigError: the folder holds another run.
        StorageError: the disk is full or cannot be written.
    """
    with Journal(folder, manifest) as journal:
        known = Known.of(search, read_journal(folder))
        if search.refused is not None and ASKED not in read_journal(folder).notes:
            _note_refused(known, journal, search.refused())
        rules, pairs = rules_of(search), pairs_of(search.space)
        while (planned := next_start(known.trials(), rules, pairs=pairs)) is not None:
            await _Start(search, known, journal, planned).make()
    return known


def _note_refused(known: Known, journal: Journal, refused: Mapping[str, str]) -> None:
    """Write down the configurations that are not started."""
    for key, because in refused.items():
        journal.write(Noted(name=f"{REFUSED} {key}", data={"because": because}))
        known.refused[key] = because
    journal.write(Noted(name=ASKED, data={"refused": len(refused)}))


@dataclass
class _Start:
    """One start of a configuration, and its cells."""

    search: Search
    known: Known
    journal: Journal
    planned: Planned

    async def make(self) -> None:
        """Start the server and measure what is missing; a refusal is written down."""
        configuration = self.search.space.configurations[self.planned.index]
        number = quality.NUMBER if self.planned.quality else self.planned.number
        kind = quality.QUALITY if self.planned.quality else f"start {number}"
        place = f"{configuration.key}-{quality.QUALITY if self.planned.quality else number}"
        emit("verify.tune", configuration=configuration.name, start=kind)
        try:
            with task(f"{configuration.name}: {kind}"):
                async with self.search.start(configuration, place) as server:
                    self._note_boot(configuration.key, number, server)
                    await self._measure(server, configuration.key)
        except (ServerError, EndpointError, IncompatibleOptionsError) as error:
            self._refuse(configuration, kind, error)

    def _note_boot(self, key: str, number: int, server: MeasuredServer) -> None:
        self.journal.write(BootRecord(arm=key, boot=number, facts=server.facts, log_seen=server.log_seen))
        self.known.facts[key, number] = server.facts

    async def _measure(self, server: MeasuredServer, key: str) -> None:
        context = self.known.context
        cells = self.known.cells(key, quality.NUMBER if self.planned.quality else self.planned.number)
        for cell in cells:
            identity = cell_id(cell, self.known.identity)
            if identity in self.known.measured:
                continue
            emit("verify.cell", check=cell.check, cell=cell.name, requests=cell.load.requests)
            observation = await measure(server, cell, context.profile)
            self.journal.write(Measured(id=identity, observation=observation))
            self.known.measured[identity] = observation
            if trouble_of(observation):
                return  # the configuration is out, and the server may be dead

    def _refuse(
        self,
        configuration: Configuration,
        kind: str,
        error: ServerError | EndpointError | IncompatibleOptionsError,
    ) -> None:
        """Write down why a configuration cannot be started; it is not started again."""
        because = f"{error.what}: {_reason(error)}"
        because = because if kind == "start 0" else f"{kind}: {because}"
        self.journal.write(Noted(name=f"{REFUSED} {configuration.key}", data={"because": because}))
        self.known.refused[configuration.key] = because
        emit("verify.refused", configuration=configuration.name, because=because)


def _reason(error: SparkwrightError) -> str:
    """Return the cause of a failed start, with the line of the log that shows it."""
    if not isinstance(error, ServerFailedError):
        return " ".join(error.because.split())
    cause, lines = error.cause, error.log_excerpt.splitlines()
    shown = [line for line in lines if cause.sign and re.search(cause.sign, line, re.IGNORECASE)]
    told = " ".join(cause.because.split())
    return told if not shown or "(" in told else f"{told} ({' '.join(shown[-1].split())[:_LONGEST]})"
