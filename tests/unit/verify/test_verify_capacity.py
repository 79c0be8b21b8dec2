"""The search for a capacity, on queues whose capacity is known exactly."""

import dataclasses
import heapq
import itertools
import math
import random
import re
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pytest
from msgspec.structs import replace
from verify_kit import costly

from sparkwright.base.errors import ConfigError
from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.client.load import arrivals
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import (
    Chunk,
    FailureKind,
    HostSample,
    Observation,
    RequestFailure,
    Sample,
)
from sparkwright.verify.check import Context
from sparkwright.verify.checks.capacity import (
    FACTOR,
    capacity_check,
    grows,
    lateness_s,
    step_of,
)
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import plan_of
from sparkwright.verify.profiles import Profile
from sparkwright.verify.rate_search import (
    CLOSE,
    LONGER,
    Capacity,
    NextStep,
    Outcome,
    SearchPlan,
    Slo,
    Step,
    decide,
    parse_slo,
    times_of,
)


@dataclass(frozen=True)
class Queue:
    """*places* servers that take *service_s* on average, exponentially distributed; first come, first served.

    The first token comes when a request leaves the queue, after *first_s*.
    """

    places: int
    service_s: float
    first_s: float = 1e-6

    def late_share(self, rate: float, limit_s: float) -> float:
        """Return the share of requests that wait for longer than *limit_s* in the steady state."""
        load = rate * self.service_s
        if load >= self.places:
            return 1.0
        blocked = 1.0
        for number in range(1, self.places + 1):
            blocked = load * blocked / (number + load * blocked)
        waits = blocked / (1 - load / self.places * (1 - blocked))
        return waits * math.exp(-(self.places / self.service_s - rate) * limit_s)

    def capacity(self, limit_s: float, share: float) -> float:
        """Return the rate at which *share* of the requests wait for *limit_s* at the most."""
        low, high = 0.0, self.places / self.service_s
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.late_share(middle, limit_s) < 1 - share else (low, middle)
        return low

    def observe(self, step: NextStep, seed: str, late_s: float = 0.0) -> Observation:
        """Return what a client sees of *step*, if it sends each request *late_s* after it was due."""
        service, number = random.Random(f"service {seed}"), random.Random(seed).randrange(1 << 30)
        free, samples = [0.0] * self.places, []
        total = step.warm_up + step.requests
        for index, due in enumerate(itertools.islice(arrivals(step.rate, number), total)):
            begin = max(due + late_s, heapq.heappop(free))
            end = begin + self.first_s + service.expovariate(1 / self.service_s)
            heapq.heappush(free, end)
            first, last = (_ns(begin + self.first_s), _ns(end))
            samples.append(
                Sample(
                    prompt="p", category="code", started=_ns(due + late_s), ended=last, due=_ns(due),
                    late=round(late_s * 1e9), counted=index >= step.warm_up, output_tokens=2,
                    chunks=(Chunk(first, 1), Chunk(last, 1)),
                )
            )  # fmt: skip
        load = Load(shape="open", concurrency=0, rate=step.rate, requests=step.requests, warm_up=step.warm_up)
        cell = Cell(
            check="capacity", name=f"{step.rate:g}", load=load, prompts=(), tags={FACTOR: str(step.factor)}
        )
        return Observation(cell=cell, samples=tuple(samples))


def search(queue: Queue, slo: Slo, plan: SearchPlan, seed: int) -> tuple[Capacity, list[Step]]:
    """Return the answer of a search on *queue*, and its steps."""
    steps: list[Step] = []
    while isinstance(following := decide(steps, plan), NextStep):
        steps.append(step_of(queue.observe(following, f"{seed} {len(steps)}"), slo, 1.0))
    return following, steps


def _ns(seconds: float) -> int:
    return round(seconds * 1e9) + 1  # 0 means never


WAIT = Slo({"ttft": 2.0}, 0.95)
PLAN = SearchPlan(share=0.95, longest_s=2.0)
LARGE, SMALL = Queue(64, 5.0), Queue(8, 1.0)
CONTEXT = Context(Profile(name="test"), load_corpus(), {})


