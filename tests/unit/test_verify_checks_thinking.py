"""Reasoning is judged where it is off, where it is on, and within a budget."""

from __future__ import annotations

import msgspec
import pytest
from chat_kit import judged, observe
from simulator_kit import settings
from verify_kit import SEEDS, context, profile, verdicts

from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import FailureKind, RequestFailure, Sample
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.thinking import BUDGET, SLACK, thought_tokens

OFF, ON, WITHIN = "no reasoning where it is off", "reasoning has its field", "reasoning keeps its budget"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_server_passes_whatever_it_draws(seed: int) -> None:
    sizes = msgspec.structs.replace(profile(), seed=seed)
    findings = judged(ALL["thinking"], context(sizes), seed=seed, reasoning=True)
    assert not verdicts(findings)
    assert {finding.verdict for finding in findings.values()} == {Verdict.PASS}
    assert set(findings) == {OFF, ON, WITHIN}
    assert 1 <= int(findings[WITHIN].measured["tokens with a budget"]) <= BUDGET
    assert int(findings[WITHIN].measured["tokens without"]) > BUDGET + SLACK


def test_a_model_that_does_not_think_is_not_judged() -> None:
    findings = judged(ALL["thinking"], context())
    assert {finding.verdict for finding in findings.values()} == {Verdict.NOT_APPLICABLE}
    assert "the model does not think" in findings[ON].cause


def test_line_breaks_around_empty_reasoning_are_no_reasoning() -> None:
    check, to, server = ALL["thinking"], context(), settings(reasoning=True)
    seen = []
    for cell in check.cells(to):
        found = observe(cell, server)
        if cell.tags["kind"] == "off":
            padded = tuple(
                msgspec.structs.replace(s, text=f"\n\n{s.text}", reasoning_chars=2) for s in found.samples
            )
            found = msgspec.structs.replace(found, samples=padded)
        seen.append(found)
    assert {one.verdict for one in check.judge(to, seen)} == {Verdict.PASS}


@pytest.mark.parametrize("kind", ["off", "on"])
def test_empty_answers_are_no_answers(kind: str) -> None:
    check, to, server = ALL["thinking"], context(), settings(reasoning=True)
    seen = []
    for cell in check.cells(to):
        found = observe(cell, server)
        if cell.tags["kind"] == kind:
            empty = tuple(msgspec.structs.replace(s, text="", reasoning_chars=0) for s in found.samples)
            found = msgspec.structs.replace(found, samples=empty)
        seen.append(found)
    name, says = (OFF, "no answer in") if kind == "off" else (ON, "they are empty")
    finding = {one.name: one for one in check.judge(to, seen)}[name]
    assert finding.verdict is Verdict.FAIL
    assert says in finding.cause


def test_a_template_without_a_switch_may_think_always() -> None:
    check, to = ALL["thinking"], context()
    seen = []
    for cell in check.cells(to):
        found = observe(cell, settings("thinking-not-off", reasoning=True))
        alike = tuple(msgspec.structs.replace(s, prompt_tokens=50) for s in found.samples)
        seen.append(msgspec.structs.replace(found, samples=alike))
    findings = {finding.name: finding for finding in check.judge(to, seen)}
    assert findings[OFF].verdict is Verdict.NOT_APPLICABLE
    assert findings[ON].verdict is findings[WITHIN].verdict is Verdict.PASS


@pytest.mark.parametrize(("status", "verdict"), [(400, Verdict.NOT_APPLICABLE), (500, Verdict.FAIL)])
def test_a_budget_that_is_refused_is_not_judged_and_one_that_breaks_the_server_is(
    status: int, verdict: Verdict
) -> None:
    check, to, server = ALL["thinking"], context(), settings(reasoning=True)
    seen = []
    for cell in check.cells(to):
        found = observe(cell, server)
        if cell.tags["kind"] == "budget":
            failure = RequestFailure(kind=FailureKind.STATUS, detail="no such limit", status=status)
            failed = tuple(msgspec.structs.replace(s, failure=failure, chunks=()) for s in found.samples)
            found = msgspec.structs.replace(found, samples=failed)
        seen.append(found)
    findings = {finding.name: finding for finding in check.judge(to, seen)}
    assert findings[WITHIN].verdict is verdict
    assert findings[ON].verdict is Verdict.PASS


def test_reasoning_without_token_ids_is_measured_by_its_characters() -> None:
    sample = Sample(
        prompt="p", category="c", started=0, ended=1, text="abcdefgh", reasoning_chars=6, output_tokens=100
    )
    assert thought_tokens(sample) == 75
