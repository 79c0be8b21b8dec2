"""The figures and words of a report: those that checks judge by, of cells and of the whole run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from sparkwright.base.text import clean, plural
from sparkwright.engine.findings import Verdict
from sparkwright.engine.metrics.counters import hit_rate
from sparkwright.engine.observations import Observation
from sparkwright.verify.checks.figures import DECAYS, INERT_CAUSE, Figures, figures
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.checks.triage import troubles
from sparkwright.verify.journal import Run
from sparkwright.verify.statistics import summary


@dataclass(frozen=True, kw_only=True)
class CellFigures(Figures):
    """The figures of one cell as checks see them, all NaN if no request counted, and their surroundings.

    Attributes:
        hit_rate: share of prompt tokens that came from the prefix cache.
        trouble: the reasons not to trust its figures; empty if there are none.
    """

    observation: Observation
    key: str
    hit_rate: float
    trouble: tuple[str, ...]

    @property
    def mal(self) -> float:
        """Mean acceptance length, in tokens a step."""
        return self.acceptance.mal if self.acceptance else math.nan

    @property
    def tok_s(self) -> float:
        """Output of all requests together: at full load where there was one, else over the whole cell."""
        return self.steady_tok_s if math.isfinite(self.steady_tok_s) else self.whole_tok_s


def cells(run: Run) -> tuple[CellFigures, ...]:
    """Return the figures of every cell, in order."""
    return tuple(_cell(observation, run.speed) for observation in run.observations)


def _cell(observation: Observation, speed: float) -> CellFigures:
    bare, hits = msgspec.structs.replace(observation, before=None, after=None), math.nan
    try:
        found = figures(observation if observation.counted else bare, speed)
    except ValueError:  # counters that restarted are of no use; the client's times still are
        found = figures(bare, speed)
    if observation.before is not None and observation.after is not None:
        with contextlib.suppress(ValueError):
            hits = hit_rate(observation.before, observation.after)
    return CellFigures(
        **vars(found),
        observation=observation,
        key=observation.cell.key,
        hit_rate=hits,
        trouble=tuple(trouble.cause for trouble in troubles(observation)),
    )


MINUS, NOTHING = "\N{MINUS SIGN}", "\N{EN DASH}"

SYMBOLS = {
    Verdict.PASS: "✓",
    Verdict.NOT_APPLICABLE: NOTHING,
    Verdict.INCONCLUSIVE: "?",
    Verdict.INVALID: "⊘",
    Verdict.FAIL: "✗",
}
WORDS = {
    Verdict.PASS: "Passed",
    Verdict.NOT_APPLICABLE: "Not applicable",
    Verdict.INCONCLUSIVE: "Inconclusive",
    Verdict.INVALID: "Invalid",
    Verdict.FAIL: "Failed",
}

_SIGNIFICANT = 3


def number(value: float | None) -> str:
    """Return *value* with three significant digits, or a dash where there is none."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if value == int(value) and abs(value) < 1e15:  # noqa: PLR2004 - beyond, digits are no longer exact
        return f"{int(value):,}".replace("-", MINUS)
    if abs(value) >= 100:  # noqa: PLR2004 - three digits before the point
        return f"{value:,.0f}".replace("-", MINUS)
    if abs(value) < 1e-4:  # noqa: PLR2004
        return f"{value:.2e}".replace("-", MINUS)
    digits = max(0, _SIGNIFICANT - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}".replace("-", MINUS)


def figure(value: float | str) -> str:
    """Return one entry of a finding's ``measured``."""
    return clean(value) if isinstance(value, str) else number(value)


def share(value: float) -> str:
    """Return 0.25 as ``25 %``, to a tenth."""
    return f"{value * 100 + 0.0:.1f}".removesuffix(".0") + " %" if math.isfinite(value) else NOTHING


# Words and figures --------------------------------------------------------------------------------------


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
        disturbed: reasons for which these figures are not the usual ones, see `checks.machine`.
    """

    concurrency: int
    tok_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    tpot_p95_ms: float = math.nan
    acceptance: float = math.nan
    disturbed: tuple[str, ...] = ()


def levels(found: Sequence[CellFigures], speed: float) -> list[Level]:
    """Return the speed by concurrency, of the sweep's cells that count."""
    return [level_of(concurrency, of, speed) for concurrency, of in swept(found).items()]


def swept(found: Sequence[CellFigures]) -> dict[int, list[CellFigures]]:
    """Return the sweep's cells that count by their concurrency, which ascends."""
    cells_of: dict[int, list[CellFigures]] = {}
    for cell in sorted(found, key=lambda one: one.concurrency):
        place = (cell.observation.cell.check, cell.observation.cell.arm)
        if cell.observation.counted and not cell.trouble and place == ("sweep", "main"):
            cells_of.setdefault(cell.concurrency, []).append(cell)
    return cells_of


def level_of(concurrency: int, of: Sequence[CellFigures], speed: float) -> Level:
    """Return the speed of cells of one concurrency, which count."""
    samples = [sample for cell in of for sample in cell.observation.counted]
    first = summary([sample.ttft_ms * speed for sample in samples])
    each = [sample.tpot_ms * speed for sample in samples if sample.output_tokens > 1]
    tpot = summary(each) if each else None
    return Level(
        concurrency,
        fmean(cell.tok_s for cell in of),
        first.p50,
        first.p95,
        tpot.p50 if tpot else math.nan,
        tpot.p95 if tpot else math.nan,
        _mean([cell.mal for cell in of]),
        tuple(dict.fromkeys(why for cell in of for why in disturbances(cell.observation))),
    )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan


def level_table(found: Sequence[Level]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and rows of the table of speed by concurrency; a star marks a disturbed machine."""
    if not found:
        return (), []
    drafted = any(math.isfinite(one.acceptance) for one in found)
    marked = any(one.disturbed for one in found)
    rows = [
        (
            str(one.concurrency),
            *map(number, (one.tok_s, one.ttft_p50_ms, one.ttft_p95_ms, one.tpot_p50_ms, one.tpot_p95_ms)),
            *([number(one.acceptance)] if drafted else []),
            *([STAR if one.disturbed else ""] if marked else []),
        )
        for one in found
    ]
    heads = ("c", "tok/s", "TTFT p50 ms", "TTFT p95 ms", "TPOT p50 ms", "TPOT p95 ms")
    return (*heads, *(["tokens/step"] * drafted), *(["marked"] * marked)), rows


def disturbed_levels(found: Sequence[Level]) -> list[str]:
    """Return a line for each concurrency whose figures are not the usual ones, with the first reason."""
    return [
        f"{STAR} c={one.concurrency}: {one.disturbed[0]}; not comparable" for one in found if one.disturbed
    ]


# Names of a comparison's measurements; unknown ones are words.
_RATIO, _LOW, _HIGH = "speed over the baseline's", "low", "high"
COMPARISON_COLUMNS = ("comparison", "ratio", "low", "high", "verdict")


def comparison_rows(run: Run) -> list[tuple[str, ...]]:
    """Return the intervals of a comparison as its findings hold them; a bound that is missing has a dash."""
    return [
        (
            one.name,
            *(figure(one.measured.get(name, math.nan)) for name in (_RATIO, _LOW, _HIGH)),
            one.verdict.value,
        )
        for one in run.findings
        if one.check == "compare" and _RATIO in one.measured
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
