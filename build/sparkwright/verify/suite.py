"""A run of a plan: servers are started, cells are planned and measured, observations are judged.

Every observation is written to the journal at once. A stopped run can be resumed: cells that the journal
holds are not measured again, and only servers with cells left to measure are started.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from sparkwright.base.errors import EndpointError, IncompatibleOptionsError, ServerError, SparkwrightError
from sparkwright.base.events import Task, emit, task, warn
from sparkwright.engine.cell import Cell
from sparkwright.engine.client.endpoint import open_session
from sparkwright.engine.client.request import canary, count_tokens
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.engine.server.failures import ServerFailedError
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check
from sparkwright.verify.checks.triage import unanswered
from sparkwright.verify.estimate import Remaining
from sparkwright.verify.journal import (
    BootRecord,
    Concluded,
    Contents,
    Journal,
    Manifest,
    Measured,
    Noted,
    cell_id,
    read_journal,
)
from sparkwright.verify.measure import measure
from sparkwright.verify.plan import Plan
from sparkwright.verify.servers import MeasuredServer

# Restarts of a server that ends by itself while cells are left to measure.
_MOST_RESTARTS = 2
# Restarts of one that runs and answers nothing: each costs deadlines of minutes.
_MOST_SILENCES = 1

# Length of the document whose tokens servers count: question and template are a negligible share of it.
_MEASURED_TOKENS = 16_000
_COUNTED = 6  # documents
_WITH_DOCUMENTS = {"context"}  # checks whose conclusions are by length
# English words per token: tokenizers in use have 0.6 to 0.8. Beyond these limits the count is of something
# else, and documents sized by it would be empty or endless.
_LEAST_WORDS, _MOST_WORDS = 0.2, 2.0


async def run_plan(plan: Plan, manifest: Manifest, folder: Path) -> tuple[Finding, ...]:
    """Measure what the journal in *folder* lacks, judge, and write down the findings.

    Raises:
        BusyError: another process works on this run.
        ConfigError: the folder holds another run.
        ServerError: no server came up at all.
        EndpointError: what answers cannot be verified.
        StorageError: the disk is full or cannot be written.
    """
    with Journal(folder, manifest) as journal:
        run = _PlanRun(plan, journal, read_journal(folder))
        await run.measure_all()
        findings = tuple(map(_finite, run.judge()))
        journal.write(Concluded(findings=findings))
    return findings


class _PlanRun:
    """A run in progress: its boots, observations and silent servers."""

    def __init__(self, plan: Plan, journal: Journal, contents: Contents) -> None:
        self.plan = plan
        self.sizes = plan.profile
        self.journal = journal
        self.identity = contents.manifest.identity
        self.boots: dict[tuple[str, int], BootRecord] = dict(contents.boots)
        self.measured: dict[str, Observation] = dict(contents.measured)
        self.silent: set[str] = set()  # arms that no longer answer and cannot be started again
        self.remaining = Remaining(plan.rates, self.sizes.speed)

    @property
    def context(self) -> Context:
        """The input of checks, from what is known so far."""
        facts = {place: boot.facts for place, boot in self.boots.items()}
        return replace(self.plan.context, facts=facts)

    def cells(self) -> list[Cell]:
        """Return all cells, those of the main server's first start first; equal ones of two checks once."""
        planned = [cell for check in self.plan.checks for cell in self._cells_of(check)]
        cells = {cell.key: cell for cell in planned}.values()
        places = list(dict.fromkeys([("main", 0), *((cell.arm, cell.boot) for cell in cells)]))
        return sorted(cells, key=lambda cell: places.index((cell.arm, cell.boot)))

    def _cells_of(self, check: Check) -> tuple[Cell, ...]:
        """Return the cells of *check*, with those that it adds to what is measured already."""
        context, cells = self.context, tuple[Cell, ...]()
        while True:
            seen = [self.measured.get(cell_id(cell, self.identity)) for cell in cells]
            observations = [observation for observation in seen if observation is not None]
            if len(observations) < len(cells):
                return cells
            more = check.cells(context, observations)
            if len(more) == len(cells):
                return cells
            cells = more

    def missing(self, arm: str, boot: int) -> list[Cell]:
        """Return the cells of one start of one server that are still to be measured."""
        return [
            cell
            for cell in self.cells()
            if (cell.arm, cell.boot) == (arm, boot) and cell_id(cell, self.identity) not in self.measured
        ]

    async def measure_all(self) -> None:
        """Bring up one server after another and measure what is missing on it.

        The first start of the main server comes first: its facts determine the plan.
        """
        if ("main", 0) not in self.boots or self.missing("main", 0):
            await self._measure_on("main", 0)
        tried = {("main", 0)}
        while untried := [
            (cell.arm, cell.boot)
            for cell in self.cells()
            if (cell.arm, cell.boot) not in tried
            and cell.arm in self.plan.arms
            and cell.arm not in self.silent
            and cell_id(cell, self.identity) not in self.measured
        ]:
            tried.add(untried[0])
            await self._measure_on(*untried[0])

    async def _measure_on(self, arm: str, boot: int) -> None:
        """Measure what is missing on one server, which is started again where it ends or falls silent."""
        silences = 0
        for again in range(_MOST_RESTARTS + 1):
            try:
                async with self.plan.arms[arm](boot) as server:
                    facts = await self._with_words(arm, boot, server)
                    record = BootRecord(arm, boot, facts, restart=again)
                    self.journal.write(record)
                    self.boots[arm, boot] = record
                    silences += not await self._measure_missing(arm, boot, server)
            except (ServerError, EndpointError, IncompatibleOptionsError) as error:
                if ("main", 0) not in self.boots:
                    raise
                warn(f"{arm} could not be started: {error}")
                if (arm, boot) not in self.boots:
                    self.boots[arm, boot] = BootRecord(arm, boot, BootFacts(refused=_reason(error)))
                    self.journal.write(self.boots[arm, boot])
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

    async def _measure_missing(self, arm: str, boot: int, server: MeasuredServer) -> bool:
        """Measure what is missing, check by check; return false if *server* fell silent.

        Cells that a check adds are measured directly after those that they follow from.
        """
        answers = True
        with task("measure", total=len(self.missing(arm, boot)), unit="cells") as progress:
            while answers and server.died is None and (cells := self.missing(arm, boot)):
                progress.total = progress.done + len(cells)
                of_check = [cell for cell in cells if cell.check == cells[0].check]
                answers = await self._measure_cells(server, of_check, progress)
        return answers

    async def _measure_cells(self, server: MeasuredServer, cells: list[Cell], progress: Task) -> bool:
        """Measure *cells* for as long as *server* runs and answers; return false if it fell silent.

        A healthy server may lose a plain request, so it is sent twice.
        """
        left = [cell for cell in self.cells() if cell_id(cell, self.identity) not in self.measured]
        for cell in cells:
            emit("verify.cell", check=cell.check, cell=cell.name, requests=cell.load.requests)
            begun = time.monotonic()
            observation = await measure(server, cell, self.sizes)
            self.remaining.took(cell, time.monotonic() - begun)
            identity = cell_id(cell, self.identity)
            self.journal.write(Measured(id=identity, observation=observation))
            self.measured[identity] = observation
            left = [other for other in left if other.key != cell.key]
            progress.advance(left=self.remaining.of(left))
            if server.died is not None:
                return True
            if unanswered(observation.canary):
                async with open_session(server.endpoint) as session:
                    why = await canary(session, server.endpoint, self.sizes.deadlines, self.sizes.speed)
                if unanswered(why) and server.died is None:
                    return False
        return True

    async def _with_words(self, arm: str, boot: int, server: MeasuredServer) -> BootFacts:
        """Return the facts of *server* with the words of a document per token of its tokenizer.

        Several documents are counted, so that a tokenizer that fails now and then is found; at the main
        server's first start alone, and only for a check that sends documents: once cells are planned, their
        prompts must not change.
        """
        if (arm, boot) in self.boots:
            known = self.boots[arm, boot].facts
            return msgspec.structs.replace(
                server.facts, words_per_token=known.words_per_token, uncounted=known.uncounted
            )
        profile = self.sizes
        if (arm, boot) != ("main", 0) or _WITH_DOCUMENTS.isdisjoint(profile.checks):
            return server.facts
        counts = []
        try:
            async with open_session(server.endpoint) as session:
                for number in range(_COUNTED):
                    salt = f"size {number}" if number else "size"
                    text = self.plan.context.corpus.document(_MEASURED_TOKENS, profile.seed, salt=salt).text
                    count = await count_tokens(
                        session, server.endpoint, text, profile.deadlines, profile.speed
                    )
                    counts.append((len(text.split()), count))
        except EndpointError as error:
            warn(f"documents are sized by an estimate: {error}")
            return msgspec.structs.replace(server.facts, uncounted=" ".join(str(error).split()))
        total, count = counts[0]
        words = total / count
        if _LEAST_WORDS <= words <= _MOST_WORDS:
            return msgspec.structs.replace(server.facts, words_per_token=words)
        warn(f"documents are sized by an estimate: the server counts {count} tokens in {total} words")
        return server.facts

    def judge(self) -> list[Finding]:
        """Return the findings of every check on its own observations."""
        context = self.context
        findings: list[Finding] = []
        for check in self.plan.checks:
            keys = [cell_id(cell, self.identity) for cell in self._cells_of(check)]
            own = [self.measured[key] for key in keys if key in self.measured]
            try:
                findings.extend(check.judge(context, own))
            except Exception as error:  # noqa: BLE001 - what the others conclude must not be lost
                findings.append(self._unjudged(check, own, error))
        return findings

    def _unjudged(self, check: Check, own: Sequence[Observation], error: Exception) -> Finding:
        """Return an invalid finding for a check whose own code failed; the journal keeps the traceback."""
        told = "".join(traceback.format_exception(error))
        self.journal.write(Noted(name=f"{check.name} failed", data={"traceback": told}))
        where = traceback.extract_tb(error.__traceback__)[-1]
        cause = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        warn(f"internal error in the check {check.name}: {cause}")
        return Finding(
            check=check.name,
            name="the check runs without an internal error",
            definition="The observations can be judged without an internal error.",
            verdict=Verdict.INVALID,
            cause=f"internal error while judging the observations: {cause}",
            threshold="none; an internal error is a defect of sparkwright: report it with the journal",
            evidence=tuple(observation.cell.key for observation in own),
        )


def _reason(error: SparkwrightError) -> str:
    """Return the cause of a failed start in one line."""
    told = error.cause.because if isinstance(error, ServerFailedError) else error.because
    return f"{error.what}: {' '.join(told.split())}"


def _finite(finding: Finding) -> Finding:
    """Return *finding* with infinities and NaN as strings, for which JSON has no numbers."""
    measured = {
        name: value if isinstance(value, str) or math.isfinite(value) else str(value)
        for name, value in finding.measured.items()
    }
    return msgspec.structs.replace(finding, measured=measured)
