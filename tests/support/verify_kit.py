"""Synthetic runs for tests of checks: a server as arithmetic, healthy or with one planted fault.

`Server` answers whole cells at once: it draws accepted tokens step by step, as speculative decoding does,
and keeps vLLM's counters exactly. Everything follows from a seed.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from msgspec.structs import replace

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import (
    BootFacts,
    Chunk,
    FailureKind,
    MetricsSnapshot,
    Observation,
    RequestFailure,
    Sample,
)
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check
from sparkwright.verify.profiles import Profile

SEEDS = range(20)
CATEGORIES = ("code", "math", "reasoning", "prose", "dialogue", "extraction")
FIRST = {"code": 0.82, "math": 0.84, "reasoning": 0.86, "prose": 0.62, "dialogue": 0.68, "extraction": 0.8}
FIRST["facts"] = 0.7
_TEXT = (
    "the a to of and in is it for with on this that as by from or be an at we can use each one two list map "
    "value name key time step then if so not but when where which more less first last small large"
)
WORDS = _TEXT.split()


def costly(values: Sequence[Any], quick: int = 5) -> list[Any]:
    """Return *values* for ``parametrize``, those after the first *quick* for ``make test-long``."""
    more = (pytest.param(value, marks=pytest.mark.walk) for value in values[quick:])
    return [*values[:quick], *more]


class KitCorpus:
    """Prompts and documents as a `Corpus` gives them, without files."""

    TEXTS = 24

    def prompts(self, category: str, count: int, seed: int = 0, salt: str = "") -> tuple[Prompt, ...]:
        return tuple(
            Prompt(
                name=f"{category}/{i % self.TEXTS}/{seed} {salt} {i // self.TEXTS}",
                category=category,
                text=f"[{seed} {salt} {i // self.TEXTS}] {category} question {i % self.TEXTS}",
            )
            for i in range(count)
        )

    def facts(self) -> tuple[Prompt, ...]:
        return tuple(
            Prompt(name=f"facts/{i}", category="facts", text=f"Which word is number {i}?", expect=f"fact{i}")
            for i in range(12)
        )

    def document(self, tokens: int, seed: int, salt: str = "", words_per_token: float = 1.0) -> Prompt:
        text = f"[{seed} {salt}]  " + "word " * int(tokens * words_per_token)
        return Prompt(
            name=f"document/{seed}/{tokens} {salt}", category="extraction", text=text, expect=f"HL-{seed}-B"
        )


def profile(**changes: Any) -> Profile:
    """Return a small run: three categories, three levels."""
    sizes: dict[str, Any] = {
        "name": "test",
        "checks": (),
        "categories": ("code", "math", "prose"),
        "levels": (1, 8, 24),
        "requests_per_client": 2,
        "least_requests": 12,
        "max_tokens": 96,
        "off_grid": (3, 17, 23),
        "waves": 3,
        "contexts": (16_000, 33_000),
    }
    return Profile(**{**sizes, **changes})


def boot_facts(**changes: Any) -> BootFacts:
    """Return the log of a healthy start on a machine with 119.6 GiB."""
    facts: dict[str, Any] = {
        "version": "0.24.0",
        "runner": "v1",
        "backends": ("FLASH_ATTN",),
        "kv_gib": 35.7,
        "kv_tokens": 525_000,
        "kv_dtype": "fp8",
        "max_concurrency": 4.0,
        "weights_gib": 18.2,
        "graph_gib": 0.61,
        "graph_actual_gib": 0.58,
        "total_gib": 119.6,
        "utilization": 0.55,
        "capture_sizes": tuple(range(8, 513, 8)),
        "graph_mode": "FULL_AND_PIECEWISE",
        "speculative_tokens": 7,
        "speculative_method": "dflash",
        "max_model_len": 131_072,
        "max_num_seqs": 64,
        "seconds": 212.0,
        "words_per_token": 1.0,
    }
    return BootFacts(**{**facts, **changes})


def context(
    sizes: Profile | None = None,
    facts: BootFacts | Mapping[tuple[str, int], BootFacts] | None = None,
    **changes: Any,
) -> Context:
    if facts is None or isinstance(facts, BootFacts):
        facts = {("main", 0): facts or boot_facts()}
    return Context(profile=sizes or profile(), corpus=KitCorpus(), facts=facts, **changes)  # type: ignore[arg-type]


# The server ----------------------------------------------------------------------------------------------


@functools.cache
def token_id(word: str) -> int:
    return crc32(word.encode()) % 150_000


def same_acceptance(cell: Cell, at_s: float, cached: bool) -> float:  # noqa: FBT001
    """Acceptance that depends on nothing but content."""
    return 1.0


def words(rng: np.random.Generator, count: int) -> str:
    """Text of *count* words that is neither repetitive nor garbage."""
    return " ".join([WORDS[chosen] for chosen in rng.integers(len(WORDS), size=count).tolist()])


@dataclass
class Server:
    """One server, as arithmetic.

    Attributes:
        seed: of everything.
        k: drafted tokens a step; 0 speculates not at all.
        step_ms: one verify step with one request; more requests take longer.
        factor: what a position's acceptance is multiplied by, given the cell, the server's seconds and
            whether the prompt's tokens came from the cache.
        text: what is generated, of so many tokens.
        speed: the server's seconds in one of ours.
        now: in the server's nanoseconds.
        counters: as vLLM keeps them.
    """

    seed: int = 0
    k: int = 7
    step_ms: float = 50.0
    ttft_ms: float = 120.0
    factor: Callable[[Cell, float, bool], float] = same_acceptance
    text: Callable[[np.random.Generator, int], str] = words
    speed: float = 1.0
    counting_ids: bool = True
    now: int = 1_000_000_000
    counters: dict[str, Any] = field(default_factory=dict)
    cached_prompts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.counters = {"drafts": 0.0, "draft_tokens": 0.0, "accepted": 0.0, "positions": np.zeros(self.k)}
        self.counters |= {"generated": 0.0, "prompt": 0.0, "requests": 0.0, "queries": 0.0, "hits": 0.0}

    def snapshot(self, **changes: Any) -> MetricsSnapshot:
        seen = self.counters
        values: dict[str, Any] = {
            "at": round(self.now / self.speed),
            "generation_tokens": seen["generated"],
            "prompt_tokens": seen["prompt"],
            "requests": seen["requests"],
            "prefix_queries": seen["queries"],
            "prefix_hits": seen["hits"],
            "preemptions": 0.0,
            "running": 0.0,
            "waiting": 0.0,
            "kv_usage": 0.0,
            "start_s": 1.7e9,
        }
        if self.k:
            values |= {
                "drafts": seen["drafts"],
                "draft_tokens": seen["draft_tokens"],
                "accepted": seen["accepted"],
                "accepted_per_position": tuple(seen["positions"].tolist()),
            }
        return MetricsSnapshot(**{**values, **changes})

    def measure(self, cell: Cell) -> Observation:
        """Return everything seen while *cell* was measured."""
        before, load = self.snapshot(), cell.load
        free = [self.now] * max(1, load.concurrency if load.shape == "closed" else load.requests)
        samples = []
        total = load.warm_up + load.requests
        for number in range(total):
            slot = free.index(min(free))
            warm_up = number < load.warm_up
            prompt = cell.prompts[(number if warm_up else number - load.warm_up) % len(cell.prompts)]
            if warm_up:  # salted, as the client does
                prompt = replace(prompt, text=f"warm-up {number} {prompt.text}")
            length = load.max_tokens
            if load.shape == "drain":
                length -= (load.max_tokens - load.min_tokens) * number // max(1, total - 1)
            sample = self.answer(cell, prompt, free[slot], length, len(free))
            samples.append(replace(sample, counted=not warm_up))
            free[slot] = round(sample.ended * self.speed)
        self.now = max(free) + 1_000_000_000
        return Observation(
            cell=cell, samples=tuple(samples), before=before, after=self.snapshot(), lag_ms=(2.0, 0.4)
        )

    def answer(self, cell: Cell, prompt: Prompt, start: int, length: int, busy: int) -> Sample:
        """Return one request, from *start* in the server's nanoseconds."""
        asked = max(8, len(prompt.text) // 5)
        cached = self.look_up(prompt, asked)
        accepted = self.draw(cell, prompt, length, (start - 1_000_000_000) / 1e9, cached)
        brought = np.concatenate([[1], accepted + 1])
        ends = np.cumsum(brought)
        steps = int(np.searchsorted(ends, length)) + 1
        brought = brought[:steps].copy()
        brought[-1] -= max(0, int(ends[steps - 1]) - length)
        self.count(accepted[: steps - 1], length, asked)
        step_ns = self.step_ms * 1e6 * (1 + 0.03 * (busy - 1))
        first = self.ttft_ms * 1e6 * (0.3 if cached else 1 + asked / 4000) * self.rng.lognormal(0, 0.1)
        gaps = step_ns * self.rng.lognormal(0, 0.05, steps - 1)
        moments = start + first + np.concatenate([[0.0], np.cumsum(gaps)])
        counts = brought.tolist() if self.counting_ids else [0] * steps
        chunks = tuple(map(Chunk, np.rint(moments / self.speed).astype(np.int64).tolist(), counts))
        text = self.text(self.rng, length)
        return Sample(
            prompt=prompt.name,
            category=prompt.category,
            started=round(start / self.speed),
            headers=round(start / self.speed) + 1,
            ended=chunks[-1].at + 1000,
            chunks=chunks,
            prompt_tokens=asked,
            output_tokens=length,
            counted_by="usage",
            finish_reason="stop" if cell.load.natural_stop else "length",
            text=f"{prompt.expect} {text}".strip(),
            token_ids=tuple(map(token_id, text.split())),
        )

    def look_up(self, prompt: Prompt, asked: int) -> bool:
        """Tell if the prompt is in the prefix cache, and put it there."""
        cached = prompt.text in self.cached_prompts
        self.cached_prompts.add(prompt.text)
        self.counters["queries"] += asked
        self.counters["hits"] += asked // 16 * 16 if cached else 0
        return cached

    def draw(self, cell: Cell, prompt: Prompt, length: int, at_s: float, cached: bool) -> np.ndarray:  # noqa: FBT001
        """Accepted tokens of each step. A text keeps its character at every level and salt."""
        if not self.k:
            return np.zeros(length, dtype=int)
        text = "/".join(prompt.name.split("/")[:2])
        character = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
        first = min(0.97, FIRST[prompt.category] * (1 + 0.12 * character))
        chances = np.array([first * 0.985**i for i in range(self.k)]) * self.factor(cell, at_s, cached)
        hit = self.rng.random((length, self.k)) < chances
        return np.cumprod(hit, axis=1).sum(axis=1)

    def count(self, accepted: np.ndarray, length: int, asked: int) -> None:
        seen = self.counters
        if self.k:
            seen["drafts"] += len(accepted)
            seen["draft_tokens"] += len(accepted) * self.k
            seen["accepted"] += int(accepted.sum())
            seen["positions"] = seen["positions"] + (accepted[:, None] > np.arange(self.k)).sum(axis=0)
        seen["generated"] += length
        seen["prompt"] += asked
        seen["requests"] += 1


# Runs and faults -----------------------------------------------------------------------------------------


def run(check: Check, to: Context, server: Server) -> list[Observation]:
    """Return everything that *check* asks for, measured."""
    return [server.measure(cell) for cell in check.cells(to)]


def follow(check: Check, to: Context, measure: Callable[[Cell], Observation]) -> list[Observation]:
    """Return everything that *check* asks for, with what follows from that, measured."""
    seen: list[Observation] = []
    while more := check.cells(to, seen)[len(seen) :]:
        seen += map(measure, more)
    return seen


def judge(check: Check, to: Context, server: Server) -> dict[str, Finding]:
    """Return the findings on *server*, by name."""
    return by_name(check.judge(to, run(check, to, server)))


@dataclass(frozen=True)
class Bench:
    """One check, what it sees of healthy servers, and what it makes of anything else."""

    check: Check
    sizes: Profile | None = None

    @functools.cache  # noqa: B019 - there are a handful, for as long as the tests run
    def healthy(self, seed: int = 0) -> tuple[Observation, ...]:
        return tuple(run(self.check, context(self.sizes), Server(seed=seed)))

    def judged(self, observations: Sequence[Observation], **changes: Any) -> dict[str, Finding]:
        return by_name(self.check.judge(context(self.sizes, **changes), observations))

    def at(self, start: str) -> int:
        """Return the place of the first cell whose name begins so."""
        return next(i for i, o in enumerate(self.healthy()) if o.cell.name.startswith(start))


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    named = {finding.name: finding for finding in findings}
    assert named
    return named


def verdicts(findings: Mapping[str, Finding]) -> dict[str, str]:
    """Return the checks that did not pass, with their causes."""
    return {
        name: f"{finding.verdict}: {finding.cause}"
        for name, finding in findings.items()
        if finding.verdict is not Verdict.PASS
    }


def every(observation: Observation, which: slice = slice(None), **changes: Any) -> Observation:
    """*observation* with these changes of each request in *which*, and of all others with its prompt."""
    chosen = {sample.prompt for sample in observation.samples[which]}
    samples = (replace(one, **changes) if one.prompt in chosen else one for one in observation.samples)
    return replace(observation, samples=tuple(samples))


def failing(
    observation: Observation,
    kind: FailureKind,
    detail: str = "planted",
    *,
    which: slice = slice(None),
    status: int = 0,
) -> Observation:
    """*observation* with the requests in *which* failed."""
    return every(observation, which, failure=RequestFailure(kind=kind, detail=detail, status=status))


def dead(observation: Observation, status: int = 1, log: Sequence[str] = ()) -> Observation:
    """*observation* of a server that ended in it: every request broke off, no canary, no counters."""
    broken = failing(observation, FailureKind.RESET, "connection reset by peer")
    return replace(broken, died=status, after=None, canary="connection refused", log=tuple(log))


def gone(observation: Observation) -> Observation:
    """*observation* of a server that had ended before it."""
    broken = failing(observation, FailureKind.CONNECT, "connection refused")
    return replace(broken, before=None, after=None, canary="connection refused")


def crash_from(observations: Sequence[Observation], name: str, **how: Any) -> list[Observation]:
    """*observations* of a server that ends in the cell called *name* and is not started again."""
    at = [observation.cell.name for observation in observations].index(name)
    return [*observations[:at], dead(observations[at], **how), *map(gone, observations[at + 1 :])]


def changed(observations: Sequence[Observation], at: int, **changes: Any) -> list[Observation]:
    """*observations* with one of them changed."""
    seen = list(observations)
    seen[at] = replace(seen[at], **changes)
    return seen


def counted(observation: Observation, **changes: Any) -> Observation:
    """*observation* with other counters after it."""
    return replace(observation, after=replace(observation.after, **changes))


def all_but_one(observations: Sequence[Observation]) -> Iterator[list[Observation]]:
    """Yield *observations* without each of them."""
    for left in range(len(observations)):
        yield [*observations[:left], *observations[left + 1 :]]
