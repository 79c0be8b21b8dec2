"""The search as a check of the suite: each step is a cell, and the answer a finding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean

import msgspec

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.capacity.search import (
    CHECK,
    TRIES,
    Capacity,
    CapacityOptions,
    NextStep,
    Outcome,
    Step,
    decide,
)
from sparkwright.verify.capacity.slo import Slo, times_of
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check
from sparkwright.verify.checks.machine import disturbances, told_of
from sparkwright.verify.checks.triage import CheckedCells, troubles, unanswered
from sparkwright.verify.datasets import CHATS
from sparkwright.verify.statistics import percentile, theil_sen

FACTOR = "length"
"""Tag of a cell: times the usual length of a step."""
LATE_SHARE = 0.25
"""Lateness of the client that a step stands, as a share of the strictest limit of a wait, or of a request's
duration where only the time of a token is limited. Times count from when a request was due, so that lateness
makes them longer, never shorter."""
_SPOILT = 0.25  # of the requests that may be bad: so many may be bad for being sent late
MOMENTS = 20
"""Moments of a step at which the requests in flight are counted."""
_RISE, _LEAST_RISE = 0.25, 2.0  # of the mean requests in flight over the step, and requests


def step_of(observation: Observation, slo: Slo, speed: float) -> Step:
    """Return the step that *observation* is.

    A request that is missing or failed is not good.

    Args:
        observation: of an open loop.
        slo: the objective.
        speed: server's seconds in one of the client's.
    """
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


OBJECTIVE = "objective"
"""Tag of a cell: the objective, as the user gave it."""
_POOL, _DOCUMENTS = 48, 16
_SEEDS = 1000  # a search has fewer steps


def capacity_check(options: CapacityOptions, prompts: tuple[Prompt, ...] = ()) -> Check:
    """Return the check that sends open loops at rates that follow from the steps before.

    Args:
        options: objective and limits.
        prompts: of the user's; if none, documents or the corpus's.
    """

    def judge(context: Context, seen: CheckedCells) -> Sequence[Finding]:
        return conclude_search(options, context, seen.made)

    return Check(CHECK, partial(_cells, options, prompts), judge)


def _cells(
    options: CapacityOptions, prompts: tuple[Prompt, ...], context: Context, seen: Mapping[str, Observation]
) -> Iterator[Cell]:
    """Yield the steps that were made, and the next one; none if the server is gone or it is decided."""
    observations = list(seen.values())
    yield from (one.cell for one in observations)
    if any(one.died is not None or unanswered(one.canary) for one in observations):
        return
    slo, speed, number = options.objective, context.profile.speed, len(observations)
    step = decide([step_of(one, slo, speed) for one in observations], options.plan)
    if isinstance(step, NextStep):
        prompts = prompts or _generated(options, context)
        yield context.cell(
            CHECK,
            f"step {number + 1}: {step.rate:.4g} requests/s",
            prompts,
            tags={OBJECTIVE: options.slo, FACTOR: str(step.factor)},
            shape="open",
            concurrency=0,
            rate=step.rate,
            requests=step.requests,
            warm_up=step.warm_up,
            max_tokens=options.max_tokens,
            chat=any(prompt.category == CHATS for prompt in prompts),
            thinking=context.profile.thinking,
            seed=context.profile.seed * _SEEDS + number,
        )


def _generated(options: CapacityOptions, context: Context) -> tuple[Prompt, ...]:
    """Return documents of the length that was asked for, or the corpus's prompts in turn."""
    if not options.input_tokens:
        return context.prompts_in_turn(_POOL, CHECK)
    seed, tokens = context.profile.seed, options.input_tokens
    return tuple(context.document(tokens, seed + number, CHECK) for number in range(_DOCUMENTS))


_LEAST_FOR_KNEE = 4


def conclude_search(
    options: CapacityOptions, context: Context, observations: Sequence[Observation]
) -> list[Finding]:
    """Return the findings on the steps of a search, also of an unfinished one."""
    slo, speed = options.objective, context.profile.speed
    steps = [step_of(seen, slo, speed) for seen in observations]
    return [
        _capacity(options, steps, observations, speed),
        _knee(steps, observations),
        _survival(observations),
    ]


# The rate -----------------------------------------------------------------------------------------------


def _capacity(
    options: CapacityOptions, steps: Sequence[Step], observations: Sequence[Observation], speed: float
) -> Finding:
    slo = options.objective
    answer = decide(steps, options.plan)
    if isinstance(answer, Capacity):
        verdict, cause = _told(answer, options)
        measured = _measured(answer, steps, observations)
    else:
        verdict, cause, measured = Verdict.INCONCLUSIVE, f"the search ended after {len(steps)} steps", {}
    late = max((lateness_s(seen.samples, speed) for seen in observations), default=0.0)
    longest = max((step.duration_s for step in steps), default=0.0)
    return Finding(
        check=CHECK,
        name="the highest rate at which the objective holds",
        definition="Requests arrive as a Poisson process and wait for no other. A request is good if it did"
        " not fail and kept every limit, counted from the moment at which it was due. The rate is where the"
        " share of good requests crosses that of the objective, by a logistic fit to the steps around it; the"
        " 95 % interval follows from their scatter.",
        verdict=verdict,
        cause=cause,
        measured={**measured, "client late p95 ms": round(late * 1e3, 2)},
        threshold=f"{slo.share:.0%} of the requests are good and no queue grows; a step counts if the client"
        f" is at most {allowed_lateness_s(slo, longest) * 1e3:.3g} ms late (p95) and few requests fail by it",
        evidence=tuple(seen.cell.key for seen in observations),
        warnings=_warnings(answer, observations, options),
    )


