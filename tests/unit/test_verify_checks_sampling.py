"""Sampled chats are judged by the seed, by the temperature and by their text."""

from __future__ import annotations

import msgspec
import pytest
from chat_kit import observe
from simulator_kit import settings
from verify_kit import context

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.checks import ALL

ONE, OTHERS, TEXT = "a seed gives one answer", "sampling draws", "sampled answers are text"


@pytest.mark.parametrize(
    ("parted", "at", "verdict"),
    [(2, 30, Verdict.PASS), (5, 30, Verdict.INCONCLUSIVE), (5, 1, Verdict.FAIL)],
)
def test_answers_that_rounding_parts_late_are_not_called_ignored_seeds(
    parted: int, at: int, verdict: Verdict
) -> None:
    finding = _with_changed_answers(parted, at)
    assert finding.verdict is verdict, finding.cause
    assert bool(finding.warnings) is (verdict is Verdict.PASS)


def _with_changed_answers(parted: int, at: int) -> Finding:
    """Return the finding on one seed; *parted* answers to its second request differ from token *at* on."""
    check, to, server = ALL["sampling"], context(), settings(k=0)
    seen: list[Observation] = []
    for cell in check.cells(to):
        found = observe(cell, server)
        if cell.name == "seed A again":
            changed = [
                msgspec.structs.replace(s, text=s.text + "!", token_ids=(*s.token_ids[:at], *[7] * 9))
                for s in found.samples[:parted]
            ]
            found = msgspec.structs.replace(found, samples=(*changed, *found.samples[parted:]))
        seen.append(found)
    return next(finding for finding in check.judge(to, seen) if finding.name == ONE)
