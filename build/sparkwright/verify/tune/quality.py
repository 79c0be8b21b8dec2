"""Quality of a configuration's answers, against those of the recipe as it is, by the checks that exist.

Known facts, broken text, tasks with one right answer, and greedy answers with log-probabilities. Greedy
answers may differ where the settings change the arithmetic on purpose, such as the type of the KV cache;
tasks must be solved as well in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks import ALL
from sparkwright.verify.tune.figures import KIND
from sparkwright.verify.tune.space import Configuration
from sparkwright.verify.upgrade.pairs import MatchedCells
from sparkwright.verify.upgrade.quality import judge_quality

QUALITY = "quality"
NUMBER = 100
"""Number of the start at which quality is measured, so that its cells differ from those of speed."""
_ANSWERS = "greedy answers are the same up to near ties"
# Settings that leave the arithmetic of the target model as it is.
_SAME_ARITHMETIC = {
    "method",
    "num-speculative-tokens",
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-model-len",
    "gpu-memory-utilization",
    "enable-prefix-caching",
    "async-scheduling",
}
_BAD = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class JudgedQuality:
    """The outcome of the checks of quality.

    Attributes:
        worse: reason for which answers are worse, or could not be judged; empty if they are as good.
        findings: all conclusions.
        remarks: what differs and is allowed to.
    """

    worse: str
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...] = ()


def quality_cells(context: Context, arm: str) -> tuple[Cell, ...]:
    """Return the cells of quality of the configuration *arm*."""
    return tuple(
        msgspec.structs.replace(cell, arm=arm, boot=NUMBER, tags={**cell.tags, KIND: QUALITY})
        for cell in _planned(context)
    )


def _planned(context: Context) -> list[Cell]:
    cells = [*ALL["coherence"].cells(context), *ALL["lossless"].cells(context)]
    return [cell for cell in cells if cell.arm == "main"]


def judge(
    context: Context,
    configuration: Configuration,
    seen: Sequence[Observation],
    own: Sequence[Observation],
) -> JudgedQuality:
    """Return the quality of *configuration*.

    Args:
        context: sizes and prompts.
        configuration: to judge.
        seen: its observations.
        own: those of the recipe as it is; itself, or none if it could not be measured.
    """
    planned = {(cell.check, cell.name): cell for cell in _planned(context)}
    after, before = (_as_main(planned, these) for these in (seen, own))
    findings: list[Finding] = list(ALL["coherence"].judge(context, list(after.values())))
    keys = tuple(key for key in after if key in before)
    if keys:
        findings += judge_quality(MatchedCells((before,), (after,), keys, 0, context.profile.speed))
    same = set(configuration.settings) <= _SAME_ARITHMETIC
    bad, remarks = [], []
    for finding in findings:
        if finding.verdict not in _BAD:
            continue
        if finding.name == _ANSWERS and not same:
            remarks.append(f"{finding.cause} (its settings change the arithmetic)")
        else:
            bad.append(f"{finding.name}: {finding.verdict}: {finding.cause}")
    return JudgedQuality(bad[0] if bad else "", tuple(findings), tuple(remarks))


def _as_main(planned: Mapping[tuple[str, str], Cell], seen: Sequence[Observation]) -> dict[str, Observation]:
    """Return *seen* as observations of a single server's cells, by key."""
    found = {}
    for one in seen:
        cell = planned[one.cell.check, one.cell.name]
        found[cell.key] = msgspec.structs.replace(one, cell=cell)
    return found
