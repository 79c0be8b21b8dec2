"""The comparison of finished runs, as a run of its own: each is one start. Cells of all of them count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sparkwright.base.errors import ConfigError
from sparkwright.engine.findings import Verdict
from sparkwright.verify.check import Context, Profile
from sparkwright.verify.checks.compare import ARMS, NAME, judge_pair
from sparkwright.verify.checks.quality import judge_quality
from sparkwright.verify.compare import Look
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.journal import Run


def compare_runs(before: Sequence[Run], after: Sequence[Run]) -> Run:
    """Return the findings on runs *after* an upgrade against runs *before* it.

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
    # A run's own baseline says nothing about an upgrade.
    old, new = (
        [
            {o.cell.key: o for o in run.observations if (o.cell.arm, o.cell.boot) == ("main", 0)}
            for run in runs
        ]
        for runs in (before, after)
    )
    for run, cells in zip((*before, *after), (*old, *new), strict=True):
        if not cells:
            why = next((one.cause for one in run.findings if one.verdict is Verdict.FAIL), "none was made")
            raise ConfigError(f"{_name(run)} has no measurement", because=why, next_step="compare other runs")
    keys = [key for key in old[0] if all(key in run for run in (*old, *new))]
    if not keys:
        raise ConfigError(
            "these runs have no measurement in common",
            because="no cell of one was measured with the same prompts and the same load in the other",
            next_step="verify both servers with the same --profile, --levels and --seed",
        )
    swept = [
        msgspec.structs.replace(o, cell=msgspec.structs.replace(o.cell, arm=arm, boot=boot))
        for arm, runs in zip(ARMS, (new, old), strict=True)
        for boot, run in enumerate(runs)
        for key in keys
        if (o := run[key]).cell.check == "sweep"
    ]
    facts = {
        (arm, boot): run.facts["main", 0]
        for arm, runs in zip(ARMS, (after, before), strict=True)
        for boot, run in enumerate(runs)
        if ("main", 0) in run.facts
    }
    context = Context(Profile(name="", speed=speeds.pop()), load_corpus(), facts)
    look = Look(min(len(before), len(after)))
    findings = [
        *judge_pair(context, swept, [o.cell for o in swept], look, lenient=True),
        *judge_quality(old, new, keys),
    ]
    names = {"before": list(map(_name, before)), "after": list(map(_name, after))}
    manifest: dict[str, Any] = {
        "title": f"{', '.join(names['before'])} → {', '.join(names['after'])}",
        "profile": "finished runs",
        "speed": context.profile.speed,
        "checks": (NAME,),
        "cells in common": len(keys),
        "cells left out": len({key for run in (*old, *new) for key in run}) - len(keys),
        **names,
    }
    return Run(manifest=manifest, facts=facts, observations=swept, findings=findings)


def _name(run: Run) -> str:
    """Return the words that tell a run's server from another: its wheel, else its title and version."""
    wheel = run.manifest.get("wheel")
    if isinstance(wheel, dict):
        return str(wheel["name"])
    version = run.facts["main", 0].version if ("main", 0) in run.facts else ""
    title = str(run.manifest.get("title") or run.manifest.get("url") or "server")
    return f"{title} ({version})" if version and version not in title else title