def _told(answer: Capacity, options: CapacityOptions) -> tuple[Verdict, str]:
    """Return verdict and cause of a finished search."""
    at = f"at {options.objective}"
    match answer.outcome:
        case Outcome.FOUND:
            shown = f"{_rate(answer.rate)} requests/s ({_rate(answer.low)} to {_rate(answer.high)}) {at}"
            growing = "; above it the queue grows without end" if answer.growing else ""
            return Verdict.PASS, shown + growing
        case Outcome.UNSATURATED:
            return Verdict.PASS, f"at least {_rate(answer.rate)} requests/s, the highest rate tried, {at}"
        case Outcome.NEVER:
            cause = f"no rate holds {at}: not even {_rate(answer.rate)} requests/s, the lowest rate tried"
            return Verdict.FAIL, cause
        case Outcome.LATE:
            held = f"; {_rate(answer.held)} requests/s hold" if answer.held else ""
            cause = f"this client cannot send {_rate(answer.rate)} requests/s in time{held}"
            return Verdict.INVALID, cause
        case Outcome.DISTURBED:
            held = f"; {_rate(answer.held)} requests/s hold" if answer.held else ""
            return Verdict.INVALID, f"the machine was not in its usual state in {TRIES} steps in a row{held}"


def _measured(
    answer: Capacity, steps: Sequence[Step], observations: Sequence[Observation]
) -> dict[str, float | str]:
    """Return figures of the answer, and of the step that is nearest to it."""
    place = min(range(len(steps)), key=lambda number: abs(math.log(steps[number].rate / answer.rate)))
    counted = observations[place].counted
    output, prompt = (
        [sample.output_tokens for sample in counted],
        [sample.prompt_tokens for sample in counted],
    )
    measured: dict[str, float | str] = {
        "requests/s": answer.rate,
        "low": answer.low,
        "high": answer.high,
        "highest held": answer.held,
        "lowest failed": answer.failed,
        "steps": len(steps),
        "repeats": answer.repeats,
    }
    if counted:
        measured |= {
            "output tokens/s": round(answer.rate * fmean(output), 1),
            "prompt tokens": round(fmean(prompt), 1),
            "requests in flight": round(answer.rate * steps[place].duration_s, 1),
        }
    return measured


def _warnings(
    answer: object, observations: Sequence[Observation], options: CapacityOptions
) -> tuple[str, ...]:
    told = [line for seen in observations for line in told_of(seen)]
    if isinstance(answer, Capacity) and answer.outcome is Outcome.FOUND:
        width = max(answer.rate - answer.low, answer.high - answer.rate) / answer.rate
        if width > options.plan.width:
            told.append(f"the interval is ±{width:.0%}: longer steps (--requests) make it narrower")
    return tuple(told)


def _rate(rate: float) -> str:
    return f"{rate:.3g}"


# The knee and the server ---------------------------------------------------------------------------------


def _knee(steps: Sequence[Step], observations: Sequence[Observation]) -> Finding:
    sure = [step for step in steps if not step.void and step.duration_s > 0]
    rates = {step.rate for step in sure}
    knee = max(sure, key=lambda step: step.rate / step.duration_s, default=None)
    known = knee is not None and len(rates) >= _LEAST_FOR_KNEE and min(rates) < knee.rate
    shown = f"{_rate(knee.rate)} requests/s, where a request takes {knee.duration_s:.3g} s" if knee else ""
    return Finding(
        check=CHECK,
        name="the knee",
        definition="Of the rates tried, the one with the highest rate per median duration of a request:"
        " beyond it, waiting grows faster than throughput (Kleinrock's power).",
        verdict=Verdict.PASS if known else Verdict.NOT_APPLICABLE,
        cause=shown if known else "too few rates below it were tried",
        measured={"requests/s": knee.rate, "duration s": round(knee.duration_s, 3)} if known and knee else {},
        evidence=tuple(seen.cell.key for seen in observations),
    )


def _survival(observations: Sequence[Observation]) -> Finding:
    """Return the finding on the server itself; requests that fail for want of capacity are no defect here."""
    found = [
        trouble
        for seen in observations
        for trouble in troubles(seen, metered=False)
        if seen.died is not None or seen.canary or seen.log
    ]
    failed = sum(len(seen.failed) for seen in observations)
    sent = sum(len(seen.samples) for seen in observations)
    verdicts = {trouble.verdict for trouble in found}
    bad = Verdict.FAIL in verdicts
    return Finding(
        check=CHECK,
        name="the server stands the load",
        definition="Exit status, log and a plain request after each step.",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        cause=next(trouble.cause for trouble in found if trouble.verdict is Verdict.FAIL)
        if bad
        else f"it answered after each of {len(observations)} steps; {failed} of {sent} requests failed",
        evidence=tuple(seen.cell.key for seen in observations),
    )
