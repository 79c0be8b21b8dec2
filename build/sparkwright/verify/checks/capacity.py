"""The highest rate that keeps an objective, in open loops, whose requests wait for no other.

`verify --slo` searches for it: each step of `rate_search` is a cell, and the answer the finding.
Requests that fail for want of capacity are no defect; a server that ends or no longer answers is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean

import msgspec

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check, Values, finding
from sparkwright.verify.checks.machine import disturbances, told_of
from sparkwright.verify.checks.triage import SEVERITY, CheckedCells, Reason, troubles, unanswered
from sparkwright.verify.datasets import CHATS, take
from sparkwright.verify.profiles import Profile
from sparkwright.verify.rate_search import (
    LONGER,
    TRIES,
    Capacity,
    NextStep,
    Outcome,
    SearchPlan,
    Slo,
    Step,
    decide,
    times_of,
)
from sparkwright.verify.statistics import percentile, theil_sen

NAME = "capacity"
TOKENS = 128
"""Output of each request, unless the user says another."""
FACTOR, OBJECTIVE = "length", "objective"
"""Tags of a cell: times the usual length of a step, and the objective."""
LATE_SHARE = 0.25
"""Lateness of the client that a step stands, as a share of the strictest limit of a wait, or of a request's
duration where only the time of a token is limited. Times count from when a request was due, so that lateness
makes them longer, never shorter."""
MOMENTS = 20
"""Moments of a step at which the requests in flight are counted."""
_SPOILT = 0.25  # of the requests that may be bad: so many may be bad for being sent late
_RISE, _LEAST_RISE = 0.25, 2.0  # of the mean requests in flight over the step, and requests
_PROMPTS = 48
_REQUESTS, _FEW = 200, 20  # of a step, at the least: of a server, and of a simulator on a fast clock
_SEEDS = 1000  # a search has fewer steps


def capacity_check(slo: Slo, tokens: int = TOKENS) -> Check:
    """Return the check that sends open loops at rates that follow from the steps before."""
    return Check(NAME, partial(_cells, slo, tokens), partial(_judge, slo))


def _cells(slo: Slo, tokens: int, context: Context, seen: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield the steps that were made, and the next one; none if the server is gone or it is decided."""
    observations = list(seen.values())
    yield from (one.cell for one in observations)
    if any(one.died is not None or unanswered(one.canary) for one in observations):
        return
    profile, number = context.profile, len(observations)
    steps = [step_of(one, slo, profile.speed) for one in observations]
    step = decide(steps, _plan(slo, profile))
    if isinstance(step, NextStep):
        prompts = (
            take(context.own, _PROMPTS, profile.seed, NAME)
            if context.own
            else context.prompts_in_turn(_PROMPTS, NAME)
        )
        yield context.cell(
            NAME,
            f"step {number + 1}: {step.rate:.4g} requests/s",
            prompts,
            tags={OBJECTIVE: slo.text, FACTOR: str(step.factor)},
            shape="open",
            concurrency=0,
            rate=step.rate,
            requests=step.requests,
            warm_up=step.warm_up,
            max_tokens=tokens,
            chat=any(prompt.category == CHATS for prompt in prompts),
            thinking=profile.thinking,
            seed=profile.seed * _SEEDS + number,
        )


def _plan(slo: Slo, profile: Profile) -> SearchPlan:
    return SearchPlan.of(slo, _REQUESTS if profile.speed == 1 else _FEW)


# Steps ---------------------------------------------------------------------------------------------------


def step_of(observation: Observation, slo: Slo, speed: float) -> Step:
    """Return the step that *observation* is; a request that is missing or failed is not good."""
    load = observation.cell.load
    counted = [sample for sample in observation.samples if sample.counted]
    durations = [times_of(sample, speed)["e2e"] for sample in counted if sample.failure is None]
    known = [one for one in durations if math.isfinite(one)]
    duration = percentile(known, 50) if known else 0.0
    good = sum(slo.met_by(sample, speed) for sample in counted)
    in_time = sum(
        slo.met_by(msgspec.structs.replace(sample, due=sample.started), speed) for sample in counted
    )
    spoilt = in_time - good > _SPOILT * (1 - slo.share) * load.requests
    too_late = lateness_s(observation.samples, speed) > allowed_lateness_s(slo, duration)
    return Step(
        rate=load.rate,
        requests=load.requests,
        good=good,
        duration_s=duration,
        grows=grows(observation.samples),
        late=too_late or spoilt,
        factor=int(observation.cell.tags.get(FACTOR, "1")),
        disturbed=bool(disturbances(observation)),
    )


def lateness_s(samples: Sequence[Sample], speed: float) -> float:
    """Return the 95th percentile of the client's lateness in seconds of the server's clock."""
    return percentile([sample.late / 1e9 * speed for sample in samples], 95) if samples else 0.0


