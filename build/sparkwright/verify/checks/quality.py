"""Answers, tasks and failures of a server beside those of another one, to the same prompts.

Both are observations by the key of their cell: of two finished runs, or of two settings of a recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.checks.answers import Solved, answers_agree, mean_distance, right_answers
from sparkwright.verify.checks.common import Values, finding
from sparkwright.verify.checks.triage import describe
from sparkwright.verify.statistics import one_sided_excess

NAME = "compare"
SURE = 0.01
FEW_TASKS = 20

Cells = Mapping[str, Observation]


def judge_quality(before: Sequence[Cells], after: Sequence[Cells], keys: Sequence[str]) -> list[Finding]:
    """Return findings on greedy answers and solved tasks of the first of each side, and on failed requests.

    Args:
        before: observations of each run, by the key of their cell.
        after: likewise.
        keys: those that all of them have.
    """

    def both(check: str, where: Callable[[Cell], bool]) -> tuple[list[Observation], list[Observation]]:
        cells = [before[0][key].cell for key in keys]
        chosen = [cell.key for cell in cells if cell.check == check and where(cell)]
        return [before[0][key] for key in chosen], [after[0][key] for key in chosen]

    answers = both("lossless", lambda cell: cell.tags.get("kind") == "answers")
    asked = [
        both(check, lambda cell: any(prompt.expect for prompt in cell.prompts))
        for check in ("lossless", "coherence", "context")
    ]
    tasks = [o for old, _ in asked for o in old], [o for _, new in asked for o in new]
    return [_answers(*answers), _tasks(*tasks), _failures(before, after, keys)]


def keys_of(observations: Sequence[Observation]) -> tuple[str, ...]:
    """Return the keys of the cells of *observations*."""
    return tuple(one.cell.key for one in observations)


def _answers(before: Sequence[Observation], after: Sequence[Observation]) -> Finding:
    old, new = ({o.cell.load.concurrency: o for o in side} for side in (before, after))
    if not old or not all(o.counted for o in (*before, *after)):
        why = "answers with log-probabilities were not measured on both sides: run the check `lossless`"
        return finding(NAME, "quality.answers", Verdict.NOT_APPLICABLE, why)
    lowest, *higher = sorted(old)
    pairs = [(old[level], new[level]) for level in (lowest, *higher)]
    null = [(old[lowest], old[level]) for level in higher]
    found = answers_agree(pairs, null)
    if found.against:
        return finding(NAME, "quality.answers", Verdict.NOT_APPLICABLE, found.against[0][1])
    measured: Values = {
        **found.figures,
        "largest of one server nat": round(found.usual, 4),
        "mean distance nat": round(mean_distance(pairs), 5),
        "mean distance of one server nat": round(mean_distance(null), 5),
    }
    gaps, usual = ([gap > 0 for gap in one] for one in (found.gaps, found.null_gaps))
    p = one_sided_excess(usual, gaps) if usual and gaps else 1.0
    more = f", more than one server's at two batch sizes (p = {p:.4f})" if p < SURE else ""
    cause = f"{sum(gaps)} of {len(gaps)} answers differ{more}, all of them at near ties"
    odd = found.beyond(found.limit, "part at a token that rounding does not explain")
    verdict = Verdict.FAIL if odd else Verdict.PASS
    return finding(
        NAME, "quality.answers", verdict, odd or cause, measured=measured, evidence=keys_of(before)
    )


def _tasks(before: Sequence[Observation], after: Sequence[Observation]) -> Finding:
    solved = Solved.of(right_answers(before), right_answers(after))
    lost, won, p = len(solved.lost), solved.won, solved.p
    verdict = Verdict.PASS
    cause = f"{solved.after} of {solved.total} are solved, before {solved.before}; {lost} lost, {won} won"
    if solved.total < FEW_TASKS:
        verdict, cause = Verdict.NOT_APPLICABLE, f"{solved.total} tasks on both sides are too few to tell"
    elif p < SURE and lost > won:
        verdict, cause = Verdict.FAIL, f"{cause} (p = {p:.4f}), such as {solved.lost[0]}"
    measured: Values = {"solved": solved.after, "solved before": solved.before, "tasks": solved.total}
    measured |= {"lost": lost, "won": won}
    return finding(NAME, "quality.tasks", verdict, cause, measured=measured, evidence=keys_of(before))


def _failures(before: Sequence[Cells], after: Sequence[Cells], keys: Sequence[str]) -> Finding:
    worse = []
    for key in keys:
        old = max(len(run[key].failed) for run in before)
        for seen in (run[key] for run in after):
            if len(seen.failed) > old:
                failure = seen.failed[0].failure
                why = f": {failure.kind}, {failure.detail}" if failure is not None else ""
                where = describe(seen.cell)
                worse.append(f"{len(seen.failed)} requests fail in {where}, before {old}{why}")
            elif seen.died is not None and all(run[key].died is None for run in before):
                worse.append(f"the server ended in {describe(seen.cell)}")
    total = sum(len(run[key].samples) for run in after for key in keys)
    if worse:
        return finding(NAME, "quality.failures", Verdict.FAIL, "; ".join(worse[:3]))
    return finding(NAME, "quality.failures", Verdict.PASS, f"of {total} requests no more failed than before")
