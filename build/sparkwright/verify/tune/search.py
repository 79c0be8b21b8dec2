"""The search: servers are started one at a time, measured, and left out by `strategy`, until it is decided.

Every cell and every refusal is in the journal at once. A stopped search continues with the cell that it was
stopped in; nothing else is measured again.

Quality is that of a configuration's answers against those of the recipe as it is, by the checks that exist:
known facts, broken text, tasks with one right answer, and greedy answers with log-probabilities. Greedy
answers may differ where the settings change the arithmetic on purpose, such as the type of the KV cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sparkwright.base.errors import EndpointError, IncompatibleOptionsError, ServerError, SparkwrightError
from sparkwright.base.events import emit, task
from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.engine.server import ServerFailedError
from sparkwright.engine.servers import MeasuredServer
from sparkwright.verify.capacity.slo import parse_slo, times_of
from sparkwright.verify.check import Context
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.figures import figures
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.checks.triage import troubles
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
from sparkwright.verify.statistics import percentile
from sparkwright.verify.tune.options import GOODPUT, TuneOptions
from sparkwright.verify.tune.space import Configuration, Space
from sparkwright.verify.tune.strategy import Planned, Rules, StartFigures, Trial, next_start
from sparkwright.verify.upgrade.pairs import MatchedCells
from sparkwright.verify.upgrade.quality import judge_quality

CHECK = "tune"
KIND = "kind"
SPEED = "speed"
STAGGER_S = 0.02
_LEAST_RATE = 1e-3  # tokens a second, where no request kept the objective


def speed_cells(context: Context, arm: str, number: int) -> tuple[Cell, ...]:
    """Return the cells of one start: the same prompts for each configuration and each start."""
    sizes = context.profile
    cells = []
    for level in sizes.levels:
        requests = max(sizes.least_requests, sizes.requests_per_client * level)
        load = Load(
            concurrency=level,
            requests=requests,
            warm_up=level,
            max_tokens=sizes.max_tokens,
            stagger_s=STAGGER_S,
            seed=sizes.seed,
        )
        prompts = context.prompts_in_turn(requests, f"tune c={level}")
        tags = {KIND: SPEED, "level": str(level)}
        name = f"c={level}"
        cells.append(
            Cell(check=CHECK, name=name, load=load, prompts=prompts, arm=arm, boot=number, tags=tags)
        )
    return tuple(cells)


def trouble_of(observation: Observation, *, metered: bool = True) -> str:
    """Return the reason for which a cell does not count; empty if it does."""
    found = troubles(observation, metered=metered)
    return found[0].cause if found else ""


def start_figures(seen: Sequence[Observation], options: TuneOptions, speed: float) -> StartFigures:
    """Return the figures of one start from its cells, in order of the levels.

    Args:
        seen: observations that count, one of each level.
        options: of the search.
        speed: server's seconds in one of the client's.
    """
    rates = tuple(_rate(one, options, speed) for one in seen)
    score = math.fsum(w * math.log(rate) for w, rate in zip(options.weighted, rates, strict=True))
    times: dict[str, tuple[float, ...]] = {}
    if options.slo:
        slo = parse_slo(options.slo)
        times = {name: tuple(_time(one, name, slo.share, speed) for one in seen) for name in slo.limits}
    memory = [s.memory_available_mib for one in seen for s in one.host if s.memory_available_mib >= 0]
    # A simulator's steps last as long on a machine that swaps.
    slowed = [] if options.simulator else [words for one in seen for words in disturbances(one)]
    return StartFigures(score, rates, times, min(memory, default=-1), slowed[0] if slowed else "")


def _rate(observation: Observation, options: TuneOptions, speed: float) -> float:
    """Return tokens a second of the objective, in the server's time."""
    found = figures(observation, speed)
    if options.objective != GOODPUT:
        return found.steady_tok_s if math.isfinite(found.steady_tok_s) else found.whole_tok_s
    slo = parse_slo(options.slo)
    good = sum(s.output_tokens for s in observation.counted if slo.met_by(s, speed))
    total = sum(s.output_tokens for s in observation.counted)
    return max(_LEAST_RATE, found.whole_tok_s * good / total) if total else _LEAST_RATE