# The search ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", costly(range(12), quick=2))
@pytest.mark.parametrize("queue", [LARGE, SMALL], ids=["64 places", "8 places"])
def test_the_rate_that_holds_is_near_the_capacity_of_a_queue(queue: Queue, seed: int) -> None:
    """Of 48 searches, answers were 12 % below to 5 % above the truth."""
    answer, steps = search(queue, WAIT, PLAN, seed)
    assert answer.outcome is Outcome.FOUND
    assert answer.rate == answer.held < answer.failed <= CLOSE * answer.held
    assert 0.85 < answer.held / queue.capacity(2.0, 0.95) < 1.07
    for rate in (answer.held, answer.failed):
        assert max(step.factor for step in steps if step.rate == rate) >= LONGER


@pytest.mark.parametrize(
    ("long", "low", "high"),
    [((False,), 1.0, 1.4), ((True, True), 1.5, 2.0)],
    ids=["one that held", "one that failed"],
)
def test_a_short_step_that_was_luck_is_searched_around_again(long, low, high) -> None:
    known = [Step(rate, 100, good) for rate, good in ((1.0, 100), (2.0, 0), (1.4, 100), (1.5, 0))]
    for rate, held in zip((1.4, 1.5), long, strict=False):
        asked = decide(known, PLAN)
        assert (asked.rate, asked.factor) == (rate, LONGER)
        known.append(Step(rate, 1600, 1600 * held, factor=LONGER))
    asked = decide(known, PLAN)
    assert (asked.rate, asked.factor) == (math.sqrt(low * high), 1)


def test_a_server_that_never_or_always_keeps_the_objective_is_said_with_the_last_rate() -> None:
    never, steps = search(Queue(8, 1.0, first_s=3.0), WAIT, SearchPlan(0.95, 2.0, requests=50), 0)
    assert never.outcome is Outcome.NEVER
    assert never.rate == min(step.rate for step in steps) == 1 / 64
    idle, steps = search(Queue(4000, 0.1), WAIT, SearchPlan(0.95, 2.0, most=24.0, requests=50), 0)
    assert (idle.outcome, idle.rate) == (Outcome.UNSATURATED, 24.0)
    assert [step.rate for step in steps] == [1, 2, 4, 8, 16, 24]


def test_a_queue_that_grows_within_generous_limits_does_not_hold() -> None:
    generous = Slo({"tpot": 1000.0}, 0.95)
    plan = SearchPlan(0.95, 0.0, requests=400)
    answer, _ = search(SMALL, generous, plan, 0)
    assert answer.outcome is Outcome.FOUND
    assert answer.growing
    assert answer.rate == pytest.approx(8.0, rel=0.15)


def test_a_queue_that_grows_is_measured_for_longer_before_it_fails() -> None:
    plan = SearchPlan(0.95, 2.0, requests=100)
    growing = [Step(1.0, 100, 100, grows=True, factor=factor) for factor in (1, 2, 4, 8)]
    for count, factor in ((1, 2), (2, 4), (3, 8)):
        following = decide(growing[:count], plan)
        assert isinstance(following, NextStep)
        assert (following.rate, following.factor, following.requests) == (1.0, factor, factor * 100)
    lower = decide(growing, plan)
    assert isinstance(lower, NextStep)
    assert lower.rate == 0.5


@pytest.mark.parametrize(
    ("how", "outcome"), [({"late": True}, Outcome.LATE), ({"disturbed": True}, Outcome.DISTURBED)]
)
def test_steps_of_a_late_client_or_disturbed_machine_are_repeated_and_decide_nothing(how, outcome) -> None:
    held, bad = Step(1.0, 100, 100), Step(2.0, 100, 0, **how)
    again = decide([held, bad, bad], PLAN)
    assert isinstance(again, NextStep)
    assert again.rate == 2.0
    answer = decide([held, bad, bad, bad], PLAN)
    assert isinstance(answer, Capacity)
    assert (answer.outcome, answer.rate, answer.held) == (outcome, 2.0, 1.0)
    assert isinstance(decide([held, bad, Step(2.0, 100, 100)], PLAN), NextStep)


