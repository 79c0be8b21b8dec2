"""Sampled chats are judged by the seed, by the temperature and by their text."""

from __future__ import annotations

import re

import msgspec
import pytest
from chat_kit import judged, observe
from simulator_kit import settings
from verify_kit import SEEDS, context, profile, verdicts

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.checks.sampling import Sampling

ONE, OTHERS, TEXT = "a seed gives one answer", "sampling draws", "sampled answers are text"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_server_passes_whatever_it_draws(seed: int) -> None:
    sizes = msgspec.structs.replace(profile(), seed=seed)
    findings = judged(Sampling(), context(sizes), seed=seed, k=0)
    assert not verdicts(findings)
    assert set(findings) == {ONE, OTHERS, TEXT}
    assert not [warning for finding in findings.values() for warning in finding.warnings]


@pytest.mark.parametrize(
    ("fault", "name", "says"),
    [
        ("temperature-ignored", OTHERS, "the temperature is ignored: 6 of 6"),
        ("seed-fixed", OTHERS, "the seed is ignored: 6 of 6 prompts have the same answer to two seeds"),
        ("seed-ignored", ONE, "the seed is ignored: 0 of 6"),
        ("sampling-garbage", TEXT, "loaded: 6 of 6 answers.*garbage"),
    ],
)
def test_each_fault_fails_the_finding_that_it_is_about(fault: str, name: str, says: str) -> None:
    findings = judged(Sampling(), context(), fault, k=0)
    assert findings[name].verdict is Verdict.FAIL
    assert re.search(says, findings[name].cause), findings[name].cause


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
    check, to, server = Sampling(), context(), settings(k=0)
    seen: list[Observation] = []
    for cell in check.plan(to):
        found = observe(cell, server)
        if cell.name == "seed A again":
            changed = [
                msgspec.structs.replace(s, text=s.text + "!", token_ids=(*s.token_ids[:at], *[7] * 9))
                for s in found.samples[:parted]
            ]
            found = msgspec.structs.replace(found, samples=(*changed, *found.samples[parted:]))
        seen.append(found)
    return next(finding for finding in check.judge(to, seen) if finding.name == ONE)
