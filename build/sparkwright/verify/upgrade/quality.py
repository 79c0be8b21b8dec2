"""Answers, tasks and failures after an upgrade, compared with those before it."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.verify.checks.answers import (
    LIMIT_NAT,
    MARGIN,
    Solved,
    answers_agree,
    mean_distance,
    right_answers,
)
from sparkwright.verify.checks.common import Values
from sparkwright.verify.checks.triage import describe
from sparkwright.verify.statistics import one_sided_excess
from sparkwright.verify.upgrade.pairs import MatchedCells
from sparkwright.verify.upgrade.speed import CHECK

SURE = 0.01
FEW_TASKS = 20


def judge_quality(matched: MatchedCells) -> list[Finding]:
    """Return findings on greedy answers, on solved tasks, and on failed requests."""
    return [_answers(matched), _tasks(matched), _failures(matched)]


def _answers(matched: MatchedCells) -> Finding:
    keys = matched.cells("lossless", lambda cell: cell.tags.get("kind") == "answers")
    verdict, cause, measured = _compared_answers(matched, keys)
    return Finding(
        check=CHECK,
        name="greedy answers are the same up to near ties",
        definition="At the first token where an answer leaves the one before the upgrade: by how much less"
        " likely it was for the server before than its own. One server at two batch sizes gives the effect of"
        " rounding. The mean distance of the probabilities up to there is a lower bound of their divergence.",
        verdict=verdict,
        cause=cause,
        measured=measured,
        threshold=f"fails on a gap above {LIMIT_NAT} nat, or {MARGIN:.0f} times the largest of one server at"
        " two batch sizes if that is more",
        evidence=tuple(keys),
    )


def _compared_answers(matched: MatchedCells, keys: list[str]) -> tuple[Verdict, str, Values]:
    old, new = ({o.cell.load.concurrency: o for o in matched.of(arm, keys)[0]} for arm in ("before", "after"))
    if not keys or not all(o.counted for o in (*old.values(), *new.values())):
        why = "answers with log-probabilities were not measured on both sides"
        return Verdict.NOT_APPLICABLE, f"{why}: run the check `lossless`", {}
    levels = sorted(old)
    pairs = [(old[level], new[level]) for level in levels]
    null = [(old[levels[0]], old[level]) for level in levels[1:]]
    found = answers_agree(pairs, null)
    if found.against:
        return Verdict.NOT_APPLICABLE, found.against[0][1], {}
    measured: Values = {
        **found.figures,
        "largest of one server nat": round(found.usual, 4),
        "mean distance nat": round(mean_distance(pairs), 5),
        "mean distance of one server nat": round(mean_distance(null), 5),
    }
    if odd := found.beyond(found.limit, "part at a token that rounding does not explain"):
        return Verdict.FAIL, odd, measured
    gaps, usual = ([gap > 0 for gap in one] for one in (found.gaps, found.null_gaps))
    shown = f"{sum(gaps)} of {len(gaps)} answers differ"
    p = one_sided_excess(usual, gaps) if usual and gaps else 1.0
    more = f", more than one server's at two batch sizes (p = {p:.4f})" if p < SURE else ""
    return Verdict.PASS, f"{shown}{more}, all of them at near ties", measured


def _tasks(matched: MatchedCells) -> Finding:
    keys = [
        key for check in ("lossless", "coherence", "context") for key in matched.cells(check, _has_answers)
    ]
    solved = Solved.of(*(right_answers(matched.of(arm, keys)[0]) for arm in ("before", "after")))
    lost, won, p = len(solved.lost), solved.won, solved.p
    shown = f"{solved.after} of {solved.total} are solved, before {solved.before}; {lost} lost, {won} won"
    verdict = Verdict.PASS
    if solved.total < FEW_TASKS:
        verdict, shown = Verdict.NOT_APPLICABLE, f"{solved.total} tasks on both sides are too few to tell"
    elif p < SURE and lost > won:
        verdict, shown = Verdict.FAIL, f"{shown} (p = {p:.4f}), such as {solved.lost[0]}"
    return Finding(
        check=CHECK,
        name="tasks are solved as well",
        definition="Tasks, facts and needles with one right answer, put to both servers; those that only one"
        " of them solves are compared (McNemar's exact test).",
        verdict=verdict,
        cause=shown,
        measured={
            "solved": solved.after,
            "solved before": solved.before,
            "tasks": solved.total,
            "lost": lost,
            "won": won,
        },
        threshold=f"fails where more are lost than won and p < {SURE}; says nothing below {FEW_TASKS} tasks",
        evidence=tuple(keys),
    )


def _has_answers(cell: Cell) -> bool:
    return any(prompt.expect for prompt in cell.prompts)


def _failures(matched: MatchedCells) -> Finding:
    worse = list(_worse(matched))
    total = sum(len(run[key].samples) for run in matched.after for key in matched.keys)
    return Finding(
        check=CHECK,
        name="no request fails that did not fail before",
        definition="Requests that failed, by cell, after the upgrade and before it.",
        verdict=Verdict.FAIL if worse else Verdict.PASS,
        cause="; ".join(worse[:3]) if worse else f"of {total} requests no more failed than before",
        threshold="no cell with more failed requests than before, and none after which the server was dead",
    )


def _worse(matched: MatchedCells) -> Iterator[str]:
    """Yield a description of each cell in which more requests failed than before."""
    for key in matched.keys:
        old = max(len(run[key].failed) for run in matched.before)
        for run in matched.after:
            observation = run[key]
            if len(observation.failed) > old:
                failure = observation.failed[0].failure
                why = f": {failure.kind}, {failure.detail}" if failure is not None else ""
                where = describe(observation.cell)
                yield f"{len(observation.failed)} requests fail in {where}, before {old}{why}"
            elif observation.died is not None and all(run[key].died is None for run in matched.before):
                yield f"the server ended in {describe(observation.cell)}"
