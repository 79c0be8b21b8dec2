"""Verdicts of `tests/gpu/draft_kv.py` on the results of a case. The engine itself needs a GPU."""

from typing import Any

import draft_kv
import pytest

GOOD = {"positions": 320, "never_written": 0, "wrong": 0, "worst": 0.02, "first": []}
HARMED = GOOD | {"never_written": 12}
HEALTHY: dict[str, dict[str, Any]] = {
    "alone": {"cached_tokens": 0, "preempted": 0, "restored": GOOD | {"positions": 0}},
    "shared": {"cached_tokens": 96, "preempted": 0, "restored": GOOD},
    "crowded": {"cached_tokens": 0, "preempted": 2, "restored": GOOD | {"positions": 0}},
    "at-the-end": {"cached_tokens": 96, "preempted": 0, "restored": GOOD},
    "planted": {"cached_tokens": 96, "preempted": 0, "restored": HARMED, "draft": HARMED},
}


def line(case: str, run: str = "v2-eager", **fields: Any) -> dict[str, Any]:
    """Return the record of a healthy engine for *case*, but for *fields*."""
    common = {"run": run, "case": case, "fault": None, "drafted": 90, "draft": GOOD, "target": GOOD}
    return common | HEALTHY[case] | fields


def failed(found: dict[str, Any], *carries: str) -> list[str]:
    """Names of the checks that fail."""
    return [check.name for check in draft_kv.case_checks(found, list(carries)) if not check.ok]


@pytest.mark.parametrize("case", draft_kv.CASES)
def test_a_healthy_case_passes(case: str) -> None:
    assert failed(line(case)) == []


@pytest.mark.parametrize("case", ["alone", "shared", "crowded", "at-the-end"])
@pytest.mark.parametrize("kind", ["never_written", "wrong"])
def test_one_bad_position_of_the_drafter_fails(case: str, kind: str) -> None:
    assert failed(line(case, draft=GOOD | {kind: 1})) == [f"{case}: drafter's blocks are right"]


def test_a_planted_fault_must_be_found() -> None:
    assert failed(line("planted", draft=GOOD)) == ["planted: drafter's blocks are harmed"]


@pytest.mark.parametrize(
    ("run", "carries", "draft", "fails"),
    [
        ("v1-eager", [], HARMED, False),
        ("v1-eager", [], GOOD, True),
        ("v1-graphs", [draft_kv.STORE_CARRY], GOOD, False),
        ("v1-graphs", [draft_kv.STORE_CARRY], HARMED, True),
        ("v2-eager", [], HARMED, True),
    ],
)
def test_only_v1_without_the_carry_may_lack_context_beside_a_long_request(run, carries, draft, *, fails):
    assert bool(failed(line("at-the-end", run, draft=draft), *carries)) == fails


@pytest.mark.parametrize("case", draft_kv.CASES)
def test_a_difference_in_the_target_fails(case: str) -> None:
    assert failed(line(case, target=GOOD | {"wrong": 1})) == [f"{case}: target's blocks"]


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("alone", {"cached_tokens": 16}),
        ("shared", {"cached_tokens": 0}),
        ("shared", {"drafted": 0}),
        ("crowded", {"preempted": 0}),
        ("at-the-end", {"restored": GOOD | {"positions": 0}}),
    ],
)
def test_a_case_must_be_what_it_is_there_for(case: str, fields: dict[str, Any]) -> None:
    assert failed(line(case, **fields)) == [f"{case}: took place"]


def test_nothing_compared_is_no_pass() -> None:
    nothing = GOOD | {"positions": 0}
    assert len(failed(line("alone", draft=nothing, target=nothing))) == 2


def test_a_fault_of_the_engine_is_told() -> None:
    (check,) = draft_kv.case_checks(line("shared", fault="TimeoutError('not done')"), [])
    assert (check.ok, check.detail) == (False, "TimeoutError('not done')")
