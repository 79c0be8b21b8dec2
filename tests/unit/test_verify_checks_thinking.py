"""Reasoning is judged where it is off, where it is on, and within a budget."""

from collections.abc import Callable

import pytest
from chat_kit import judged, judged_with
from msgspec.structs import replace
from simulator_kit import settings
from verify_kit import context

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import FailureKind, RequestFailure, Sample
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.thinking import BUDGET, SLACK, thought_tokens

OFF, ON, WITHIN = "no reasoning where it is off", "reasoning has its field", "reasoning keeps its budget"


def test_a_healthy_server_thinks_within_its_budget_and_beyond_it_without() -> None:
    findings = judged(ALL["thinking"], context(), reasoning=True)
    assert set(findings) == {OFF, ON, WITHIN}
    assert 1 <= int(findings[WITHIN].measured["tokens with a budget"]) <= BUDGET
    assert int(findings[WITHIN].measured["tokens without"]) > BUDGET + SLACK


def test_a_model_that_does_not_think_is_not_judged() -> None:
    findings = judged(ALL["thinking"], context())
    assert {finding.verdict for finding in findings.values()} == {Verdict.NOT_APPLICABLE}
    assert "the model does not think" in findings[ON].cause


def told(change: Callable[[Sample], Sample], kind: str = "", *faults: str) -> dict[str, Finding]:
    return judged_with(ALL["thinking"], context(), settings(*faults, reasoning=True), change, kind)


def test_line_breaks_around_empty_reasoning_are_no_reasoning() -> None:
    findings = told(lambda one: replace(one, text=f"\n\n{one.text}", reasoning_chars=2), "off")
    assert {one.verdict for one in findings.values()} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("kind", "name", "says"), [("off", OFF, "no answer in"), ("on", ON, "they are empty")]
)
def test_empty_answers_are_no_answers(kind: str, name: str, says: str) -> None:
    finding = told(lambda one: replace(one, text="", reasoning_chars=0), kind)[name]
    assert finding.verdict is Verdict.FAIL
    assert says in finding.cause


def test_a_template_without_a_switch_may_think_always() -> None:
    findings = told(lambda one: replace(one, prompt_tokens=50), "", "thinking-not-off")
    assert findings[OFF].verdict is Verdict.NOT_APPLICABLE
    assert findings[ON].verdict is findings[WITHIN].verdict is Verdict.PASS


@pytest.mark.parametrize(("status", "verdict"), [(400, Verdict.NOT_APPLICABLE), (500, Verdict.FAIL)])
def test_a_budget_that_is_refused_is_not_judged_and_one_that_breaks_the_server_is(status, verdict):
    failure = RequestFailure(kind=FailureKind.STATUS, detail="no such limit", status=status)
    findings = told(lambda one: replace(one, failure=failure, chunks=()), "budget")
    assert findings[WITHIN].verdict is verdict
    assert findings[ON].verdict is Verdict.PASS


def test_reasoning_without_token_ids_is_measured_by_its_characters() -> None:
    sample = Sample(
        prompt="p", category="c", started=0, ended=1, text="abcdefgh", reasoning_chars=6, output_tokens=100
    )
    assert thought_tokens(sample) == 75
