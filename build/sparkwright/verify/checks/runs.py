"""The comparison of finished runs, as a run of its own: the findings on the cells that all of them have.

A run is one start of its server. With several runs on each side the difference between starts is measured;
with one on each side it is assumed, and the findings say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sparkwright.base.errors import ConfigError
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation, Sample
from sparkwright.verify.checks.acceptance import paired_ratio
from sparkwright.verify.checks.common import Values, finding
from sparkwright.verify.checks.compare import by_prompt, interval_of
from sparkwright.verify.checks.figures import event_gap_ms, figures
from sparkwright.verify.checks.machine import told_of
from sparkwright.verify.checks.quality import NAME, Cells, judge_quality, keys_of
from sparkwright.verify.checks.triage import troubles
from sparkwright.verify.compare import LEAST_STARTS, Ratio, compare_starts
from sparkwright.verify.run import Run

LEAST = 0.95
"""A server of at least this speed does not fail."""
PASSES = 0.9
"""Least speed within the interval of a server that passes."""
SPREAD = 0.025
"""Assumed standard deviation between starts of one server, where a side has a single start."""
ERROR = 0.05
"""Chance that the interval of any level misses the truth, for each quantity."""
SURE = 1 - ERROR
LESS_CACHE = 0.95
"""Share of the tokens before that the KV cache holds at the least."""
_FEW_PROMPTS = 4
_SAME = (
    "version",
    "runner",
    "backends",
    "kv_dtype",
    "graph_mode",
    "speculative_method",
    "speculative_tokens",
)


def compare_runs(before: Sequence[Run], after: Sequence[Run], spread: float = SPREAD) -> Run:
    """Return the findings on runs *after* an upgrade against runs *before* it.

    Args:
        before: finished runs, each of one start of the server.
        after: likewise.
        spread: assumed standard deviation between starts, where a side has a single one.

    Raises:
        ConfigError: the runs have no cell in common, or their clocks differ.
    """
    speeds = {run.speed for run in (*before, *after)}
    if len(speeds) > 1:
        raise ConfigError(
            "these runs cannot be compared",
            because=f"their clocks run at {', '.join(f'{one:g}' for one in sorted(speeds))} times real time",
            next_step="compare runs of real servers, or of simulators with the same --speed",
        )
    old, new = (list(map(_main_cells, runs)) for runs in (before, after))
    keys = [key for key in old[0] if all(key in run for run in (*old, *new))]
    if not keys:
        raise ConfigError(
            "these runs have no measurement in common",
            because="no cell of one was measured with the same prompts and the same load in the other",
            next_step="verify both servers with the same --profile, --levels and --seed",
        )
    by_level: dict[int, list[str]] = {}
    for key in keys:
        if (cell := old[0][key].cell).check == "sweep":
            by_level.setdefault(cell.load.concurrency, []).append(key)
    speed = speeds.pop()
    findings = judge_quality(old, new, keys)
    for number, (concurrency, of_level) in enumerate(sorted(by_level.items())):
        sides = [[[run[key] for key in of_level] for run in runs] for runs in (old, new)]
        level = _Level(concurrency, len(by_level), sides[0], sides[1], speed, spread)
        found = level.findings()
        if not number and min(len(old), len(new)) < LEAST_STARTS:
            warning = (
                f"{len(old)} start before and {len(new)} after: a difference of {100 * spread:g} % between"
                " starts of one server is assumed, not measured; more runs of each side, or two wheels by"
                " turns, measure it"
            )
            found[0] = msgspec.structs.replace(found[0], warnings=(warning,))
        findings += found
    names = {"before": list(map(_name, before)), "after": list(map(_name, after))}
    manifest: dict[str, Any] = {
        "title": f"{', '.join(names['before'])} → {', '.join(names['after'])}",
        "profile": "finished runs",
        "speed": speed,
        "checks": (NAME,),
        "cells in common": len(keys),
        "cells left out": len({key for run in (*old, *new) for key in run}) - len(keys),
        **names,
    }
    facts = {
        (arm, number): run.facts["main", 0]
        for arm, runs in (("before", before), ("after", after))
        for number, run in enumerate(runs)
        if ("main", 0) in run.facts
    }
    return Run(manifest=manifest, facts=facts, findings=(*findings, _differing(before, after)))


def _main_cells(run: Run) -> Cells:
    """Return the observations of the main server: a run's own baseline says nothing about an upgrade."""
    return {o.cell.key: o for o in run.observations if o.cell.arm == "main" and o.cell.boot == 0}


def _name(run: Run) -> str:
    """Return the words that tell a run's server from another: its wheel, else its title and version."""
    wheel = run.manifest.get("wheel")
    if isinstance(wheel, dict):
        return str(wheel["name"])
    version = run.facts["main", 0].version if ("main", 0) in run.facts else ""
    title = str(run.manifest.get("title") or run.manifest.get("url") or "server")
    return f"{title} ({version})" if version and version not in title else title


# Speed ---------------------------------------------------------------------------------------------------


def _request_rate(sample: Sample) -> float:
    seconds = (sample.ended - sample.started) / 1e9
    return sample.output_tokens / seconds if seconds > 0 else math.nan


# Conclusions by key, with the value of a request, larger where it is better.
_QUANTITIES: dict[str, Callable[[Sample], float]] = {
    "requests": _request_rate,
    "first_token": lambda sample: 1 / sample.ttft_ms if sample.ttft_ms > 0 else math.nan,
    "step": lambda sample: 1 / gap if (gap := event_gap_ms([sample])) > 0 else math.nan,
}


