"""A run of the suite: servers are started, cells are planned and measured, observations are judged.

Everything seen goes into the journal at once. A run that was stopped is gone on with: cells that the
journal holds are not measured again, and only servers that something is still to be asked of are started.
"""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import EndpointError, ServerError
from sparkwright.base.events import emit, task, warn
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import unanswered
from sparkwright.verify.client import canary, count_tokens, open_session
from sparkwright.verify.client.calibrate import Floor, calibrate
from sparkwright.verify.journal import BootRecord, Concluded, Journal, Measured, Noted, cell_id, read_journal
from sparkwright.verify.measure import measure
from sparkwright.verify.model import BootFacts, Finding, Observation, Verdict

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sparkwright.verify.check import Check
    from sparkwright.verify.corpus import Corpus
    from sparkwright.verify.journal import Manifest
    from sparkwright.verify.measure import MeasuredServer
    from sparkwright.verify.model import Cell
    from sparkwright.verify.profile import Profile

FLOOR = "floor"
"""Name of the journal's note on the client's own error."""

# A server that ends by itself is started again so often for what is still to be asked of it.
_MOST_RESTARTS = 2
# One that lives and answers nothing is, so often: what it costs to see that is deadlines of minutes.
_MOST_SILENCES = 1

# Of the document that servers are asked to count: so long that question and template weigh next to nothing.
_MEASURED_TOKENS = 16_000
_WITH_DOCUMENTS = "context"  # the check that sends some
# Words of English that a tokenizer makes a token of: those in use have 0.6 to 0.8. What lies beyond these is
# no count of tokens, and documents sized by it would be empty or endless.
_LEAST_WORDS, _MOST_WORDS = 0.2, 2.0


class Fleet(Protocol):
    """Whoever can bring servers up."""

    @property
    def arms(self) -> frozenset[str]:
        """The servers that it knows."""
        ...

    def start(self, arm: str, boot: int) -> contextlib.AbstractAsyncContextManager[MeasuredServer]:
        """One start of a server, ended with the block.

        Raises:
            ServerError: it does not come up, or (while it is asked for anything) ends by itself.
            EndpointError: what answers cannot be verified.
        """
        ...


@dataclass(frozen=True)
class Suite:
    """What a run is made of.

    Attributes:
        checks: what is to be found out, in order.
        profile: how much is measured.
        corpus: what is asked.
        fleet: brings servers up.
        band: key of the reference band that fits what is served, or empty.
    """

    checks: Sequence[Check]
    profile: Profile
    corpus: Corpus
    fleet: Fleet
    band: str = ""


async def run_suite(suite: Suite, folder: Path, manifest: Manifest) -> tuple[Finding, ...]:
    """Measure what the journal in *folder* lacks, judge, and write down the findings.

    Raises:
        BusyError: another process works on this run.
        ConfigError: the folder holds another run.
        ServerError: no server came up at all.
        EndpointError: what answers cannot be verified.
        StorageError: the disk is full or cannot be written.
    """
    with Journal(folder, manifest) as journal:
        run = _Run(suite, folder, journal)
        await run.measure_all()
        findings = tuple(map(_finite, run.judge()))
        journal.write(Concluded(findings=findings))
    return findings