def allowed_lateness_s(slo: Slo, duration_s: float) -> float:
    """Return the lateness, in seconds, up to which a step is used whose requests took *duration_s*."""
    waits = [limit for name, limit in slo.limits.items() if name != "tpot"]
    return LATE_SHARE * min(waits, default=duration_s)


def grows(samples: Sequence[Sample]) -> bool:
    """Tell if more and more requests are in flight from the first counted arrival to the last one.

    The slope over twenty moments (Theil and Sen) must surely be positive, and add a quarter of the mean and
    two requests: neighbouring moments resemble each other, so its interval alone is no proof.
    """
    due = [sample.due for sample in samples if sample.counted]
    if not due or min(due) == max(due):
        return False
    begin, span = min(due), max(due) - min(due)
    shares = [(number + 0.5) / MOMENTS for number in range(MOMENTS)]
    moments = [begin + span * share for share in shares]
    running = [float(sum(sample.due <= at < sample.ended for sample in samples)) for at in moments]
    return rises(shares, running)


def rises(shares: Sequence[float], running: Sequence[float]) -> bool:
    """Tell if *running* rises over these shares of a step: surely, by a quarter of its mean and two."""
    slope = theil_sen(shares, running)
    mean = sum(running) / len(running)
    return slope.low > 0 and slope.slope > max(_RISE * mean, _LEAST_RISE)


# The finding ---------------------------------------------------------------------------------------------


def _judge(slo: Slo, context: Context, seen: CheckedCells) -> list[Finding]:
    """Return the finding on the steps of a search, also of an unfinished one."""
    observations, speed = seen.made, context.profile.speed
    steps = [step_of(one, slo, speed) for one in observations]
    answer = decide(steps, _plan(slo, context.profile))
    reasons: list[Reason] = [
        (trouble.verdict, trouble.cause)
        for one in observations
        for trouble in troubles(one, metered=False)
        if trouble.verdict is Verdict.FAIL and (one.died is not None or one.canary or one.log)
    ]
    measured: Values = {}
    warnings = [line for one in observations for line in told_of(one)]
    if isinstance(answer, Capacity):
        reasons.append(_told(answer, slo))
        measured = _measured(answer, steps, observations)
    else:
        reasons.append((Verdict.INCONCLUSIVE, f"the search ended after {len(steps)} steps"))
    verdict = max((verdict for verdict, _ in reasons), key=SEVERITY.index)
    late = max((lateness_s(one.samples, speed) for one in observations), default=0.0)
    longest = max((step.duration_s for step in steps), default=0.0)
    return [
        finding(
            NAME,
            "capacity.rate",
            verdict,
            next(cause for reason, cause in reasons if reason is verdict),
            measured={**measured, "client late p95 ms": round(late * 1e3, 2)},
            evidence=tuple(one.cell.key for one in observations),
            warnings=warnings,
            told={"longer": LONGER, "share": slo.share, "late": allowed_lateness_s(slo, longest) * 1e3},
        )
    ]


def _told(answer: Capacity, slo: Slo) -> tuple[Verdict, str]:
    """Return verdict and cause of a finished search."""
    rate, held = f"{answer.rate:.3g}", f"; {answer.held:.3g} requests/s hold" if answer.held else ""
    match answer.outcome:
        case Outcome.FOUND:
            above = "grows the queue without end" if answer.growing else "does not hold"
            return Verdict.PASS, f"{rate} requests/s hold at {slo}; {answer.failed:.3g} {above}"
        case Outcome.UNSATURATED:
            return Verdict.PASS, f"at least {rate} requests/s, the highest rate tried, at {slo}"
        case Outcome.NEVER:
            return Verdict.FAIL, f"no rate holds at {slo}: not even {rate} requests/s, the lowest rate tried"
        case Outcome.LATE:
            return Verdict.INVALID, f"this client cannot send {rate} requests/s in time{held}"
        case Outcome.DISTURBED:
            return Verdict.INVALID, f"the machine was not in its usual state in {TRIES} steps in a row{held}"


def _measured(answer: Capacity, steps: Sequence[Step], observations: Sequence[Observation]) -> Values:
    """Return figures of the answer, and of the step that is nearest to it."""
    place = min(range(len(steps)), key=lambda number: abs(math.log(steps[number].rate / answer.rate)))
    measured: Values = {
        "requests/s": answer.rate,
        "highest held": answer.held,
        "lowest failed": answer.failed,
        "steps": len(steps),
    }
    if counted := observations[place].counted:
        measured |= {
            "output tokens/s": round(answer.rate * fmean(sample.output_tokens for sample in counted), 1),
            "prompt tokens": round(fmean(sample.prompt_tokens for sample in counted), 1),
            "requests in flight": round(answer.rate * steps[place].duration_s, 1),
        }
    return measured
