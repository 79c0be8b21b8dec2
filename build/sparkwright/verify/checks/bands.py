"""Comparison with published figures for the same machine, and with its memory bandwidth.

The figures are in ``bands.toml`` beside this file, each with its source and a grade. They only warn: the same
model spans a factor of two between published tables, and even boots of one server differ by 15 %.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Literal

from msgspec import field

from sparkwright.base.config import Model, parse_toml
from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.recipes.evidence import load_references
from sparkwright.verify.check import Context
from sparkwright.verify.checks import sweep
from sparkwright.verify.checks.common import Check, conclude
from sparkwright.verify.checks.figures import Figures, figures
from sparkwright.verify.checks.triage import CheckedCells, describe
from sparkwright.verify.profiles import PROFILES

WIDTH = 0.25
_FORMAT = 1


class Reference(Model, frozen=True):
    """Figures of one category at c=1, as the file explains them; absent ones are 0."""

    decode: float = 0
    ttft_ms: float = 0
    tpot_ms: float = 0
    acceptance: float = 0


class Band(Model, frozen=True):
    """Figures of one source for one configuration, as the file explains them; 0 if unknown.

    Attributes:
        key: body/drafter/k/type of the KV cache; a recipe names it.
        k: drafted tokens a step.
        step_ms: time of a verify step at c=1.
        fp8_tokens_per_gib: tokens of an FP8 KV cache a GiB for this body.
    """

    key: str
    title: str
    grade: Literal["A", "A-", "B", "C"]
    source: str
    k: int
    step_ms: float = 0
    least_gb_a_step: float = 0
    fp8_tokens_per_gib: float = 0
    categories: dict[str, Reference] = field(default_factory=dict)


class _BandsFile(Model, frozen=True):
    """All bands, and the bandwidth of the machine."""

    format: Literal[1]
    bandwidth_gb_s: float
    band: tuple[Band, ...]


@functools.cache
def load_bands() -> _BandsFile:
    """Return the bands that ship.

    Raises:
        ConfigError: the file is damaged.
    """
    data = (resources.files("sparkwright.verify.checks") / "bands.toml").read_bytes()
    return parse_toml(data, _BandsFile, newest_format=_FORMAT, name="bands.toml")


def capacity_of(key: str) -> float:
    """Return the tokens per GiB of an FP8 KV cache for the body of the band *key*; 0 if unknown."""
    body = key.partition("/")[0]
    known = (band for band in load_bands().band if band.key.partition("/")[0] == body)
    return next((band.fp8_tokens_per_gib for band in known if band.fp8_tokens_per_gib), 0.0)


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield the sweep's own cells for which there are figures, equal to them and so measured once."""
    if 1 in context.profile.levels and (_compared_bands(context) or _least_gb(context.band)):
        for category in context.profile.categories:
            yield sweep.cell(context, category, 1)


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return a finding on differences from published figures, and one on the bandwidth bound."""
    grid = [(o, figures(o, context.profile.speed)) for o in seen.sound]
    return [_compared(seen, grid, context), *_ceiling(seen, grid, context)]


CHECK = Check("bands", cells, judge)


def _compared_bands(context: Context) -> list[Band]:
    """Return the bands with figures for what is served, or the published rate of its recipe.

    Without speculation a single request's rate does not depend on what it asks, so that one figure holds for
    every category. Only figures of grade A are worth comparing with.
    """
    bands = [band for band in load_bands().band if band.key == context.band and band.categories]
    told = load_references().get(context.band)
    if told is not None and told.grade == "A" and not told.speculative and "c=1" in told.values:
        rates = dict.fromkeys(PROFILES["full"].categories, Reference(decode=told.values["c=1"]))
        title = f"{told.model}, {told.settings}"
        bands.append(Band(told.key, title, told.grade, told.source, k=0, categories=rates))
    return bands


def _compared(seen: CheckedCells, grid: Sequence[tuple[Observation, Figures]], context: Context) -> Finding:
    """Return the comparison with published figures: differences are warnings, missing cells undecided."""
    k = context.main.speculative_tokens
    warnings, sources, compared = [], [], 0
    for band in _compared_bands(context):
        sources.append(f"{band.title} (grade {band.grade}; {band.source})")
        if k not in {-1, band.k}:
            warnings.append(f"not compared: {k} tokens are drafted here, and {band.k} in {band.title}")
            continue
        for observation, found in grid:
            for name, here, there in _pairs(band, observation, found):
                compared += 1
                if abs(here / there - 1) > WIDTH:
                    shown = f"{name} is {here:.1f}, published {there:.1f} ({here / there - 1:+.0%})"
                    warnings.append(f"{describe(observation.cell)}: {shown}")
    nothing = "no reference band is known for what is served"
    return conclude(
        seen,
        "bands.near",
        passed=f"{compared} figures were compared, with {len(warnings)} warnings" if sources else nothing,
        measured={f"source {i}": source for i, source in enumerate(sources, 1)},
        warnings=warnings,
    )


def _pairs(band: Band, observation: Observation, found: Figures) -> Iterator[tuple[str, float, float]]:
    """Yield name, measured and published value of the figures that both have."""
    known, accepted = band.categories.get(observation.cell.tags["category"]), found.acceptance
    if known is not None:
        pairs = [
            ("decode tok/s", found.decode_tok_s, known.decode),
            ("TTFT p50 ms", found.ttft_ms.p50, known.ttft_ms),
            ("TPOT p50 ms", found.tpot_ms.p50, known.tpot_ms),
            ("acceptance %", 100 * accepted.rate if accepted else math.nan, known.acceptance),
            ("verify step ms", found.step_ms, band.step_ms),
        ]
        yield from (pair for pair in pairs if pair[2] > 0 and math.isfinite(pair[1]))


# Memory bandwidth ----------------------------------------------------------------------------------------


def _least_gb(key: str) -> float:
    return next((b.least_gb_a_step for b in load_bands().band if b.key == key and b.least_gb_a_step), 0.0)


def _ceiling(
    seen: CheckedCells, grid: Sequence[tuple[Observation, Figures]], context: Context
) -> list[Finding]:
    """Return the finding on the bandwidth bound: each step reads all weights from memory."""
    least, bandwidth = _least_gb(context.band), load_bands().bandwidth_gb_s
    if not least:
        return []
    steps = bandwidth / least
    against, measured = [], {}
    for observation, found in grid:
        if found.concurrency != 1 or not math.isfinite(found.decode_tok_s):
            continue
        where, mal = describe(observation.cell), found.acceptance.mal if found.acceptance else 1.0
        measured[f"{where} share of the bound"] = round(found.decode_tok_s / (mal * steps), 4)
        if found.decode_tok_s > mal * steps:
            shown = f"{found.decode_tok_s:.0f} tok/s at a mean acceptance length of {mal:.2f}"
            limit = f"the memory bandwidth allows {mal * steps:.0f}"
            against.append((Verdict.INVALID, f"artefact: {where} has {shown}, and {limit}"))
    return [
        conclude(
            seen.where(lambda cell: cell.load.concurrency == 1),
            "bands.ceiling",
            told={"least": least, "bandwidth": bandwidth, "steps": steps},
            against=against,
            passed=f"at most {max(measured.values(), default=0.0):.0%} of the bound",
            measured=dict(measured),
        )
    ]
