"""Findings on evaluated tasks: against a threshold, or question by question against an earlier evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sparkwright.verify.model import Finding, Verdict
from sparkwright.verify.run import Run
from sparkwright.verify.statistics import mcnemar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparkwright.verify.evaluation.run import EvalRequest
    from sparkwright.verify.evaluation.scores import TaskScore

CHECK = "eval"
SURE = 0.02
FEW_QUESTIONS = 20


@dataclass(frozen=True)
class EvalLimits:
    """The figures that scores are judged by.

    Attributes:
        least: lowest score by the task's name, or by task and metric.
        before: scores of an earlier evaluation, such as that of the version before.
    """

    least: Mapping[str, float] = field(default_factory=dict)
    before: Sequence[TaskScore] = ()


def evaluation_run(request: EvalRequest, scores: Sequence[TaskScore], limits: EvalLimits) -> Run:
    """Return the findings on *scores* as a run of their own."""
    findings = [_evaluated(request, scores)]
    for score in scores:
        findings += [_thresholds(score, limits), _compared(score, limits)]
    return Run(
        manifest={
            "title": f"{request.model} at {request.url}",
            "profile": "evaluation",
            "checks": (CHECK,),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "url": request.url,
            "model": request.model,
            "tasks": ", ".join(request.tasks),
            "prompts": "chats" if request.chat else "raw",
        },
        findings=findings,
    )


def _finding(name: str, definition: str, verdict: Verdict, cause: str, **more: object) -> Finding:
    return Finding(check=CHECK, name=name, definition=definition, verdict=verdict, cause=cause, **more)  # type: ignore[arg-type]


def _evaluated(request: EvalRequest, scores: Sequence[TaskScore]) -> Finding:
    return _finding(
        "tasks were evaluated",
        "lm-evaluation-harness put every question to the server and rated the answers.",
        Verdict.PASS if scores else Verdict.INCONCLUSIVE,
        "; ".join(f"{score.name} {score}" for score in scores) or f"no score of {', '.join(request.tasks)}",
        measured={score.name: str(score) for score in scores},
        threshold="none: scores are judged where a limit or an earlier evaluation is given",
    )


def _thresholds(score: TaskScore, limits: EvalLimits) -> Finding:
    least = limits.least.get(score.name, limits.least.get(score.task))
    name = f"{score.name} is good enough"
    definition = "The score beside the lowest one that was allowed, with its 95 % interval (Wilson)."
    if least is None:
        return _finding(name, definition, Verdict.NOT_APPLICABLE, "no lowest score was given (--least)")
    low, high = score.interval or (score.value, score.value)
    if not score.higher_is_better:
        low, high, value, least_value = -high, -low, -score.value, -least
    else:
        value, least_value = score.value, least
    verdict = (
        Verdict.FAIL if high < least_value else Verdict.PASS if value >= least_value else Verdict.INCONCLUSIVE
    )
    words = {Verdict.FAIL: "surely worse than", Verdict.INCONCLUSIVE: "not surely as good as"}
    return _finding(
        name,
        definition,
        verdict,
        f"{score}, {words.get(verdict, 'not worse than')} {least:g}",
        measured={
            "score": score.value,
            "limit": least,
            "lower bound": low if score.higher_is_better else -high,
        },
        threshold=f"fails where the whole interval is worse than {least:g}, undecided where the score is",
    )


def _compared(score: TaskScore, limits: EvalLimits) -> Finding:
    name = f"{score.name} is as good as before"
    definition = "Questions that only one of two evaluations answers rightly (McNemar's exact test)."
    before = next((one for one in limits.before if one.name == score.name), None)
    if before is None:
        because = (
            "it was not evaluated before" if limits.before else "no earlier evaluation was given (--before)"
        )
        return _finding(name, definition, Verdict.NOT_APPLICABLE, because)
    common = score.by_question.keys() & before.by_question.keys()
    if not (score.binary and before.binary) or not common:
        return _finding(
            name, definition, Verdict.NOT_APPLICABLE, "questions are not right or wrong, or are others"
        )
    old = {question for question in common if before.by_question[question]}
    new = {question for question in common if score.by_question[question]}
    lost, won = len(old - new), len(new - old)
    if not score.higher_is_better:
        lost, won = won, lost
    p = mcnemar(lost, won)
    verdict = Verdict.FAIL if p < SURE and lost > won else Verdict.PASS
    if len(common) < FEW_QUESTIONS:
        verdict = Verdict.INCONCLUSIVE
    return _finding(
        name,
        definition,
        verdict,
        f"{len(new)} of {len(common)} questions, before {len(old)}: {lost} lost and {won} won (p = {p:.4f})",
        measured={"lost": lost, "won": won, "questions": len(common), "p": round(p, 5)},
        threshold=f"fails where more are lost than won and p < {SURE}; decides nothing with fewer than"
        f" {FEW_QUESTIONS} questions",
    )