# Steps ---------------------------------------------------------------------------------------------------


def at(rate: float, requests: int = 400) -> NextStep:
    return NextStep(rate, requests, 100)


def test_a_growing_queue_is_seen_and_a_steady_one_is_not() -> None:
    assert all(grows(SMALL.observe(at(12.0), str(seed)).samples) for seed in range(20))
    assert not any(grows(SMALL.observe(at(4.0), str(seed)).samples) for seed in range(20))


def test_lateness_of_the_client_never_flatters() -> None:
    idle = Queue(400, 1.0)
    in_time, late = (step_of(idle.observe(at(8.0), "s", late_s=by), WAIT, 1.0) for by in (0.0, 2.5))
    assert (in_time.good, in_time.late) == (400, False)
    assert (late.good, late.late) == (0, True)
    little = step_of(idle.observe(at(8.0), "s", late_s=0.3), WAIT, 1.0)
    assert (little.good, little.late) == (400, False)


def test_a_step_that_fails_by_the_clients_lateness_alone_does_not_count() -> None:
    slow = Queue(400, 1.0, first_s=1.8)
    assert not step_of(slow.observe(at(8.0), "s"), WAIT, 1.0).late
    assert step_of(slow.observe(at(8.0), "s", late_s=0.3), WAIT, 1.0).late


def test_requests_that_fail_or_are_missing_are_not_good() -> None:
    seen = SMALL.observe(at(2.0, 100), "s")
    failed = replace(seen.samples[-1], failure=RequestFailure(kind=FailureKind.RESET, detail=""))
    for samples in ((*seen.samples[:-1], failed), seen.samples[:-1]):
        step = step_of(replace(seen, samples=samples), WAIT, 1.0)
        assert (step.good, step.requests) == (99, 100)


def test_times_count_from_when_a_request_was_due_in_the_servers_clock() -> None:
    chunks = (Chunk(4_000_000_000, 1), Chunk(6_000_000_000, 1))
    sample = Sample(
        prompt="p", category="c", started=2_000_000_000, ended=7_000_000_000, due=1_000_000_000,
        late=10**9, chunks=chunks, output_tokens=3,
    )  # fmt: skip
    assert times_of(sample, 2.0) == {"ttft": 6.0, "tpot": 2.0, "e2e": 10.0}
    assert lateness_s([sample], 2.0) == 2.0


def test_arrivals_are_random_and_the_same_for_a_seed() -> None:
    first, again, other = (list(itertools.islice(arrivals(4.0, seed), 4000)) for seed in (1, 1, 2))
    assert first == again != other
    gaps = [later - earlier for earlier, later in itertools.pairwise(first)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert fmean(gap > 0.25 for gap in gaps) == pytest.approx(0.368, abs=0.03)


# What is asked -------------------------------------------------------------------------------------------


def test_an_objective_is_read() -> None:
    slo = parse_slo("ttft_p95=2s, tpot_p95=100ms")
    assert slo == Slo({"ttft": 2.0, "tpot": 0.1}, 0.95)
    assert str(slo) == "TTFT p95 ≤ 2 s and TPOT p95 ≤ 100 ms"
    assert parse_slo(slo.text) == slo


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("ttft=2s", "form"),
        ("tftt_p95=2s", "no time 'tftt'"),
        ("ttft_p85=2s", "p85"),
        ("ttft_p95=2", "unit is missing"),
        ("ttft_p95=2h", "unit is h"),
        ("ttft_p95=0s", "no request"),
        ("ttft_p95=1s,ttft_p95=2s", "twice"),
        ("ttft_p95=1s,tpot_p99=20ms", "percentiles differ"),
        ("", "form"),
    ],
)
def test_an_objective_that_says_nothing_is_refused(text: str, because: str) -> None:
    with pytest.raises(ConfigError, match=because):
        parse_slo(text)


