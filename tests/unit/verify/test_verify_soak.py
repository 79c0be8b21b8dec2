"""The soak notices acceptance that decays, or that the prefix cache spoils, and nothing else."""

import hashlib
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from verify_kit import FIRST, SEEDS, boot_facts, by_name, context, costly, counted, profile, verdicts

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import Chunk, HostSample, MetricsSnapshot, Observation, Sample
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.soak_rounds import elapsed
from sparkwright.verify.corpus import CATEGORIES, load_corpus

SERVED = "requests are answered throughout"
EXERCISED = "the prefix cache is exercised"
HOLDS = "acceptance does not decay"
CACHED = "cached prompts are drafted for as well as cold ones"
FEW = costly(SEEDS[::5], quick=1)
STEP_S = 0.25
K = 7


@dataclass
class Lived:
    """A server over a long time: closed loops, steps of a quarter of a second, windows out of counters.

    Attributes:
        factor: of acceptance at each moment (s), given the share of the prompt that was cached.
        content: of acceptance at each moment, for traffic alone: what is asked drifts, the server does not.
        hits: share of what could come from the prefix cache that does.
        leak: MiB of resident memory a second.
    """

    seed: int = 0
    factor: Callable[[np.ndarray, float], Any] = lambda at, cached: 1.0
    content: Callable[[np.ndarray], Any] = lambda at: 1.0
    hits: float = 1.0
    leak: float = 0.0
    caching: str = "True"
    k: int = K
    speed: float = 1.0
    now: float = 100.0
    start_s: float = 1.7e9
    cache: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.totals: dict[str, float] = dict.fromkeys(
            ("generated", "prompt", "requests", "queries", "hits"), 0.0
        )
        self.steps: list[np.ndarray] = []  # moments and accepted tokens of all drafts so far
        self.positions = np.zeros(self.k)
        self.drafts = self.accepted = 0.0

    def measure(self, cell: Cell) -> Observation:
        load, begin = cell.load, self.now
        self.shown = dict(self.totals)
        before = self.snapshot(begin)
        free = [begin] * load.concurrency
        samples, moments, accepted, number = [], [], [], 0
        while number < load.requests if not load.seconds else min(free) < begin + load.seconds:
            slot = free.index(min(free))
            sample, at, took = self.answer(cell, number, free[slot])
            free[slot] = sample.ended * self.speed / 1e9
            samples.append(sample)
            moments.append(at)
            accepted.append(took)
            number += 1
        self.now = max(free)
        series = self.count(np.concatenate(moments), np.concatenate(accepted), begin)
        end, self.shown = self.now, self.totals
        self.now += 1.0
        host = tuple(
            HostSample(
                at=self.ns(at),
                server_rss_mib=20_000 + self.leak * at + float(self.rng.normal(0, 5)),
                memory_available_mib=60_000 - self.leak * at + float(self.rng.normal(0, 50)),
            )
            for at in np.arange(begin, end, 15.0)
        )
        return Observation(
            cell=cell,
            samples=tuple(samples),
            before=before,
            after=self.snapshot(end),
            series=series,
            host=host,
        )

    def ns(self, at: float) -> int:
        return round(at / self.speed * 1e9)

    def answer(self, cell: Cell, number: int, start: float) -> tuple[Sample, np.ndarray, np.ndarray]:
        prompt = cell.prompts[number % len(cell.prompts)]
        asked = len(prompt.text) // 5
        cached = 0.0
        if prompt.prefix:
            known = len(prompt.prefix) // 5 / asked
            cached = known * self.hits if prompt.prefix in self.cache else 0.0
            self.cache.add(prompt.prefix)
        length = cell.load.max_tokens
        at = start + 0.5 + STEP_S * np.arange(1, length)
        took = self.draw(cell, prompt.name, prompt.category, at, cached)
        steps = int(np.searchsorted(np.cumsum(took + 1), length - 1)) + 1
        at, took = at[:steps], took[:steps]
        self.totals["generated"] += length
        self.totals["requests"] += 1
        self.totals["prompt"] += asked
        self.totals["queries"] += asked
        self.totals["hits"] += cached * asked
        moments = np.rint(np.append(start + 0.5, at) / self.speed * 1e9).astype(np.int64).tolist()
        chunks = tuple(map(Chunk, moments, itertools.repeat(0)))
        return (
            Sample(
                prompt=prompt.name,
                category=prompt.category,
                started=self.ns(start),
                ended=chunks[-1].at,
                chunks=chunks,
                prompt_tokens=asked,
                output_tokens=length,
                counted_by="usage",
                finish_reason="length",
            ),
            at,
            took,
        )

    def draw(self, cell: Cell, name: str, category: str, at: np.ndarray, cached: float) -> np.ndarray:
        """Accepted tokens of each step; a question keeps its character, an answer varies a little."""
        digest = hashlib.sha256("/".join(name.split("/")[:2]).encode()).hexdigest()
        character = int(digest[:8], 16) / 2**32 - 0.5 + self.rng.normal(0, 0.15)
        first = np.clip(FIRST[category] * (1 + 0.12 * character), 0, 0.95)
        chance = first * self.factor(at - 100.0, cached) * np.ones_like(at)
        if cell.tags["kind"] == "traffic":
            chance = chance * self.content(at - 100.0)
        hit = self.rng.random((len(at), self.k)) < chance[:, None] * 0.985 ** np.arange(self.k)
        return np.cumprod(hit, axis=1).sum(axis=1)

    def count(self, at: np.ndarray, took: np.ndarray, begin: float) -> tuple[MetricsSnapshot, ...]:
        """Snapshots every ten seconds on the way."""
        series = []
        order = np.argsort(at)
        at, took = at[order], took[order]
        moments = np.append(np.arange(begin + 10.0, self.now, 10.0), self.now)
        done = 0
        for moment in moments:
            upto = int(np.searchsorted(at, moment, side="right"))
            new = took[done:upto]
            self.drafts += len(new)
            self.accepted += float(new.sum())
            self.positions = self.positions + (new[:, None] > np.arange(self.k)).sum(axis=0)
            series.append(self.snapshot(moment))
            done = upto
        return tuple(series[:-1])

    def snapshot(self, at: float) -> MetricsSnapshot:
        """Counters now; on the way, those of whole requests stay where they were when the cell began."""
        spec: dict[str, Any] = {}
        if self.k:
            spec = {
                "drafts": self.drafts,
                "draft_tokens": self.drafts * self.k,
                "accepted": self.accepted,
                "accepted_per_position": tuple(self.positions.tolist()),
            }
        return MetricsSnapshot(
            at=self.ns(at),
            start_s=self.start_s,
            preemptions=0.0,
            prefix_queries=self.shown["queries"],
            prefix_hits=self.shown["hits"],
            generation_tokens=self.shown["generated"],
            prompt_tokens=self.shown["prompt"],
            requests=self.shown["requests"],
            cache={"enable_prefix_caching": self.caching},
            **spec,
        )