def _time(observation: Observation, name: str, share: float, speed: float) -> float:
    """Return a percentile of a time in seconds."""
    found = [times_of(sample, speed)[name] for sample in observation.counted]
    known = [value for value in found if math.isfinite(value) and value > 0]
    return percentile(known, 100 * share) if known else math.inf


QUALITY = "quality"
NUMBER = 100
"""Number of the start at which quality is measured, so that its cells differ from those of speed."""
_ANSWERS = "greedy answers are the same up to near ties"
# Settings that leave the arithmetic of the target model as it is.
_SAME_ARITHMETIC = {
    "method",
    "num-speculative-tokens",
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-model-len",
    "gpu-memory-utilization",
    "enable-prefix-caching",
    "async-scheduling",
}
_BAD = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class JudgedQuality:
    """The outcome of the checks of quality.

    Attributes:
        worse: reason for which answers are worse, or could not be judged; empty if they are as good.
        remarks: what differs and is allowed to.
    """

    worse: str
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...] = ()


def quality_cells(context: Context, arm: str) -> tuple[Cell, ...]:
    """Return the cells of quality of the configuration *arm*."""
    return tuple(
        msgspec.structs.replace(cell, arm=arm, boot=NUMBER, tags={**cell.tags, KIND: QUALITY})
        for cell in _planned(context)
    )


def _planned(context: Context) -> list[Cell]:
    cells = [*ALL["coherence"].cells(context), *ALL["lossless"].cells(context)]
    return [cell for cell in cells if cell.arm == "main"]


def judge_answers(
    context: Context,
    configuration: Configuration,
    seen: Sequence[Observation],
    own: Sequence[Observation],
) -> JudgedQuality:
    """Return the quality of *configuration*."""
    planned = {(cell.check, cell.name): cell for cell in _planned(context)}
    after, before = (_as_main(planned, these) for these in (seen, own))
    findings: list[Finding] = list(ALL["coherence"].judge(context, list(after.values())))
    keys = tuple(key for key in after if key in before)
    if keys:
        findings += judge_quality(MatchedCells((before,), (after,), keys, 0, context.profile.speed))
    same = set(configuration.settings) <= _SAME_ARITHMETIC
    bad, remarks = [], []
    for finding in findings:
        if finding.verdict not in _BAD:
            continue
        if finding.name == _ANSWERS and not same:
            remarks.append(f"{finding.cause} (its settings change the arithmetic)")
        else:
            bad.append(f"{finding.name}: {finding.verdict}: {finding.cause}")
    return JudgedQuality(bad[0] if bad else "", tuple(findings), tuple(remarks))


def _as_main(planned: Mapping[tuple[str, str], Cell], seen: Sequence[Observation]) -> dict[str, Observation]:
    """Return *seen* as observations of a single server's cells, by key."""
    found = {}
    for one in seen:
        cell = planned[one.cell.check, one.cell.name]
        found[cell.key] = msgspec.structs.replace(one, cell=cell)
    return found


REFUSED, ASKED = "refused", "asked before any start"


@dataclass(frozen=True)
class Search:
    """The parts of a search.

    Attributes:
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
            plan = quality_cells(self.context, key) if number == NUMBER else None
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

    def _trial(self, configuration: Configuration, judged: Mapping[str, JudgedQuality]) -> Trial:
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

    def qualities(self) -> dict[str, JudgedQuality]:
        """Return the quality of every configuration that was asked, by key."""
        context, found = self.context, {}
        own: list[Observation] = []
        for index, configuration in enumerate(self.search.space.configurations):
            cells = self.cells(configuration.key, NUMBER)
            seen = self.seen(cells)
            if seen and (len(seen) == len(cells) or any(map(trouble_of, seen))):
                found[configuration.key] = judge_answers(context, configuration, seen, own)
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
        number = NUMBER if self.planned.quality else self.planned.number
        kind = QUALITY if self.planned.quality else f"start {number}"
        place = f"{configuration.key}-{QUALITY if self.planned.quality else number}"
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
        cells = self.known.cells(key, NUMBER if self.planned.quality else self.planned.number)
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
    """Return the cause of a failed start."""
    told = error.cause.because if isinstance(error, ServerFailedError) else error.because
    return " ".join(told.split())
