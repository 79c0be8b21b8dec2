"""Answers, tasks and failures after an upgrade, compared with those before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from statistics import fmean

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.checks.common import describe
from sparkwright.verify.checks.distance import distances
from sparkwright.verify.checks.divergence import Difference, NoLogprobsError, pair
from sparkwright.verify.corpus import holds
from sparkwright.verify.statistics import mcnemar, one_sided_excess
from sparkwright.verify.upgrade.pairs import MatchedCells
from sparkwright.verify.upgrade.speed import CHECK

LIMIT_NAT = 0.5
"""A gap that rounding does not explain: at logits around 20, bfloat16 has steps of 0.125."""
MARGIN = 2.0
"""Least distance of a gap beyond those of one server at two batch sizes."""
SURE = 0.01
FEW_TASKS = 20


def judge_quality(matched: MatchedCells) -> list[Finding]:
    """Return findings on greedy answers, on solved tasks, and on failed requests."""
    return [_answers(matched), _tasks(matched), _failures(matched)]


# Answers -------------------------------------------------------------------------------------------------


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


def _compared_answers(
    matched: MatchedCells, keys: Sequence[str]
) -> tuple[Verdict, str, dict[str, float | str]]:
    old, new = ({o.cell.load.concurrency: o for o in matched.of(arm, keys)[0]} for arm in ("before", "after"))
    if not keys or not all(o.counted for o in (*old.values(), *new.values())):
        why = "answers with log-probabilities were not measured on both sides"
        return Verdict.NOT_APPLICABLE, f"{why}: run the check `lossless`", {}
    try:
        pairings = [pair(old[level], new[level]) for level in sorted(old)]
        usual = [gap for level in sorted(old)[1:] for gap in pair(old[min(old)], old[level]).gaps]
        apart = _distance((old[level], new[level]) for level in sorted(old))
        usually = _distance((old[min(old)], old[level]) for level in sorted(old)[1:])
    except NoLogprobsError as error:
        return Verdict.NOT_APPLICABLE, str(error), {}
    gaps = [gap for pairing in pairings for gap in pairing.gaps]
    limit = max(LIMIT_NAT, MARGIN * max(usual, default=0.0))
    measured: dict[str, float | str] = {
        "answers": len(gaps),
        "answers that differ": sum(gap > 0 for gap in gaps),
        "largest gap nat": round(max(gaps, default=0.0), 4),
        "largest of one server nat": round(max(usual, default=0.0), 4),
        "mean distance nat": round(apart, 5),
        "mean distance of one server nat": round(usually, 5),
    }
    odd = [one for pairing in pairings for one in pairing.found if one.gap > limit]
    if odd:
        return Verdict.FAIL, f"{_odd(odd, len(gaps))}", measured
    shown = f"{measured['answers that differ']} of {len(gaps)} answers differ"
    p = one_sided_excess([gap > 0 for gap in usual], [gap > 0 for gap in gaps]) if usual and gaps else 1.0
    more = f", more than one server's at two batch sizes (p = {p:.4f})" if p < SURE else ""
    return Verdict.PASS, f"{shown}{more}, all of them at near ties", measured


def _distance(pairs: Iterable[tuple[Observation, Observation]]) -> float:
    """Return the mean distance of the probabilities of each token that both sides of a pair continue."""
    found = [distances(old, new).values() for old, new in pairs]
    return fmean([*chain.from_iterable(chain.from_iterable(found))] or [0.0])


def _odd(odd: Sequence[Difference], total: int) -> str:
    worst = max(odd, key=lambda one: one.gap)
    return f"{len(odd)} of {total} answers part at a token that rounding does not explain, such as {worst}"


# Tasks ---------------------------------------------------------------------------------------------------


def _tasks(matched: MatchedCells) -> Finding:
    keys = [
        key for check in ("lossless", "coherence", "context") for key in matched.cells(check, _has_answers)
    ]
    right = {arm: _right(matched.of(arm, keys)[0]) for arm in ("before", "after")}
    common = right["before"].keys() & right["after"].keys()
    lost = [name for name in sorted(common) if right["before"][name] and not right["after"][name]]
    won = sum(right["after"][name] and not right["before"][name] for name in common)
    before, after = (sum(right[arm][name] for name in common) for arm in ("before", "after"))
    p = mcnemar(len(lost), won)
    shown = f"{after} of {len(common)} are solved, before {before}; {len(lost)} lost, {won} won"
    verdict = Verdict.PASS
    if len(common) < FEW_TASKS:
        verdict, shown = Verdict.NOT_APPLICABLE, f"{len(common)} tasks on both sides are too few to tell"
    elif p < SURE and len(lost) > won:
        verdict, shown = Verdict.FAIL, f"{shown} (p = {p:.4f}), such as {lost[0]}"
    return Finding(
        check=CHECK,
        name="tasks are solved as well",
        definition="Tasks, facts and needles with one right answer, put to both servers; those that only one"
        " of them solves are compared (McNemar's exact test).",
        verdict=verdict,
        cause=shown,
        measured={
            "solved": after,
            "solved before": before,
            "tasks": len(common),
            "lost": len(lost),
            "won": won,
        },
        threshold=f"fails where more are lost than won and p < {SURE}; says nothing below {FEW_TASKS} tasks",
        evidence=tuple(keys),
    )


def _has_answers(cell: Cell) -> bool:
    return any(prompt.expect for prompt in cell.prompts)


def _right(observations: Sequence[Observation]) -> dict[str, bool]:
    """Tell for each task with an answer, by cell and prompt, if it was solved."""
    return {
        f"{observation.cell.name} {sample.prompt}": holds(expected[sample.prompt], sample.text)
        for observation in observations
        for expected in ({prompt.name: prompt.expect for prompt in observation.cell.prompts},)
        for sample in observation.counted
        if expected.get(sample.prompt)
    }


# Failures ------------------------------------------------------------------------------------------------


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