def test_a_high_percentile_has_enough_requests() -> None:
    assert SearchPlan.of(parse_slo("ttft_p99=2s"), 200).requests == 1000
    assert SearchPlan.of(parse_slo("ttft_p95=2s"), 200).requests == 200
    assert SearchPlan.of(parse_slo("tpot_p95=50ms"), 200).longest_s == 0


# The findings --------------------------------------------------------------------------------------------


CHECK = capacity_check(WAIT)
FAST = dataclasses.replace(CONTEXT, profile=Profile(name="fast", speed=2.0))  # fewer requests a step


def judged(queue: Queue, late_s: float = 0.0, steps: int = 60) -> Finding:
    """Return what is concluded after a search on *queue*, or after so many steps of it."""
    seen, made = list[Observation](), list[Step]()
    plan = SearchPlan.of(WAIT, 20)
    while len(seen) < steps and isinstance(step := decide(made, plan), NextStep):
        seen.append(queue.observe(step, f"{len(seen)}", late_s))
        made.append(step_of(seen[-1], WAIT, 2.0))
    (finding,) = CHECK.judge(FAST, seen)
    return finding


def test_the_answer_names_both_rates_and_the_objective() -> None:
    rate = judged(Queue(2, 0.5))
    assert rate.verdict is Verdict.PASS
    shown = re.match(r"([\d.]+) requests/s hold at TTFT p95 ≤ 2 s; ([\d.]+) does not hold$", rate.cause)
    assert float(shown[1]) < float(shown[2])
    assert rate.measured["steps"] == len(rate.evidence)


@pytest.mark.parametrize(
    ("queue", "late_s", "verdict", "cause"),
    [
        (Queue(8, 1.0, first_s=3.0), 0.0, Verdict.FAIL, "not even 0.0156 requests/s, the lowest rate tried"),
        (Queue(4000, 0.1), 0.0, Verdict.PASS, "at least 1.02e+03 requests/s, the highest rate tried"),
        (Queue(400, 0.1), 1.0, Verdict.INVALID, "this client cannot send 1 requests/s in time"),
    ],
)
def test_other_ends_of_a_search_are_said(queue: Queue, late_s: float, verdict: Verdict, cause: str) -> None:
    rate = judged(queue, late_s)
    assert rate.verdict is verdict
    assert cause in rate.cause


def test_a_server_that_ends_fails_and_is_sent_nothing_more() -> None:
    (cell,) = CHECK.cells(CONTEXT)
    died = Observation(cell=cell, samples=SMALL.observe(at(1.0, 100), "s").samples, died=137)
    assert len(CHECK.cells(CONTEXT, [died])) == 1
    (rate,) = CHECK.judge(CONTEXT, [died])
    assert rate.verdict is Verdict.FAIL
    assert "137" in rate.cause


def test_a_search_on_a_stuck_card_is_invalid() -> None:
    stuck = tuple(
        HostSample(at=at, gpu_clock_mhz=611, gpu_clock_max_mhz=3003, gpu_utilization=97) for at in range(4)
    )
    well = [SMALL.observe(NextStep(1.0, 100, 10), f"{n}") for n in range(3)]
    (rate,) = CHECK.judge(CONTEXT, [replace(one, host=stuck) for one in well])
    assert rate.verdict is Verdict.INVALID
    assert "not in its usual state in 3 steps in a row" in rate.cause
    assert len(rate.warnings) == 3
    (rate,) = CHECK.judge(CONTEXT, well)
    assert rate.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("options", "checks"),
    [
        ({}, ("capacity",)),
        ({"checks": ("boot", "capacity")}, ("boot", "capacity")),
        ({"checks": ("boot",)}, ("boot", "capacity")),
    ],
)
def test_an_objective_alone_selects_the_search(options: dict[str, Any], checks: tuple[str, ...]) -> None:
    plan = plan_of(VerifyOptions(simulator=True, profile="demo", slo="ttft_p95=2s", **options))
    assert tuple(check.name for check in plan.checks) == checks


def test_the_search_needs_an_objective() -> None:
    with pytest.raises(ConfigError, match="needs an objective"):
        plan_of(VerifyOptions(simulator=True, checks=("capacity",)))