class _Run:
    """One run, with what is known of it so far."""

    def __init__(self, suite: Suite, folder: Path, journal: Journal) -> None:
        contents = read_journal(folder)
        self.suite = suite
        self.journal = journal
        self.identity = contents.manifest.identity
        self.boots: dict[tuple[str, int], BootRecord] = dict(contents.boots)
        self.measured: dict[str, Observation] = dict(contents.measured)
        self.silent: set[str] = set()  # servers that answer no more and cannot be started again
        self.floors = msgspec.convert(contents.notes.get(FLOOR, {}).get("levels", []), list[Floor])

    @property
    def context(self) -> Context:
        """What checks may know."""
        facts = {place: boot.facts for place, boot in self.boots.items()}
        return Context(
            self.suite.profile,
            self.suite.corpus,
            facts,
            log_seen=all(boot.log_seen for boot in self.boots.values()),
            band=self.suite.band,
            floors={floor.concurrency: (floor.ttft_p99_ms, floor.tpot_p99_percent) for floor in self.floors},
        )

    def plan(self) -> list[Cell]:
        """All cells, those of the first start of the main server first; what two checks ask for is one."""
        asked = [cell for check in self.suite.checks for cell in check.plan(self.context)]
        cells = {cell.key: cell for cell in asked}.values()
        places = list(dict.fromkeys([("main", 0), *((cell.arm, cell.boot) for cell in cells)]))
        return sorted(cells, key=lambda cell: places.index((cell.arm, cell.boot)))

    def missing(self, arm: str, boot: int) -> list[Cell]:
        """The cells of one start of one server that are still to be measured."""
        return [
            cell
            for cell in self.plan()
            if (cell.arm, cell.boot) == (arm, boot) and cell_id(cell, self.identity) not in self.measured
        ]

    async def measure_all(self) -> None:
        """Bring up one server after another and measure what is missing on it.

        The first one always comes first: what it says of itself decides what is planned.
        """
        if self.suite.profile.speed == 1 and not self.floors:
            await self._calibrate()
        if ("main", 0) not in self.boots or self.missing("main", 0):
            await self._measure_on("main", 0)
        places = dict.fromkeys((cell.arm, cell.boot) for cell in self.plan())
        for arm, boot in places:
            reachable = arm in self.suite.fleet.arms and arm not in self.silent
            if (arm, boot) != ("main", 0) and reachable and self.missing(arm, boot):
                await self._measure_on(arm, boot)

    async def _calibrate(self) -> None:
        """See how far the client's own figures can be trusted, before any server needs the machine.

        A simulator with a faster clock is left out: its times mean nothing beyond itself.
        """
        with task("calibrate the client"):
            self.floors = list(await calibrate(self.suite.profile.levels))
        levels = [to_builtins(floor) for floor in self.floors]
        self.journal.write(Noted(name=FLOOR, data={"levels": levels}))

    async def _measure_on(self, arm: str, boot: int) -> None:
        """Measure what is missing on one server, which is started again where it ends or falls silent."""
        silences = 0
        for again in range(_MOST_RESTARTS + 1):
            try:
                async with self.suite.fleet.start(arm, boot) as server:
                    words = await self._words_per_token(arm, boot, server)
                    self._note_boot(arm, boot, server, again, words)
                    silences += not await self._measure_cells(server, self.missing(arm, boot))
            except ServerError as error:
                if ("main", 0) not in self.boots:
                    raise
                self._note_failure(arm, boot, error)
                return
            if not self.missing(arm, boot):
                return
            if silences and not server.restartable:
                self.silent.add(arm)
            if arm in self.silent or silences > _MOST_SILENCES:
                break
        left = len(self.missing(arm, boot))
        how = "no longer answers" if silences else f"ended by itself {_MOST_RESTARTS + 1} times"
        warn(f"{arm} {how}: {left} cells are left out")

    async def _measure_cells(self, server: MeasuredServer, cells: list[Cell]) -> bool:
        """Measure *cells* for as long as *server* lives and answers; whether it did not fall silent.

        A plain request may be lost by a server that is well, so it is put twice.
        """
        with task("measure", total=len(cells), unit="cells") as progress:
            for cell in cells:
                emit("verify.cell", check=cell.check, cell=cell.name, requests=cell.load.requests)
                observation = await measure(server, cell, self.suite.profile)
                identity = cell_id(cell, self.identity)
                self.journal.write(Measured(id=identity, observation=observation))
                self.measured[identity] = observation
                progress.advance()
                if server.died is not None:
                    return True
                if unanswered(observation.canary) and await self._is_silent(server):
                    return False
        return True

    async def _is_silent(self, server: MeasuredServer) -> bool:
        """Whether another plain request stays without an answer too."""
        profile = self.suite.profile
        async with open_session(server.endpoint) as session:
            why = await canary(session, server.endpoint, profile.deadlines, profile.speed)
        return unanswered(why) and server.died is None

    async def _words_per_token(self, arm: str, boot: int, server: MeasuredServer) -> float:
        """How many words of a document the server's tokenizer makes a token of; -1 where it does not say.

        It is asked at the main server's first start alone, and only for a check that sends documents: once
        cells are planned, what they send must not change.
        """
        if (arm, boot) in self.boots:
            return self.boots[arm, boot].facts.words_per_token
        profile = self.suite.profile
        if (arm, boot) != ("main", 0) or _WITH_DOCUMENTS not in profile.checks:
            return -1
        text = self.suite.corpus.document(_MEASURED_TOKENS, profile.seed, salt="size").text
        try:
            async with open_session(server.endpoint) as session:
                count = await count_tokens(session, server.endpoint, text, profile.deadlines, profile.speed)
        except EndpointError as error:
            warn(f"documents are sized by an estimate: {error}")
            return -1
        total = len(text.split())
        words = total / count
        if _LEAST_WORDS <= words <= _MOST_WORDS:
            return words
        warn(f"documents are sized by an estimate: the server counts {count} tokens in {total} words")
        return -1

    def _note_boot(self, arm: str, boot: int, server: MeasuredServer, restart: int, words: float) -> None:
        facts = msgspec.structs.replace(server.facts, words_per_token=words)
        record = BootRecord(arm=arm, boot=boot, facts=facts, restart=restart, log_seen=server.log_seen)
        self.journal.write(record)
        self.boots[arm, boot] = record

    def _note_failure(self, arm: str, boot: int, error: ServerError) -> None:
        warn(f"{arm} could not be started: {error}")
        self.journal.write(Noted(name=f"{arm}-{boot} did not start", data={"because": str(error)}))
        self.boots.setdefault((arm, boot), BootRecord(arm=arm, boot=boot, facts=BootFacts()))

    def judge(self) -> list[Finding]:
        """What each check makes of its own observations."""
        context = self.context
        seen = self._observations()
        findings: list[Finding] = []
        for check in self.suite.checks:
            own = [seen[cell.key] for cell in check.plan(context) if cell.key in seen]
            try:
                findings.extend(check.judge(context, own))
            except Exception as error:  # noqa: BLE001 - what the others conclude must not be lost
                findings.append(self._unjudged(check, own, error))
        return findings

    def _unjudged(self, check: Check, own: Sequence[Observation], error: Exception) -> Finding:
        """What is left to say of a check whose own code failed; the journal keeps where."""
        told = "".join(traceback.format_exception(error))
        self.journal.write(Noted(name=f"{check.name} failed", data={"traceback": told}))
        where = traceback.extract_tb(error.__traceback__)[-1]
        cause = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        warn(f"the check {check.name} itself failed: {cause}")
        return Finding(
            check=check.name,
            name="the check itself works",
            definition="What was seen can be judged without an error in this program.",
            verdict=Verdict.INVALID,
            cause=f"this program failed in judging what was seen: {cause}",
            threshold="any error here is one of sparkwright: please report it with the journal",
            evidence=tuple(observation.cell.key for observation in own),
        )

    def _observations(self) -> Mapping[str, Observation]:
        """Observations of the cells that are planned, by the cell's key."""
        found = ((cell.key, self.measured.get(cell_id(cell, self.identity))) for cell in self.plan())
        return {key: observation for key, observation in found if observation}


def _finite(finding: Finding) -> Finding:
    """*finding* with figures that JSON has no number for in words."""
    measured = {
        name: value if isinstance(value, str) or math.isfinite(value) else str(value)
        for name, value in finding.measured.items()
    }
    return msgspec.structs.replace(finding, measured=measured)