def to(**changes: Any) -> Any:
    sizes = {"soak_s": 1800.0, "max_tokens": 200, "categories": CATEGORIES}
    facts = changes.pop("facts", None)
    return replace(context(profile(**{**sizes, **changes}), facts), corpus=load_corpus())


def soak(server: Lived, **changes: Any) -> dict[str, Any]:
    there = to(speed=server.speed, **changes)
    return by_name(ALL["soak"].judge(there, [server.measure(cell) for cell in ALL["soak"].cells(there)]))


# The plan ------------------------------------------------------------------------------------------------


def test_cold_prompts_share_no_beginning_and_cached_ones_share_theirs():
    cells = ALL["soak"].cells(to())
    alone = [p.text[:24] for cell in cells for p in cell.prompts if not p.prefix]
    assert len(set(alone)) == len(alone)
    shared = [p for cell in cells for p in cell.prompts if p.prefix]
    assert len({p.prefix for p in shared}) == 4
    assert all(p.text.startswith(p.prefix) for p in shared)


@pytest.mark.parametrize(("soak_s", "rounds"), [(120.0, 4), (1200.0, 4), (1500.0, 5), (3600.0, 12)])
def test_rounds_take_five_minutes_or_a_quarter(soak_s, rounds):
    cells = ALL["soak"].cells(to(soak_s=soak_s))
    assert sum(cell.tags["kind"] == "traffic" for cell in cells) == rounds


# Healthy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", costly(SEEDS[:14], quick=4))
def test_a_healthy_server_passes(seed):
    """14 of 14 bound false alarms by 19 % (binomial, at 95 %)."""
    assert verdicts(soak(Lived(seed))) == {}


@pytest.mark.parametrize("seed", costly(SEEDS[:5], quick=1))
def test_what_is_asked_may_drift_without_the_server_being_blamed(seed):
    found = soak(Lived(seed, content=lambda at: 1 - 0.22 * (at > 900)))
    assert verdicts(found) == {}


# Decays --------------------------------------------------------------------------------------------------


def step(onset: float, floor: float = 0.0) -> Callable[[np.ndarray, float], np.ndarray]:
    return lambda at, cached: np.where(at < onset, 1.0, floor)


def ramp(onset: float, over: float, floor: float = 0.0) -> Callable[[np.ndarray, float], np.ndarray]:
    return lambda at, cached: np.clip(1 - (1 - floor) * (at - onset) / over, floor, 1)


@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize(
    ("factor", "onset", "within"),
    [
        (step, 700, 500),
        (lambda onset: ramp(onset, 900), 300, 800),
        (lambda onset: ramp(onset, 1800, 0.8), 0, 2400),  # by a third
        (step, 2050, 500),  # in the very last minutes
    ],
    ids=["a step", "a slow fall", "a small fall", "a late fall"],
)
def test_a_fall_of_acceptance_is_found_in_the_round_after_it(factor, onset, within, seed):
    begin = onset + 30 * seed
    found = soak(Lived(seed, factor=factor(begin)))[HOLDS]
    assert found.verdict is Verdict.FAIL
    assert "acceptance decays" in found.cause
    minute = int(re.search(r"probes at (\d+) min", found.cause)[1])
    assert begin < 60 * (minute + 1) < begin + within


