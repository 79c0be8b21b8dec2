"""Earlier runs of a server, as their result files tell: verdict, and throughput by concurrency."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

LEVELS = (1, 16, 64)
"""Concurrencies that a list of runs shows."""
_VERDICT, _TABLE = "verdict.json", "cells.csv"
_MOST = 100  # runs that are read, the newest first by their folders


@dataclass(frozen=True)
class PastRun:
    """A finished run.

    Attributes:
        wheel: file name of the wheel, or vLLM's version where there was none.
        tok_s: output of all requests together by concurrency, mean of the sweep's categories.
        marked: concurrencies at which the machine was disturbed: not compared.
    """

    folder: str
    started: str
    server: str
    recipe: str
    wheel: str
    profile: str
    verdict: str
    tok_s: Mapping[int, float]
    marked: frozenset[int]

    def is_of(self, recipe: str) -> bool:
        """Tell if it is a run of *recipe*, by its name, its title or the name of its folder."""
        wanted = recipe.casefold()
        names = {self.recipe.casefold(), self.server.casefold()}
        return wanted in names or self.folder.casefold().rpartition("-")[0] == wanted

    def is_like(self, other: PastRun) -> bool:
        """Tell if its throughput may be shown beside that of *other*: of the same server and profile."""
        return (self.recipe or self.server, self.profile) == (other.recipe or other.server, other.profile)

    def unmarked(self, concurrency: int) -> float:
        """Return the throughput at *concurrency*; NaN if it was not measured, or not on a usual machine."""
        return math.nan if concurrency in self.marked else self.tok_s.get(concurrency, math.nan)


def past_runs(evidence: Path, recipe: str = "") -> list[PastRun]:
    """Return the runs in folders of *evidence*, or those of *recipe*, oldest first, without damaged ones."""
    if not evidence.is_dir():
        return []
    folders = [path for path in evidence.iterdir() if (path / _VERDICT).is_file()]
    folders.sort(key=lambda path: (path / _VERDICT).stat().st_mtime_ns, reverse=True)
    found = [run for folder in folders[:_MOST] if (run := read_past(folder)) is not None]
    return sorted((run for run in found if not recipe or run.is_of(recipe)), key=lambda run: run.started)


def read_past(folder: Path) -> PastRun | None:
    """Return the run in *folder*; `None` if its files are missing or damaged, or it is no run of a server."""
    try:
        described = json.loads((folder / _VERDICT).read_text(encoding="utf-8"))
        told = described["run"]
        tok_s, marked = _throughput(folder / _TABLE)
        if not tok_s and "title" not in told:
            return None
        return PastRun(
            folder=folder.name,
            started=str(told["started"]),
            server=str(told.get("title", "")),
            recipe=str(told.get("recipe-name", "")),
            wheel=_wheel(described),
            profile=str(told.get("profile", "")),
            verdict=str(described["verdict"]),
            tok_s=tok_s,
            marked=frozenset(marked),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _wheel(described: Mapping[str, Any]) -> str:
    wheel = described["run"].get("wheel")
    if isinstance(wheel, dict):
        return str(wheel["name"])
    servers: dict[str, Any] = described.get("servers", {})
    version = str(servers.get("main-0", {}).get("version", ""))
    return f"vLLM {version}" if version else ""


def _throughput(table: Path) -> tuple[dict[int, float], set[int]]:
    """Return throughput by concurrency of the sweep in *table*, and the concurrencies that are marked."""
    if not table.is_file():
        return {}, set()
    rates: dict[int, list[float]] = {}
    marked = set()
    with table.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            rate = row.get("throughput_steady_tok_s") or row.get("throughput_tok_s")
            if row.get("check") != "sweep" or row.get("server") != "main" or row.get("trouble") or not rate:
                continue
            concurrency = int(row["concurrency"])
            rates.setdefault(concurrency, []).append(float(rate))
            if row.get("disturbance"):
                marked.add(concurrency)
    return {level: fmean(values) for level, values in sorted(rates.items())}, marked
