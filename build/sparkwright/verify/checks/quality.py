"""Answers, tasks and failures of a server beside those of another one, to the same prompts.

Both are observations by the key of their cell: of two finished runs, or of two settings of a recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.checks.answers import Solved, answers_agree, right_answers
from sparkwright.verify.checks.common import Values, finding
from sparkwright.verify.checks.triage import SEVERITY, describe

NAME = "compare"
SURE = 0.01
FEW_TASKS = 20

Cells = Mapping[str, Observation]


def judge_quality(before: Sequence[Cells], after: Sequence[Cells], keys: Sequence[str]) -> list[Finding]:
    """Return findings on greedy answers and solved tasks of the worst run after, and on failed requests.

    Answers and tasks are held against those of the first run before.
    """

    def worst(
        judge: Callable[[Sequence[Observation], Sequence[Observation]], Finding],
        where: Callable[[Cell], bool],
    ) -> Finding:
        chosen = [key for key in keys if where(before[0][key].cell)]
        old = [before[0][key] for key in chosen]
        found = [judge(old, [run[key] for key in chosen]) for run in after]
        return max(found, key=lambda one: SEVERITY.index(one.verdict))

    def answers(cell: Cell) -> bool:
        return cell.check == "lossless" and cell.tags.get("kind") == "answers"

    def tasks(cell: Cell) -> bool:
        asked = cell.check in {"lossless", "coherence", "context"}
        return asked and any(prompt.expect for prompt in cell.prompts)

    return [worst(_answers, answers), worst(_tasks, tasks), _failures(before, after, keys)]


def _answers(before: Sequence[Observation], after: Sequence[Observation]) -> Finding:
    old, new = ({o.cell.load.concurrency: o for o in side} for side in (before, after))
    if not old or not all(o.counted for o in (*before, *after)):
        why = "answers with log-probabilities were not measured on both sides: run the check `lossless`"
        return finding(NAME, "quality.answers", Verdict.NOT_APPLICABLE, why)
    lowest, *higher = sorted(old)
    found = answers_agree(
        [(old[level], new[level]) for level in old], [(old[lowest], old[up]) for up in higher]
    )
    if found.against:
        return finding(NAME, "quality.answers", Verdict.NOT_APPLICABLE, found.against[0][1])
    parted = found.beyond(found.limit, "part at a token that rounding does not explain")
    differ = sum(gap > 0 for gap in found.gaps)
    return finding(
        NAME,
        "quality.answers",
        Verdict.FAIL if parted else Verdict.PASS,
        parted or f"{differ} of {len(found.gaps)} answers differ, all of them at near ties",
        measured={**found.figures, "largest of one server nat": round(found.usual, 4)},
        evidence=[o.cell.key for o in before],
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
    evidence = [o.cell.key for o in before]
    return finding(NAME, "quality.tasks", verdict, cause, measured=measured, evidence=evidence)


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
    return finding(
        NAME,
        "quality.failures",
        Verdict.FAIL if worse else Verdict.PASS,
        "; ".join(worse[:3]) or f"of {total} requests no more failed than before",
    )
