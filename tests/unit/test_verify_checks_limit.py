"""Requests of full length are judged by their tokens and answers, and longer ones by their refusal."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from chat_kit import judged, observe
from simulator_kit import settings
from verify_kit import SEEDS, boot_facts, context, profile, verdicts

from sparkwright.engine.capabilities import PREFIX_CACHE
from sparkwright.engine.cell import REFUSED, Cell
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import FailureKind, Observation, RequestFailure
from sparkwright.verify.check import Context
from sparkwright.verify.checks.limit import Limit

FULL, LONGER = "requests of full length are answered", "longer requests are refused"
LONGEST = 4096


def of_length(longest: int = LONGEST, **changes: Any) -> Context:
    return context(changes.pop("sizes", None), boot_facts(max_model_len=longest), **changes)


def measured(longest: int, *faults: str, **changes: Any) -> tuple[Context, list[Observation]]:
    """Return the observations of all cells on a server with this longest request."""
    check, to, server = Limit(), of_length(longest, **changes), settings(*faults, max_model_len=longest, k=0)
    seen = [observe(cell, server) for cell in check.plan(to)]
    while more := check.extend(to, seen):
        seen += [observe(cell, server) for cell in more]
    return to, seen


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_a_healthy_server_passes_whatever_it_draws(seed: int) -> None:
    sizes = msgspec.structs.replace(profile(), seed=seed)
    findings = judged(Limit(), of_length(sizes=sizes), seed=seed, max_model_len=LONGEST, k=0)
    assert not verdicts(findings)
    assert findings[LONGER].cause == "2 requests were refused"
    assert not [warning for finding in findings.values() for warning in finding.warnings]


@pytest.mark.parametrize("longest", [2048, 3001, 4096])
def test_the_longest_request_is_filled_to_its_last_token(longest: int) -> None:
    _, seen = measured(longest)
    (full,) = [o for o in seen if o.cell.tags["kind"] == "limit"]
    assert [s.prompt_tokens + s.output_tokens for s in full.samples] == [longest, longest]
    assert [s.finish_reason for s in full.samples] == ["length", "length"]


@pytest.mark.parametrize(("lacks", "growing"), [({}, 2), ({PREFIX_CACHE: "off"}, 0)])
def test_prompts_grow_where_the_cache_keeps_their_beginning(lacks: dict[str, str], growing: int) -> None:
    to, seen = measured(4096)
    to = of_length(80_000, lacks=lacks)
    cells = Limit().extend(to, seen[:2])
    assert [cell.tags["kind"] for cell in cells] == ["growing"] * growing + ["limit", "beyond"]
    assert [cell.name for cell in cells if REFUSED in cell.tags] == ["beyond the limit"]


@pytest.mark.parametrize(
    ("fault", "name", "says"),
    [
        ("truncates-prompts", LONGER, "answered instead of refused.*takes 3840 of them and says nothing"),
        ("truncates-prompts", FULL, "at the limit: 3840 tokens of a prompt of 39.. were read"),
        ("limit-wrong", FULL, "at the limit: the answer to the last line is wrong"),
    ],
)
def test_each_fault_fails_and_is_named(fault: str, name: str, says: str) -> None:
    findings = judged(Limit(), of_length(), fault, max_model_len=LONGEST, k=0)
    assert findings[name].verdict is Verdict.FAIL
    assert re.search(says, findings[name].cause), findings[name].cause


@pytest.mark.parametrize(
    ("status", "verdict"), [(413, Verdict.PASS), (500, Verdict.FAIL), (None, Verdict.FAIL)]
)
def test_refusals_are_of_the_clients_fault(status: int | None, verdict: Verdict) -> None:
    to, seen = measured(LONGEST)
    failure = RequestFailure(
        kind=FailureKind.STATUS if status else FailureKind.RESET, detail="no", status=status or 0
    )

    def changed(found: Observation) -> Observation:
        if REFUSED not in found.cell.tags:
            return found
        samples = tuple(msgspec.structs.replace(s, failure=failure) for s in found.samples)
        return msgspec.structs.replace(found, samples=samples)

    findings = {one.name: one for one in Limit().judge(to, [changed(found) for found in seen])}
    assert findings[LONGER].verdict is verdict, findings[LONGER].cause
    assert findings[FULL].verdict is Verdict.PASS


def test_a_model_that_finds_no_code_anywhere_cannot_be_tested() -> None:
    to, seen = measured(LONGEST)
    blind = [
        msgspec.structs.replace(
            found, samples=tuple(msgspec.structs.replace(s, text="Hm.") for s in found.samples)
        )
        for found in seen
    ]
    findings = {one.name: one for one in Limit().judge(to, blind)}
    assert findings[FULL].verdict is Verdict.INCONCLUSIVE
    assert "cannot be tested so" in findings[FULL].cause


def test_cells_that_are_missing_never_pass() -> None:
    to, seen = measured(LONGEST)
    assert {one.verdict for one in Limit().judge(to, seen[:2])} == {Verdict.INCONCLUSIVE}
    assert {one.verdict for one in Limit().judge(to, [])} == {Verdict.INCONCLUSIVE}


@pytest.mark.parametrize("to", [of_length(1024), of_length(-1)])
def test_an_unknown_limit_is_not_judged(to: Context) -> None:
    cells: tuple[Cell, ...] = Limit().plan(to)
    assert cells == ()
    assert {one.verdict for one in Limit().judge(to, [])} == {Verdict.NOT_APPLICABLE}
