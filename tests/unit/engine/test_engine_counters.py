"""Differences of counters between two snapshots, and contradictions among them."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from sparkwright.engine.metrics.counters import (
    CountersResetError,
    SeriesAbsentError,
    SpeculationAbsentError,
    hit_rate,
    identities,
    speculation,
)
from sparkwright.engine.observations import Chunk, FailureKind, MetricsSnapshot, RequestFailure, Sample

BEFORE = MetricsSnapshot(
    at=0,
    drafts=1000,
    draft_tokens=7000,
    accepted=2000,
    accepted_per_position=(800, 500, 300, 200, 100, 60, 40),
    generation_tokens=3100,
    prompt_tokens=5000,
    requests=100,
    prefix_queries=5000,
    prefix_hits=1000,
    preemptions=0,
    running=0,
    waiting=0,
    kv_usage=0,
    start_s=1.79e9,
)
REQUESTS, OUTPUT, PROMPT = 10, 100, 50
DRAFTED = (400, 100, 60, 20, 10, 4, 2)  # accepted by position, of 394 drafts and 7 tokens each
AFTER = replace(
    BEFORE,
    at=10**9,
    drafts=BEFORE.drafts + 400,
    draft_tokens=BEFORE.draft_tokens + 2800,
    accepted=BEFORE.accepted + sum(DRAFTED),
    accepted_per_position=tuple(a + b for a, b in zip(BEFORE.accepted_per_position, DRAFTED, strict=True)),
    generation_tokens=BEFORE.generation_tokens + REQUESTS * OUTPUT,
    prompt_tokens=BEFORE.prompt_tokens + REQUESTS * PROMPT,
    requests=BEFORE.requests + REQUESTS,
    prefix_queries=BEFORE.prefix_queries + REQUESTS * PROMPT,
    prefix_hits=BEFORE.prefix_hits + 200,
)
"""400 drafts of 7 tokens with 596 accepted, 10 requests: 1006 tokens, of which 6 lie beyond ends."""


def sample(number: int = 0, **changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "prompt": f"p{number}",
        "category": "code",
        "started": 0,
        "ended": 100,
        "chunks": (Chunk(10, OUTPUT),),
        "prompt_tokens": PROMPT,
        "output_tokens": OUTPUT,
        "counted_by": "usage",
        "finish_reason": "length",
    }
    return Sample(**{**fields, **changes})


SAMPLES = tuple(sample(number) for number in range(REQUESTS))


def changed(**changes: Any) -> MetricsSnapshot:
    return replace(AFTER, **changes)


def test_speculation_is_what_came_in_between() -> None:
    spec = speculation(BEFORE, AFTER)
    assert (spec.drafts, spec.draft_tokens, spec.accepted) == (400, 2800, 596)
    assert spec.per_position == DRAFTED
    assert (spec.generation_tokens, spec.requests) == (1000, 10)
    assert spec.k == 7
    assert spec.acceptance_rate == pytest.approx(596 / 2800)
    assert spec.mean_acceptance_length == pytest.approx(2.49)
    assert spec.position_rates == pytest.approx((1, 0.25, 0.15, 0.05, 0.025, 0.01, 0.005))


@pytest.mark.parametrize(
    "changes",
    [
        {"start_s": 1.79e9 + 1},
        {"start_s": -1},
        *({name: 1} for name in ("drafts", "draft_tokens", "accepted", "generation_tokens", "requests")),
        *({name: 1} for name in ("prompt_tokens", "prefix_queries", "prefix_hits")),
        {"prefix_hits": -1},
        {"accepted_per_position": (0,) * 7},
        {"accepted_per_position": ()},
        {"accepted_per_position": (10**6,) * 6},
    ],
)
def test_a_server_that_was_started_again_is_noticed_by_everything(changes: dict[str, Any]) -> None:
    for compare in (speculation, hit_rate, lambda a, b: identities(a, b, SAMPLES)):
        with pytest.raises(CountersResetError):
            compare(BEFORE, changed(**changes))


def test_a_server_without_speculation_is_told_from_one_that_restarted() -> None:
    plain = {"drafts": -1, "draft_tokens": -1, "accepted": -1, "accepted_per_position": ()}
    before, after = replace(BEFORE, **plain), changed(**plain)
    with pytest.raises(SpeculationAbsentError):
        speculation(before, after)
    with pytest.raises(CountersResetError):
        speculation(BEFORE, after)


def test_hit_rate() -> None:
    assert hit_rate(BEFORE, AFTER) == pytest.approx(200 / 500)
    assert hit_rate(BEFORE, replace(BEFORE, at=1)) == 0
    absent = {"prefix_hits": -1, "prefix_queries": -1}
    with pytest.raises(SeriesAbsentError, match="vllm:prefix_cache_hits"):
        hit_rate(replace(BEFORE, **absent), changed(**absent))


def broken(after: MetricsSnapshot, samples: tuple[Sample, ...] = SAMPLES, **more: float) -> list[str]:
    return [identity.name for identity in identities(BEFORE, after, samples, **more) if identity.broken]


@pytest.mark.parametrize(
    ("after", "samples"), [(AFTER, SAMPLES), (replace(BEFORE, at=1), ())], ids=["healthy", "idle"]
)
def test_a_healthy_or_idle_server_breaks_nothing(after, samples) -> None:
    found = identities(BEFORE, after, samples)
    assert [(one.broken, one.deviation) for one in found] == [(False, 0)] * 9


def test_steps_without_a_draft_explain_tokens_that_no_draft_brought() -> None:
    after = changed(drafts=BEFORE.drafts + 350, draft_tokens=BEFORE.draft_tokens + 2450)
    assert GENERATED in broken(after)
    assert GENERATED not in broken(after, steps=410)
    assert GENERATED not in broken(after, steps=math.inf)
    assert GENERATED in broken(changed(generation_tokens=AFTER.generation_tokens - 200), steps=math.inf)


GENERATED = "generated tokens = accepted + drafts + requests"
CLIENTS = "generated tokens = clients' own count"
REQUEST_COUNT = "finished requests = clients' own count"
PROMPTS = "prompt tokens = clients' own count"
FALLS = "acceptance falls from position to position"
FIRST, SECOND, THIRD, *LATER = AFTER.accepted_per_position
RISING = (FIRST, SECOND - 90, THIRD + 90, *LATER)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"generation_tokens": AFTER.generation_tokens + 50}, [CLIENTS, GENERATED]),
        ({"generation_tokens": AFTER.generation_tokens - 200}, [CLIENTS, GENERATED]),
        ({"generation_tokens": AFTER.generation_tokens + 20}, [CLIENTS]),
        ({"prompt_tokens": AFTER.prompt_tokens + 20}, [PROMPTS]),
        ({"requests": AFTER.requests + 1}, [REQUEST_COUNT]),
        ({"prefix_hits": AFTER.prefix_hits + 301}, ["tokens found in the prefix cache <= looked up"]),
        ({"accepted": AFTER.accepted + 1}, ["accepted tokens = their sum over positions"]),
        ({"draft_tokens": BEFORE.draft_tokens + 500}, ["accepted tokens <= drafted tokens"]),
        ({"draft_tokens": AFTER.draft_tokens + 1}, ["drafted tokens <= drafts x positions"]),
        ({"accepted_per_position": RISING}, [FALLS]),
        # The first position is accepted more often than anything was drafted.
        ({"drafts": AFTER.drafts - 20, "draft_tokens": AFTER.draft_tokens - 140}, [FALLS]),
    ],
)
def test_a_bogus_counter_breaks_what_it_contradicts(changes: dict[str, float], names: list[str]) -> None:
    assert broken(changed(**changes)) == names


def test_other_counts_than_the_clients_are_noticed() -> None:
    characters = tuple(sample(number, output_tokens=430) for number in range(REQUESTS))
    assert broken(AFTER, characters) == [CLIENTS]
    assert broken(AFTER, SAMPLES[:-2]) == [CLIENTS, PROMPTS, REQUEST_COUNT]  # somebody else's


def test_failed_requests_may_have_brought_more_than_was_seen() -> None:
    failed = sample(0, failure=RequestFailure(kind=FailureKind.STALL, detail=""), output_tokens=0)
    assert broken(AFTER, (failed, *SAMPLES[1:])) == []
    assert broken(AFTER, (failed, *SAMPLES)) == []
    assert broken(AFTER, (failed, *SAMPLES, *SAMPLES)) == [CLIENTS, PROMPTS, REQUEST_COUNT]


def test_what_is_not_exposed_is_not_checked() -> None:
    absent = {
        "prompt_tokens": -1,
        "prefix_queries": -1,
        "drafts": -1,
        "draft_tokens": -1,
        "accepted": -1,
        "accepted_per_position": (),
    }
    before = replace(BEFORE, **absent)
    found = identities(before, changed(**absent), SAMPLES)
    assert [identity.name for identity in found] == [CLIENTS, REQUEST_COUNT]
