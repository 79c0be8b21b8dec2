"""Requests of full length are judged by their tokens and answers, and longer ones by their refusal."""

from typing import Any

import pytest
from chat_kit import observe
from simulator_kit import settings
from verify_kit import boot_facts, by_name, context, every, follow

from sparkwright.engine.cell import REFUSED, Cell
from sparkwright.engine.findings import PREFIX_CACHE, Verdict
from sparkwright.engine.observations import FailureKind, Observation, RequestFailure
from sparkwright.verify.check import Context
from sparkwright.verify.checks import ALL

FULL, LONGER = "requests of full length are answered", "longer requests are refused"
LONGEST = 4096


def of_length(longest: int = LONGEST, **changes: Any) -> Context:
    return context(changes.pop("sizes", None), boot_facts(max_model_len=longest), **changes)


def measured(longest: int, *faults: str, **changes: Any) -> tuple[Context, list[Observation]]:
    """Return the observations of all cells on a server with this longest request."""
    check, to, server = (
        ALL["limit"],
        of_length(longest, **changes),
        settings(*faults, max_model_len=longest, k=0),
    )
    return to, follow(check, to, lambda cell: observe(cell, server))


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
    cells = ALL["limit"].cells(to, seen[:2])[2:]
    assert [cell.tags["kind"] for cell in cells] == ["growing"] * growing + ["limit", "beyond"]
    assert [cell.name for cell in cells if REFUSED in cell.tags] == ["beyond the limit"]


@pytest.mark.parametrize(
    ("status", "verdict"), [(413, Verdict.PASS), (500, Verdict.FAIL), (None, Verdict.FAIL)]
)
def test_refusals_are_of_the_clients_fault(status: int | None, verdict: Verdict) -> None:
    to, seen = measured(LONGEST)
    failure = RequestFailure(
        kind=FailureKind.STATUS if status else FailureKind.RESET, detail="no", status=status or 0
    )

    changed = [every(one, failure=failure) if REFUSED in one.cell.tags else one for one in seen]
    findings = by_name(ALL["limit"].judge(to, changed))
    assert findings[LONGER].verdict is verdict, findings[LONGER].cause
    assert findings[FULL].verdict is Verdict.PASS


def test_a_model_that_finds_no_code_anywhere_cannot_be_tested() -> None:
    to, seen = measured(LONGEST)
    found = by_name(ALL["limit"].judge(to, [every(one, text="Hm.") for one in seen]))[FULL]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "cannot be tested so" in found.cause


def test_a_prompt_that_is_cut_short_is_none_of_full_length() -> None:
    to, seen = measured(LONGEST, "truncates-prompts")
    found = by_name(ALL["limit"].judge(to, seen))[FULL]
    assert found.verdict is Verdict.FAIL
    assert "3840 tokens of a prompt of 39" in found.cause


@pytest.mark.parametrize("to", [of_length(1024), of_length(-1)])
def test_an_unknown_limit_is_not_judged(to: Context) -> None:
    cells: tuple[Cell, ...] = ALL["limit"].cells(to)
    assert cells == ()
    assert {one.verdict for one in ALL["limit"].judge(to, [])} == {Verdict.NOT_APPLICABLE}
