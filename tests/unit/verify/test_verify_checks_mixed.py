"""Decoding beside prefill is judged by the longest gap and by the numbers that answers leave out."""

import re

import pytest
from msgspec.structs import replace
from verify_kit import Server, boot_facts, context

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Chunk, Observation, Sample
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.mixed import COUNTED, DECODERS, LONG_TOKENS, PROMPTS, missing

GAPS, LOST = "decoding goes on beside prefill", "no token is lost beside prefill"
S = 1_000_000_000
STEP_S = 0.1


def counting(first: int, without: frozenset[int] = frozenset()) -> str:
    return ", ".join(str(n) for n in range(first, first + COUNTED) if n not in without)


def sample(name: str, begin: float, times: list[float], text: str = "") -> Sample:
    return Sample(
        prompt=name, category="extraction", started=round(begin * S), ended=round(times[-1] * S),
        chunks=tuple(Chunk(at=round(at * S), tokens=5) for at in times), text=text,
        output_tokens=5 * len(times), counted_by="usage", finish_reason="stop", prompt_tokens=100,
    )  # fmt: skip


def steps(begin: float, many: int = 40) -> list[float]:
    return [begin + 0.2 + STEP_S * n for n in range(many)]


def observed(cell: Cell, samples: list[Sample]) -> Observation:
    server = Server(k=0)
    return Observation(cell=cell, samples=tuple(samples), before=server.snapshot(), after=server.snapshot())


def judged(
    waits: list[tuple[float, float]], *, lost: int = 0, alone_lost: int = 0, prefill_s: float = 6.0
) -> dict[str, Finding]:
    """Return the findings where every request waits in these intervals, and *lost* of them lose a number."""
    check, to = ALL["mixed"], context()
    (first,) = check.cells(to)
    alone = [
        sample(p.name, 10 * n, steps(10 * n), counting(int(p.expect), _gone(p.expect, n < alone_lost)))
        for n, p in enumerate(first.prompts)
    ]
    seen = [observed(first, alone)]
    (second,) = check.cells(to, seen)[len(seen) :]
    decoders, documents = second.prompts[:DECODERS], second.prompts[DECODERS:]
    beside = []
    for n, prompt in enumerate(decoders):
        times = [at for at in steps(0.1 * n, 100) if not any(a < at < b for a, b in waits)]
        beside.append(
            sample(prompt.name, 0.1 * n, times, counting(int(prompt.expect), _gone(prompt.expect, n < lost)))
        )
    for n, prompt in enumerate(documents):
        first_token = 1.0 + prefill_s * (n + 1) / PROMPTS
        beside.append(sample(prompt.name, 1.0 + 0.1 * n, [first_token, first_token + 1]))
    seen.append(observed(second, beside))
    assert check.cells(to, seen)[len(seen) :] == ()
    return {finding.name: finding for finding in check.judge(to, seen)}


def _gone(first: str, lost: bool) -> frozenset[int]:  # noqa: FBT001
    return frozenset({int(first) + 7}) if lost else frozenset()


@pytest.mark.parametrize(
    ("waits", "verdict", "says"),
    [
        ([], Verdict.PASS, "longest gap 0.1 s in 6.0 s"),
        ([(1, 3), (3.1, 7)], Verdict.PASS, r"longest gap (3\.9|4\.0)"),
        ([(1, 7)], Verdict.FAIL, "4 requests got no token while prompts were prefilled, for [56]"),
    ],
)
def test_a_gap_is_judged_by_its_share_of_the_prefill(waits, verdict, says):
    findings = judged(waits)
    assert findings[GAPS].verdict is verdict
    assert re.search(says, findings[GAPS].cause), findings[GAPS].cause
    assert findings[LOST].verdict is Verdict.PASS


def test_prefill_as_short_as_some_tokens_starves_nothing() -> None:
    assert judged([(1, 1.9)], prefill_s=0.9)[GAPS].verdict is Verdict.PASS
    assert judged([(1, 2.9)], prefill_s=1.8)[GAPS].verdict is Verdict.FAIL


def test_a_wait_of_half_a_minute_is_a_fault_however_long_the_prefill() -> None:
    check, to = ALL["mixed"], context()
    (first,) = check.cells(to)
    seen = [observed(first, [sample(p.name, 0, steps(0), counting(int(p.expect))) for p in first.prompts])]
    (second,) = check.cells(to, seen)[len(seen) :]
    times = [0.2, 1.0, 33.0, 70.0]
    beside = [sample(p.name, 0, times, counting(int(p.expect))) for p in second.prompts[:DECODERS]]
    beside += [sample(p.name, 0.5, [60.0, 61.0]) for p in second.prompts[DECODERS:]]
    finding = check.judge(to, [*seen, observed(second, beside)])[0]
    assert finding.verdict is Verdict.FAIL
    assert "waited 32.0 s" in finding.cause


def test_prompts_that_come_when_nothing_decodes_prove_nothing() -> None:
    finding = judged([(0.9, 30)])[GAPS]
    assert finding.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("lost", "alone", "verdict", "warns"),
    [
        (0, 0, Verdict.PASS, False),
        (1, 0, Verdict.PASS, True),
        (2, 0, Verdict.FAIL, False),
        (4, 2, Verdict.FAIL, False),
        (0, 3, Verdict.INCONCLUSIVE, False),
    ],
)
def test_numbers_are_missed_only_by_requests_that_count_rightly_alone(lost, alone, verdict, *, warns):
    finding = judged([], lost=lost, alone_lost=alone)[LOST]
    assert finding.verdict is verdict, finding.cause
    assert bool(finding.warnings) is warns


def test_a_model_that_thinks_before_it_counts_is_not_judged_by_numbers() -> None:
    check, to = ALL["mixed"], context()
    (first,) = check.cells(to)
    thoughts = "Numbers, then."
    alone = [
        replace(sample(p.name, 0, steps(0), thoughts), reasoning_chars=len(thoughts)) for p in first.prompts
    ]
    findings = {one.name: one for one in check.judge(to, [observed(first, alone)])}
    assert findings[LOST].verdict is Verdict.NOT_APPLICABLE
    assert findings[GAPS].verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("answer", "flaw"),
    [
        ("100, 101, 102", ""),
        ("Here: 100, 101, 10", ""),
        ("100, 102", "102 follows 100"),
        ("100, 11, 102", "11 follows 100"),
        ("99, 100", "begins with 99"),
        ("", "begins with no number"),
    ],
)
def test_what_counts_as_missing(answer: str, flaw: str) -> None:
    assert flaw in missing(answer, 100)
    assert bool(missing(answer, 100)) is bool(flaw)


def test_prompts_fit_into_the_longest_request() -> None:
    check = ALL["mixed"]
    for longest, tokens in ((131_072, LONG_TOKENS), (4096, 1792), (-1, LONG_TOKENS)):
        to = context(facts=boot_facts(max_model_len=longest))
        (first,) = check.cells(to)
        alone = observed(first, [sample(p.name, 0, steps(0), "100") for p in first.prompts])
        (second,) = check.cells(to, [alone])[1:]
        assert {f"/{tokens} mixed" in p.name for p in second.prompts[DECODERS:]} == {True}
