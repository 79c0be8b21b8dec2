"""The comparison of finished runs, as a run of its own: findings, page and verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.verify.results import Results, load_run, write_report
from sparkwright.verify.run import Run
from sparkwright.verify.upgrade.pairs import match_runs
from sparkwright.verify.upgrade.quality import judge_quality
from sparkwright.verify.upgrade.speed import CHECK, SPREAD, judge_speed

_SAME = (
    "version",
    "runner",
    "backends",
    "kv_dtype",
    "graph_mode",
    "speculative_method",
    "speculative_tokens",
)
_LESS_CACHE = 0.95


def compare_runs(before: Sequence[Run], after: Sequence[Run], spread: float = SPREAD) -> Run:
    """Return the findings on runs *after* an upgrade against runs *before* it.

    Args:
        before: finished runs, each of one start of the server.
        after: likewise.
        spread: assumed standard deviation between starts, where a side has a single one.

    Raises:
        ConfigError: the runs have no cell in common.
    """
    matched = match_runs(before, after)
    speed = judge_speed(matched, spread)
    facts = {
        (arm, number): run.facts["main", 0]
        for arm, runs in (("before", before), ("after", after))
        for number, run in enumerate(runs)
        if ("main", 0) in run.facts
    }
    differing = _differing(before, after)
    return Run(
        manifest=_manifest(before, after, matched.speed, matched.left_out, len(matched.keys)),
        facts=facts,
        findings=(*judge_quality(matched), *speed, differing),
    )


def _manifest(
    before: Sequence[Run], after: Sequence[Run], speed: float, left_out: int, common: int
) -> dict[str, Any]:
    names = {"before": [_name(run) for run in before], "after": [_name(run) for run in after]}
    return {
        "title": f"{', '.join(names['before'])} → {', '.join(names['after'])}",
        "profile": "two finished runs" if len(before) + len(after) == 2 else "finished runs",  # noqa: PLR2004
        "speed": speed,
        "checks": (CHECK,),
        "cells in common": common,
        "cells left out": left_out,
        **names,
    }


def _name(run: Run) -> str:
    """Return the words that tell a run's server from another: its wheel, else its title and version."""
    wheel = run.manifest.get("wheel")
    if isinstance(wheel, dict):
        return str(wheel["name"])
    version = run.facts["main", 0].version if ("main", 0) in run.facts else ""
    title = str(run.manifest.get("title") or run.manifest.get("url") or "server")
    return f"{title} ({version})" if version and version not in title else title


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
    sizes = [min((one.kv_tokens for one in of if one.kv_tokens > 0), default=0) for of in (old, new)]
    known = all(sizes)
    shrunk = known and sizes[1] < _LESS_CACHE * sizes[0]
    return Finding(
        check=CHECK,
        name="the KV cache holds as many tokens",
        definition="Tokens that fit into the KV cache, as the logs of both starts say.",
        verdict=Verdict.FAIL if shrunk else Verdict.PASS if known else Verdict.NOT_APPLICABLE,
        cause=f"{sizes[1]} tokens fit, before {sizes[0]}"
        if known
        else "a log does not say how many tokens fit",
        measured={"tokens": sizes[1], "tokens before": sizes[0]} if known else {},
        threshold=f"at least {_LESS_CACHE:.0%} of those before",
        warnings=tuple(warnings),
    )


def write_comparison(before: Sequence[Path], after: Sequence[Path], folder: Path) -> Results:
    """Compare the runs in the folders *before* and *after*; write page, JUnit file and verdict to *folder*.

    Raises:
        ConfigError: a folder holds no run, or they have no cell in common.
        StorageError: the disk is full or cannot be written.
    """
    runs = [[load_run(place) for place in places] for places in (before, after)]
    return write_report(compare_runs(runs[0], runs[1]), folder)
