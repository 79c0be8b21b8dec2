"""Findings on evaluated tasks: against a threshold, or question by question against an earlier evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.verify.checks.answers import Solved
from sparkwright.verify.evaluation.run import EvalRequest
from sparkwright.verify.evaluation.scores import TaskScore
from sparkwright.verify.run import Run

CHECK = "eval"
SURE = 0.02
FEW_QUESTIONS = 20


@dataclass(frozen=True)
class EvalLimits:
    """The figures that scores are judged by.

    Attributes:
        least: lowest score by the task's name, or by task and metric.
        sources: source of such a score by the same name, where it is known.
        before: scores of an earlier evaluation, such as that of the version before.
    """

    least: Mapping[str, float] = field(default_factory=dict)
    before: Sequence[TaskScore] = ()
    sources: Mapping[str, str] = field(default_factory=dict)


def evaluation_run(request: EvalRequest, scores: Sequence[TaskScore], limits: EvalLimits) -> Run:
    """Return the findings on *scores* as a run of their own."""
    findings = [_evaluated(request, scores)]
    for score in scores:
        findings += [_thresholds(score, limits), _compared(score, limits)]
    findings += [_unscored(name) for name in limits.least if not _named(name, scores)]
    return run_of(
        request, findings, tasks=", ".join(request.tasks), prompts="chats" if request.chat else "raw"
    )


def run_of(request: EvalRequest, findings: Sequence[Finding], **told: str) -> Run:
    """Return *findings* on the server of *request* as a run; its manifest also has what is *told*."""
    return Run(
        manifest={
            "title": f"{request.model} at {request.url}",
            "profile": "evaluation",
            "checks": (CHECK,),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "url": request.url,
            "model": request.model,
            **told,
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


_GOOD = "The score beside the lowest one that is allowed, with its 95 % interval."


def _named(name: str, scores: Sequence[TaskScore]) -> bool:
    """Tell if a limit of this *name* is one of any score."""
    return any(name in {score.name, score.task} for score in scores)


def _unscored(name: str) -> Finding:
    """Return the finding on a limit whose task was not evaluated, or has no such metric."""
    cause = "it was not evaluated, or has no such metric"
    return _finding(f"{name} is good enough", _GOOD, Verdict.INCONCLUSIVE, cause)


def _thresholds(score: TaskScore, limits: EvalLimits) -> Finding:
    name = f"{score.name} is good enough"
    key = score.name if score.name in limits.least else score.task
    least = limits.least.get(key)
    if least is None:
        because = "no lowest score is known (--least, or [[evaluation]] of a recipe)"
        return _finding(name, _GOOD, Verdict.NOT_APPLICABLE, because)
    verdict, words = _against(score, least)
    ends = dict(zip(("lower end", "upper end"), score.interval or (), strict=False))
    source = f", of {limits.sources[key]}" if key in limits.sources else ""
    return _finding(
        name,
        _GOOD,
        verdict,
        f"{score}, {words} {least:g}",
        measured={"score": score.value, "limit": least, **ends},
        threshold=f"{least:g}{source}: fails where the whole interval is worse, undecided where a part is",
    )


def _against(score: TaskScore, least: float) -> tuple[Verdict, str]:
    """Return the verdict on *score* against the lowest one, and how it stands to that, in words."""
    if score.interval is None:
        return Verdict.INCONCLUSIVE, "without an interval beside"
    low, high = score.interval
    if not score.higher_is_better:
        low, high, least = -high, -low, -least
    if high < least:
        return Verdict.FAIL, "surely worse than"
    return (Verdict.PASS, "surely not worse than") if low >= least else (Verdict.INCONCLUSIVE, "spanning")


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
    right = ({name: bool(value) for name, value in one.by_question.items()} for one in (before, score))
    solved = Solved.of(*right)
    lost, won, p = len(solved.lost), solved.won, solved.p
    if not score.higher_is_better:
        lost, won = won, lost
    verdict = Verdict.FAIL if p < SURE and lost > won else Verdict.PASS
    if len(common) < FEW_QUESTIONS:
        verdict = Verdict.INCONCLUSIVE
    return _finding(
        name,
        definition,
        verdict,
        f"{solved.after} of {len(common)} questions, before {solved.before}: {lost} lost and {won} won"
        f" (p = {p:.4f})",
        measured={"lost": lost, "won": won, "questions": len(common), "p": round(p, 5)},
        threshold=f"fails where more are lost than won and p < {SURE}; decides nothing with fewer than"
        f" {FEW_QUESTIONS} questions",
    )
