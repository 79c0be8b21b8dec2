"""The report of a bisection as Markdown, the same for the same journal; text of others is no markup in it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from sparkwright.base.page import text_environment
from sparkwright.base.text import clean
from sparkwright.search.calibrate import ends
from sparkwright.search.model import SearchProblem, SearchResult

_TEMPLATES = Path(__file__).parent / "template"
_NAMED = 3  # changes at most that a headline names


def headline(problem: SearchProblem, result: SearchResult) -> str:
    """Return the answer as one sentence."""
    named = [change for change in problem.changes if change.id in result.changes]
    few = len(named) <= _NAMED
    names = " and ".join(change.title for change in named) if few else f"{len(named)} changes"
    effect = f"{problem.direction} it"
    if result.kind == "range":
        return clean(f"One of {len(named)} upstream changes {effect}: {named[0].title} to {named[-1].title}")
    if result.kind == "set":
        return clean(f"What {effect} could not be separated: {names}")
    return clean(f"{names} {'together ' if result.kind == 'interaction' else ''}{effect}")


def render_markdown(problem: SearchProblem, result: SearchResult) -> str:
    """Return the result as Markdown, evaluations of one candidate with one verdict in one row."""
    rows, number = [], 1
    for (applied, verdict), group in groupby(result.steps, key=lambda step: (step.applied, step.verdict)):
        steps = [step.evaluation for step in group]
        rows.append(
            {
                "first": number,
                "applied": ", ".join(applied) or "nothing",
                "runs": len(steps),
                "verdict": verdict.value,
                "seconds": sum(one.seconds for one in steps),
                "detail": steps[-1].detail or steps[-1].signature,
            }
        )
        number += len(steps)
    good, bad = ends(problem)
    values = {
        "problem": problem,
        "result": result,
        "headline": headline(problem, result),
        "named": [change for change in problem.changes if change.id in result.changes],
        "rows": rows,
        "good": good,
        "bad": bad,
    }
    template = text_environment(_TEMPLATES).get_template("bisection.md.jinja")
    return template.render(**values).strip() + "\n"
