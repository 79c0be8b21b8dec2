"""Findings of a search: the rate with its interval, the knee, and if the server survived."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.capacity.options import CHECK, CapacityOptions
from sparkwright.verify.capacity.search import TRIES, Capacity, Outcome, Step, decide
from sparkwright.verify.capacity.step import allowed_lateness_s, lateness_s, step_of
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import troubles
from sparkwright.verify.checks.machine import told_of

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
