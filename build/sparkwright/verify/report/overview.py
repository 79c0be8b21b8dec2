"""The head of a report: the verdict in one sentence, and the figures that people compare."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from sparkwright.base.text import clean
from sparkwright.engine.findings import Verdict
from sparkwright.verify.checks.acceptance import DECAYS, INERT_CAUSE
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.checks.triage import troubles
from sparkwright.verify.report.figures import CellFigures
from sparkwright.verify.report.text import number, plural
from sparkwright.verify.run import Run
from sparkwright.verify.statistics import summary

# The manifest's entries that have places of their own on the page.
_SHOWN_ELSEWHERE = {"files", "report"}

STAR = "*"
_OUTCOMES = {
    Verdict.FAIL: "failed",
    Verdict.INVALID: "cannot be trusted",
    Verdict.INCONCLUSIVE: "undecided",
    Verdict.PASS: "passed",
    Verdict.NOT_APPLICABLE: "not applicable",
}


class Level(NamedTuple):
    """Speed at one concurrency, over all categories of the sweep; unknown figures are NaN.

    Attributes:
        tok_s: output of all requests together, mean of the categories: at full load where there was one, else
            over the whole cell.
        ttft_p50_ms: time to the first token, over all requests.
        acceptance: mean acceptance length in tokens a step, mean of the categories.
        energy_j: that the card drew for each generated token.
        disturbed: reasons for which these figures are not the usual ones, see `checks.machine`.
    """

    concurrency: int
    tok_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    tpot_p95_ms: float = math.nan
    acceptance: float = math.nan
    energy_j: float = math.nan
    disturbed: tuple[str, ...] = ()


def levels(found: Sequence[CellFigures], speed: float) -> list[Level]:
    """Return the speed by concurrency, of the sweep's cells that count."""
    counting = (cell for cell in found if cell.observation.counted and not cell.trouble)
    swept = [cell for cell in counting if cell.observation.cell.check == "sweep"]
    by_level = {
        c: [cell for cell in swept if cell.concurrency == c] for c in {one.concurrency for one in swept}
    }
    return [_level(concurrency, of, speed) for concurrency, of in sorted(by_level.items())]


def _level(concurrency: int, of: Sequence[CellFigures], speed: float) -> Level:
    rates = [cell.steady_tok_s if math.isfinite(cell.steady_tok_s) else cell.whole_tok_s for cell in of]
    samples = [sample for cell in of for sample in cell.observation.counted]
    first = summary([sample.ttft_ms * speed for sample in samples])
    each = [sample.tpot_ms * speed for sample in samples if sample.output_tokens > 1]
    tpot = summary(each) if each else None
    return Level(
        concurrency,
        fmean(rates),
        first.p50,
        first.p95,
        tpot.p50 if tpot else math.nan,
        tpot.p95 if tpot else math.nan,
        _mean([cell.mal for cell in of]),
        _mean([cell.energy_j for cell in of]),
        tuple(dict.fromkeys(why for cell in of for why in disturbances(cell.observation))),
    )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan


LEVEL_COLUMNS = ("c", "tok/s", "TTFT p50 ms", "TTFT p95 ms", "TPOT p50 ms", "TPOT p95 ms")
"""Heads of `level_table`; acceptance and energy follow where they are known."""


def level_table(found: Sequence[Level]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and rows of the table of speed by concurrency; a star marks a disturbed machine."""
    if not found:
        return (), []
    more = [
        (head, name)
        for head, name in (("tokens/step", "acceptance"), ("J/token", "energy_j"))
        if any(math.isfinite(getattr(one, name)) for one in found)
    ]
    rows = [
        (
            str(one.concurrency),
            *map(number, (one.tok_s, one.ttft_p50_ms, one.ttft_p95_ms, one.tpot_p50_ms, one.tpot_p95_ms)),
            *(number(getattr(one, name)) for _, name in more),
            *([STAR] if one.disturbed else [""] if any(other.disturbed for other in found) else []),
        )
        for one in found
    ]
    marked = any(one.disturbed for one in found)
    return (*LEVEL_COLUMNS, *(head for head, _ in more), *(["marked"] if marked else [])), rows


def disturbed_levels(found: Sequence[Level]) -> list[str]:
    """Return a line for each concurrency whose figures are not the usual ones, with the first reason."""
    return [
        f"{STAR} c={one.concurrency}: {one.disturbed[0]}; not comparable" for one in found if one.disturbed
    ]


def consequences(run: Run) -> set[int]:
    """Return the places of findings that only follow from what failed or cannot be trusted.

    Undecided ones of which a cell was not measured or was spoilt, where another finding tells why; and what
    checks conclude from a broken drafter, but for the first that tells of it.
    """
    told = any(one.verdict in {Verdict.FAIL, Verdict.INVALID} for one in run.findings)
    if not told:
        return set()
    broken = [place for place, one in enumerate(run.findings) if one.cause.startswith((INERT_CAUSE, DECAYS))]
    undrafted = {run.findings[place].check for place in broken}
    sound = {seen.cell.key for seen in run.observations if not troubles(seen)}
    return {
        *broken[1:],
        *(
            place
            for place, one in enumerate(run.findings)
            if one.verdict is Verdict.INCONCLUSIVE
            and (one.check in undrafted or any(key not in sound for key in one.evidence))
        ),
    }


def headline(run: Run) -> str:
    """Return the number of conclusions by verdict, worst first, and of warnings, in one sentence."""
    counts = {verdict: sum(f.verdict is verdict for f in run.findings) for verdict in _OUTCOMES}
    if not run.findings:
        return "Nothing was concluded."
    total = plural(len(run.findings), "conclusion")
    warnings = sum(len(finding.warnings) for finding in run.findings)
    also = f", with {plural(warnings, 'warning')}" if warnings else ""
    if counts[Verdict.PASS] == len(run.findings):
        return f"{total}, all passed{also}."
    parts = [f"{count} {_OUTCOMES[verdict]}" for verdict, count in counts.items() if count]
    return f"{total}: {', '.join(parts)}{also}."


def flat(manifest: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield entries of a manifest with nested names joined, in their order, without its files."""
    for name, value in manifest.items():
        if not prefix and name in _SHOWN_ELSEWHERE:
            continue
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name} ")
        elif isinstance(value, list | tuple):
            yield clean(f"{prefix}{name}"), clean(", ".join(map(str, value)))
        else:
            yield clean(f"{prefix}{name}"), clean(str(value))