@dataclass(frozen=True)
class _Level:
    """The sweep's cells at one of so many concurrencies that are judged together, on both sides, by run."""

    concurrency: int
    levels: int
    before: list[list[Observation]]
    after: list[list[Observation]]
    speed: float
    spread: float

    def findings(self) -> list[Finding]:
        """Return the findings on each quantity and, if both sides draft, on acceptance."""
        found = []
        disturbed = self._each(told_of)
        for key, value in _QUANTITIES.items():
            new, old = ([by_prompt(run, value) for run in runs] for runs in (self.after, self.before))
            error = ERROR / 2 / self.levels
            ratio, prompts = compare_starts(new, old, error, error, assumed=self.spread)
            found.append(self._finding(key, ratio if prompts >= _FEW_PROMPTS else None, prompts, disturbed))
        new_cells, old_cells = ([o for run in runs for o in run] for runs in (self.after, self.before))
        accepted = paired_ratio(new_cells, old_cells, self.levels, ERROR)
        if accepted is not None:
            found.append(self._finding("acceptance", accepted, sum(len(o.counted) for o in old_cells), ()))
        return found

    def _each(self, of: Callable[[Observation], Sequence[str]]) -> list[str]:
        """Return what *of* says of each cell, with the side."""
        sides = {"before": self.before, "after": self.after}
        return [
            f"{arm}: {said}" for arm, runs in sides.items() for run in runs for o in run for said in of(o)
        ]

    def _finding(self, key: str, ratio: Ratio | None, prompts: int, disturbed: Sequence[str]) -> Finding:
        verdict, cause = _judged(ratio)
        unfit = self._each(lambda o: [one.cause for one in troubles(o, metered=False)[:1]])
        if unfit and verdict is not Verdict.FAIL:
            verdict, cause = Verdict.INCONCLUSIVE, "; ".join(unfit[:3])
        if disturbed:
            verdict, cause = Verdict.INCONCLUSIVE, f"not compared: {'; '.join(disturbed[:3])}"
        measured: Values = {}
        if ratio is not None:
            measured = {**interval_of(ratio), "prompts": prompts}
        return finding(
            NAME,
            f"runs.{key}",
            verdict,
            cause,
            measured=measured | self._figures(key),
            evidence=keys_of(self.before[0]),
            told={"level": self.concurrency},
        )

    def _figures(self, key: str) -> Values:
        """Return throughput, or percentiles of the first token, of both sides: means over cells and runs."""
        shown: Values = {}
        for arm, runs in {"before": self.before, "after": self.after}.items():
            found = [figures(o, self.speed) for run in runs for o in run if o.counted]
            if found and key == "requests":
                shown[f"{arm} tok/s"] = _mean([one.whole_tok_s for one in found])
            elif found and key == "first_token":
                shown[f"{arm} TTFT p50 ms"] = _mean([one.ttft_ms.p50 for one in found])
                shown[f"{arm} TTFT p95 ms"] = _mean([one.ttft_ms.p95 for one in found])
        return shown


def _judged(ratio: Ratio | None) -> tuple[Verdict, str]:
    if ratio is None:
        return Verdict.INCONCLUSIVE, f"fewer than {_FEW_PROMPTS} prompts have it on both sides"
    shown = f"{ratio.value:.3f} times as good ({ratio.low:.3f} to {ratio.high:.3f})"
    at_most = 100 * (1 - ratio.low)
    if ratio.high < 1 and ratio.low < LEAST:
        return Verdict.FAIL, f"worse: {shown}"
    if ratio.low >= PASSES:
        return Verdict.PASS, f"{'better' if at_most < 0 else f'not more than {at_most:.1f} % worse'}: {shown}"
    return Verdict.INCONCLUSIVE, f"may be {at_most:.0f} % worse: {shown}"


def _mean(values: Sequence[float]) -> float:
    return round(math.fsum(values) / len(values), 2)


# Facts of the starts -------------------------------------------------------------------------------------


def _differing(before: Sequence[Run], after: Sequence[Run]) -> Finding:
    """Return the finding on facts of the boots: a smaller KV cache fails, other differences are named."""
    old, new = (
        [run.facts["main", 0] for run in runs if ("main", 0) in run.facts] for runs in (before, after)
    )
    warnings = []
    for name in _SAME:
        of_old, of_new = ({str(getattr(one, name)) for one in of} for of in (old, new))
        if of_old and of_new and of_old != of_new:
            words = name.replace("_", " ")
            warnings.append(f"{words} is {', '.join(sorted(of_new))}, before {', '.join(sorted(of_old))}")
    tokens, tokens_before = _least_cache(new), _least_cache(old)
    if not (tokens and tokens_before):
        why = "a log does not say how many tokens fit"
        return finding(NAME, "runs.cache", Verdict.NOT_APPLICABLE, why, warnings=warnings)
    return finding(
        NAME,
        "runs.cache",
        Verdict.FAIL if tokens < LESS_CACHE * tokens_before else Verdict.PASS,
        f"{tokens} tokens fit, before {tokens_before}",
        measured={"tokens": tokens, "tokens before": tokens_before},
        warnings=warnings,
    )


def _least_cache(facts: Sequence[BootFacts]) -> int:
    return min((one.kv_tokens for one in facts if one.kv_tokens > 0), default=0)