@pytest.mark.parametrize("seed", FEW)
def test_acceptance_that_suffers_from_the_cache_alone_is_found(seed):
    found = soak(Lived(seed, factor=lambda at, cached: 1 - cached))
    assert found[CACHED].verdict is Verdict.FAIL
    assert "from the beginning" in found[CACHED].cause
    assert found[EXERCISED].verdict is Verdict.PASS
    assert found[HOLDS].verdict is Verdict.PASS


@pytest.mark.parametrize("seed", FEW)
def test_a_cache_that_spoils_with_time_is_found(seed):
    found = soak(Lived(seed, factor=lambda at, cached: 1 - 0.8 * cached * (at > 1300)))
    assert found[CACHED].verdict is Verdict.FAIL
    assert "since" in found[CACHED].cause
    assert found[HOLDS].verdict is Verdict.FAIL
    assert "cached probes" in found[HOLDS].cause


def test_only_measured_ratios_are_named():
    """Without an accepted token in the first cold probe there is no ratio to it."""
    found = soak(Lived(factor=lambda at, cached: 1.0 if cached else 0.0))[HOLDS]
    assert found.verdict is Verdict.PASS
    assert "cached" in found.cause
    assert "cold" not in found.cause


def test_acceptance_of_nothing_from_the_start_is_an_inert_drafter():
    found = soak(Lived(factor=lambda at, cached: 0.0))[HOLDS]
    assert found.verdict is Verdict.FAIL
    assert "drafter inert" in found.cause


# The cache -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "verdict", "says"),
    [
        ({"hits": 0.0}, Verdict.FAIL, "cache not exercised"),
        ({"hits": 0.0, "caching": "False"}, Verdict.INVALID, "off"),
        ({"hits": 0.2}, Verdict.INVALID, ""),
    ],
    ids=["finds nothing", "switched off", "finds little"],
)
def test_a_cache_that_is_not_exercised_decides_nothing(server, verdict, says):
    found = soak(Lived(**server))
    assert found[EXERCISED].verdict is verdict
    assert says in found[EXERCISED].cause
    assert found[CACHED].verdict is Verdict.INVALID


# Odds and ends -------------------------------------------------------------------------------------------


def test_memory_that_grows_is_a_warning():
    found = soak(Lived(leak=1.0))[SERVED]
    assert found.verdict is Verdict.PASS
    assert any("resident memory grew steadily" in warning for warning in found.warnings)
    assert soak(Lived())[SERVED].warnings == ()
    shrinks = [
        any("available" in one for one in soak(Lived(leak=10.0, speed=speed))[SERVED].warnings)
        for speed in (1.0, 60.0)
    ]
    assert shrinks == [True, False], "beside a simulator it is this machine's memory"


def test_preemptions_are_a_warning():
    there, server = to(), Lived()
    seen = [server.measure(cell) for cell in ALL["soak"].cells(there)]
    seen[3] = counted(seen[3], preemptions=4.0)
    found = by_name(ALL["soak"].judge(there, seen))[SERVED]
    assert any("4 requests were preempted" in warning for warning in found.warnings)


def test_a_server_restarted_in_the_middle_has_not_lived_long_enough():
    there, server = to(), Lived()
    seen = []
    for number, cell in enumerate(ALL["soak"].cells(there)):
        server.start_s = 1.7e9 + number // 5
        seen.append(server.measure(cell))
    found = by_name(ALL["soak"].judge(there, seen))[SERVED]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "restarted" in found.cause


def test_a_server_without_speculation_decides_nothing():
    found = soak(Lived(k=0), facts=boot_facts(speculative_tokens=0))
    assert found[SERVED].verdict is Verdict.PASS
    assert {found[name].verdict for name in (HOLDS, CACHED)} == {Verdict.INCONCLUSIVE}


# Pieces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("onset", [430, 420, 440, 900])  # in the midst of probes, in traffic
def test_a_decay_of_all_prompts_is_not_blamed_on_the_cache(onset):
    for factor in (step(onset), ramp(onset, 500)):
        found = soak(Lived(onset, factor=factor))
        assert found[HOLDS].verdict is Verdict.FAIL
        assert found[CACHED].verdict is not Verdict.FAIL


def test_pauses_count_unless_a_run_was_resumed_after_them():
    cells = ALL["soak"].cells(to())[:4]
    moments = [(0, 10), (12, 20), (500, 530), (3, 9)]  # a long pause, and a clock that restarted
    seen = [
        Observation(
            cell=cell,
            before=MetricsSnapshot(at=round(begin * 1e9)),
            after=MetricsSnapshot(at=round(end * 1e9)),
        )
        for cell, (begin, end) in zip(cells, moments, strict=True)
    ]
    assert list(elapsed(seen, 2.0).values()) == [0.0, 24.0, 40.0, 100.0]
