"""Whole runs for tests of reports: one where all is well, one where much is not, and one that is hostile."""

import functools
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from verify_kit import CATEGORIES, Server, boot_facts, dead, failing

from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import (
    Chunk,
    FailureKind,
    HostSample,
    MetricsSnapshot,
    Observation,
    Sample,
)
from sparkwright.verify.journal import Run
from sparkwright.verify.report import render_terminal

LEVELS = (1, 2, 4, 8, 16, 32, 64)
OFF_GRID = (3, 5, 7, 9, 15, 17, 23, 25, 31, 33, 47, 63)

MANIFEST: dict[str, Any] = {
    "title": "Qwen3.6-27B NVFP4 with z-lab DFlash, k = 7",
    "profile": "full",
    "started": "2026-11-21T09:30:00Z",
    "seconds": 9360,
    "recipe": "qwen3.6-27b-dflash-fp8",
    "model": "Qwen3.6-27B",
    "url": "http://127.0.0.1:8000",
    "wheel": {"name": "vllm-0.24.0+spark.1-cp312-abi3-linux_aarch64.whl", "sha256": "3f9a" * 16},
    "sparkwright": "0.1.0",
    "host": "spark-01",
    "files": {
        "every request and every event": "journal.jsonl",
        "the server's log": "server/main-0/server.log",
        "this page for machines": "report.json",
    },
    "report": "/runs/2026-11-21/report.html",
}


def prompts(category: str, count: int, salt: str, tokens: int = 40) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(
            name=f"{category}/{i} {salt}",
            category=category,
            text=f"[{category} {salt} {i}] " + "word " * tokens,
        )
        for i in range(count)
    )


# Cells ---------------------------------------------------------------------------------------------------


def sweep(server: Server, levels: Sequence[int] = LEVELS) -> list[Observation]:
    return [
        server.measure(
            Cell(
                check="sweep",
                name=f"{category} c={level}",
                load=Load(concurrency=level, requests=max(6, level * 3 // 2), warm_up=level, max_tokens=40),
                prompts=prompts(category, level * 3 + 6, f"s{level}"),
                tags={"category": category},
            )
        )
        for category in CATEGORIES
        for level in levels
    ]


def hunt(server: Server) -> list[Observation]:
    loads = [("burst", level) for level in sorted({*LEVELS[2:], *OFF_GRID})] + [("drain", 64), ("drain", 47)]
    return [
        server.measure(
            Cell(
                check="crash",
                name=f"{shape} {level}",
                load=Load(shape=shape, concurrency=level, requests=level, max_tokens=24, min_tokens=4),  # type: ignore[arg-type]
                prompts=prompts("code", level, f"{shape} {level}"),
            )
        )
        for shape, level in loads
    ]


def context(server: Server) -> list[Observation]:
    return [
        server.measure(
            Cell(
                check="context",
                name=f"{tokens:,} tokens, {cache}",
                load=Load(requests=4, max_tokens=48),
                prompts=prompts("extraction", 4, f"long {tokens}", tokens),
                tags={"cache": cache, "tokens": str(tokens)},
            )
        )
        for tokens in (2_000, 16_000, 33_000)
        for cache in ("cold", "cached")
    ]


def steady(at_s: float, kind: str) -> float:
    """Acceptance that stays."""
    del at_s
    return {"cold": 0.5, "cached": 0.49}.get(kind, 0.46)


def decaying(at_s: float, kind: str) -> float:
    """Acceptance that falls from minute 18 on and is gone at minute 25, for cold prompts less."""
    left = min(1.0, max(0.0, (1500 - at_s) / 420))
    return steady(at_s, kind) * (0.5 + left / 2 if kind == "cold" else left)


class Soak:
    """Rounds of probes and of traffic for half an hour, in snapshots 5 s apart."""

    def __init__(self, rate: Callable[[float, str], float] = steady, hits: float = 0.55) -> None:
        self.rate, self.hits = rate, hits
        self.rng = np.random.default_rng(5)
        self.now_s = 0.0
        self.counters = {"drafts": 0.0, "accepted": 0.0, "generated": 0.0, "queries": 0.0, "hits": 0.0}
        self.sample = Server().measure(_one("code")).samples[0]

    def rounds(self, count: int = 6, seconds: int = 300) -> list[Observation]:
        made = []
        for number in range(count + 1):
            made += [self.cell(number, "cold", 15), self.cell(number, "cached", 15)]
            made += [self.cell(number, "traffic", seconds)] if number < count else []
        return made

    def cell(self, number: int, kind: str, seconds: int) -> Observation:
        cell = Cell(
            check="soak",
            name=f"round {number} {kind}",
            load=Load(concurrency=8, seconds=float(seconds), requests=0),
            prompts=prompts("code", 4, f"soak {number} {kind}"),
            tags={"kind": kind, "round": str(number)},
        )
        series = [self.snapshot()]
        for _ in range(seconds // 5):
            self.advance(kind)
            series.append(self.snapshot())
        host = tuple(
            HostSample(
                at=one.at,
                memory_available_mib=52_000 - self.now_s / 3,
                server_rss_mib=9_000 + self.now_s / 9,
                gpu_clock_mhz=2400,
            )
            for one in series
        )
        return Observation(
            cell=cell,
            samples=tuple(self.request(one.at) for one in series[:-1:3]),
            before=series[0],
            after=series[-1],
            series=tuple(series[1:-1]),
            host=host,
        )

    def request(self, at: int) -> Sample:
        later = at - self.sample.started
        return msgspec.structs.replace(
            self.sample,
            started=at,
            ended=self.sample.ended + later,
            chunks=tuple(Chunk(one.at + later, one.tokens, one.kind) for one in self.sample.chunks),
        )

    def advance(self, kind: str) -> None:
        share = max(0.0, self.rate(self.now_s, kind) + self.rng.normal(0, 0.012))
        drafts = 5 * 8 / 0.06
        self.now_s += 5
        self.counters["drafts"] += drafts
        self.counters["accepted"] += drafts * 7 * share
        self.counters["generated"] += drafts * (1 + 7 * share)
        self.counters["queries"] += 4000
        self.counters["hits"] += 4000 * max(0.0, self.hits + self.rng.normal(0, 0.03)) * (self.now_s > 90)

    def snapshot(self, **changes: Any) -> MetricsSnapshot:
        seen = self.counters
        values: dict[str, Any] = {
            "at": round((6000 + self.now_s) * 1e9),
            "drafts": seen["drafts"],
            "draft_tokens": seen["drafts"] * 7,
            "accepted": seen["accepted"],
            "generation_tokens": seen["generated"],
            "prefix_queries": seen["queries"],
            "prefix_hits": seen["hits"],
            "preemptions": 0,
            "kv_usage": self.rng.uniform(0.28, 0.36),
            "start_s": 1.7e9,
        }
        return MetricsSnapshot(**{**values, **changes})


def _one(category: str) -> Cell:
    return Cell(check="sweep", name="one", load=Load(requests=1), prompts=prompts(category, 1, "one"))


# Findings ------------------------------------------------------------------------------------------------


def finding(check: str, name: str, cause: str, verdict: Verdict = Verdict.PASS, **more: Any) -> Finding:
    texts = {
        "definition": f"What {check} holds against its limit.",
        "threshold": "at most 10 %, from the design",
    }
    return Finding(check=check, name=name, cause=cause, verdict=verdict, **{**texts, **more})


def keys(observations: Sequence[Observation], check: str) -> tuple[str, ...]:
    return tuple(o.cell.key for o in observations if o.cell.check == check)


def comparison(name: str, ratio: float, low: float, high: float, verdict: Verdict = Verdict.PASS) -> Finding:
    measured: dict[str, float | str] = {
        "verdict": "worse" if verdict is Verdict.FAIL else "equal",
        "speed over the baseline's": ratio,
        "low": low,
        "high": high if math.isfinite(high) else "unknown",
    }
    return finding(
        "compare", name, f"ratio {ratio:.3f} ({low:.3f} to {high:.3f})", verdict, measured=measured
    )


def healthy_findings(seen: Sequence[Observation]) -> list[Finding]:
    return [
        finding("boot", "memory adds up", "54.5 GiB of 65.8 GiB are used", measured={"used GiB": 54.5}),
        finding("boot", "graphs were captured for whole drafts", "all 64 sizes are multiples of 8"),
        finding(
            "sweep",
            "acceptance does not depend on concurrency",
            "the mean acceptance length varies by at most 3.1 % from c=1 to c=64",
            definition="The mean acceptance length at each concurrency over that at c=1, by category.",
            threshold="within ±10 % (published sweeps are flat within 3 %)",
            measured={f"c={level} MAL over c=1": 1 + level / 2000 for level in LEVELS[1:]},
            evidence=keys(seen, "sweep"),
        ),
        finding("sweep", "a step takes as long for all", "53.1 ms at c=1", measured={"spread": 0.012}),
        finding("crash", "survives every load", "21 loads survived", evidence=keys(seen, "crash")),
        finding("context", "acceptance holds at 33k", "0.97 of that at 2k", evidence=keys(seen, "context")),
        finding("soak", "acceptance does not decay", "no trend", evidence=keys(seen, "soak")),
        finding("lossless", "no token is lost", "9 of 48 diverge, all at near ties"),
        comparison("as fast as the baseline at c=8", 1.021, 0.985, 1.061),
        comparison("as fast as the baseline at c=1", 1.094, 1.052, 1.138),
        comparison("as fast as the baseline at c=32", 0.985, 0.93, 1.04),
        finding(
            "bands", "speed is near what was published", "code 41.0 tok/s", warnings=("prose is 31 % below",)
        ),
    ]


@functools.cache
def healthy() -> Run:
    """Return a run in which every check passed."""
    server = Server(seed=1, step_ms=52)
    seen = [*sweep(server), *hunt(server), *context(server), *Soak().rounds()]
    facts = {("main", 0): boot_facts(), ("main", 1): boot_facts(seconds=198.0), ("baseline", 0): boot_facts()}
    return Run(manifest=MANIFEST, facts=facts, observations=seen, findings=healthy_findings(seen))


@functools.cache
def unhealthy() -> Run:
    """Return a run with each kind of fault."""

    def falling(cell: Cell, at_s: float, cached: bool) -> float:  # noqa: FBT001
        del at_s
        long = cell.tags.get("tokens") == "33000"
        return 0.35 if cached or long else 0.55 if cell.load.concurrency >= 32 else 1.0

    server = Server(seed=2, step_ms=52, factor=falling)
    log = ("ERROR EngineCore RuntimeError: block_table must have shape (batch_size, max_num_blocks_per_seq)",)
    seen = [*sweep(server), *hunt(server), *context(server), *Soak(decaying).rounds()]
    names = [o.cell.name for o in seen]
    seen[names.index("burst 17")] = dead(seen[names.index("burst 17")], 137, log)
    seen[names.index("prose c=64")] = failing(
        seen[names.index("prose c=64")], FailureKind.STALL, "no token for 60 s"
    )
    bad = {"graph_gib": -35.69, "kv_gib": 72.1, "kv_tokens": 1_060_000}
    facts = {("main", 0): boot_facts(**bad), ("baseline", 0): boot_facts()}
    manifest = {**MANIFEST, "interrupted": "stopped by the user during lossless"}
    return Run(manifest=manifest, facts=facts, observations=seen, findings=unhealthy_findings(seen))


def unhealthy_findings(seen: Sequence[Observation]) -> list[Finding]:
    fail, inconclusive = Verdict.FAIL, Verdict.INCONCLUSIVE
    healthy = {(one.check, one.name): one for one in healthy_findings(seen)}
    changed = [
        finding(
            "boot",
            "memory adds up",
            "CUDA graphs were estimated at -35.69 GiB, and the KV cache grew by as much: 90.3 of 65.8 GiB",
            fail,
            measured={"estimate GiB": -35.69, "KV + weights GiB": 90.3, "limit GiB": 65.8},
        ),
        finding(
            "sweep",
            "acceptance does not depend on concurrency",
            "code c=32: the mean acceptance length is 0.61 (0.58 to 0.64) times that at c=1",
            fail,
            definition="The mean acceptance length at each concurrency over that at c=1, by category.",
            measured={f"c={level} MAL over c=1": 0.61 if level >= 32 else 1.0 for level in LEVELS[1:]},
            evidence=keys(seen, "sweep"),
        ),
        finding(
            "crash",
            "survives every load",
            "the server ended in burst 17 with 17 requests in flight, exit status 137; the log says "
            "“block_table must have shape (batch_size, max_num_blocks_per_seq)”",
            fail,
            evidence=keys(seen, "crash"),
        ),
        finding(
            "soak",
            "acceptance does not decay",
            "acceptance falls from 46 % to 0 %, beginning 18 minutes after the start",
            fail,
            measured={"cold probes at 18 min over the first": 0.0},
            evidence=keys(seen, "soak"),
        ),
        finding("lossless", "no token is lost", "12 of 48 prompts were measured", inconclusive),
        comparison("as fast as the baseline at c=1", 0.87, 0.82, 0.93, fail),
        comparison("as fast as the baseline at c=32", 1.1, 0.0, float("inf"), inconclusive),
        finding("sweep", "the client kept up", "the client's loop was late by 410 ms", Verdict.INVALID),
    ]
    return list({**healthy, **{(one.check, one.name): one for one in changed}}.values())


# Hostile -------------------------------------------------------------------------------------------------

MARKS = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&]]></style></svg></title></textarea>--><!--"
STEERING = "\x1b[31m\x1b]0;title\x07\x00\x08\u202e\u2066\ud800\ufffe\u2028{{ 7 * 7 }}{% raw %}[bold red]x[/]"
HOSTILE = MARKS + STEERING


def hostile() -> Run:
    """Return a run in which every text of others tries to break out of the page."""
    server = Server(seed=3)
    cell = Cell(
        check="sweep",
        name=HOSTILE,
        load=Load(concurrency=2, requests=4, max_tokens=32),
        prompts=prompts("code", 4, "x"),
        tags={"category": HOSTILE},
    )
    seen = msgspec.structs.replace(
        failing(server.measure(cell), FailureKind.IN_BAND, HOSTILE, which=slice(0, 1), status=500),
        canary=HOSTILE,
        log=(HOSTILE,),
    )
    said = Finding(
        check=HOSTILE,
        name=HOSTILE,
        definition=HOSTILE,
        verdict=Verdict.FAIL,
        cause=HOSTILE,
        measured={HOSTILE: HOSTILE, "nan": float("nan"), "inf": float("inf")},
        threshold=HOSTILE,
        evidence=(HOSTILE, seen.cell.key),
        warnings=(HOSTILE,),
    )
    manifest = dict.fromkeys(
        ("title", "profile", "started", "model", "interrupted", "host", HOSTILE), HOSTILE
    )
    manifest |= {"files": {HOSTILE: "javascript:alert(3)//" + MARKS}, "report": "r.html"}
    facts = {(HOSTILE, 0): boot_facts(version=HOSTILE, backends=(HOSTILE,))}
    compared = msgspec.structs.replace(comparison(HOSTILE, 1.0, 0.9, 1.1), cause=HOSTILE)
    return Run(manifest=manifest, facts=facts, observations=(seen,), findings=(said, compared))


def shown(run: Run, *, terminal: bool, width: int = 100) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system="standard")
    render_terminal(run, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
