"""Reports of a bisection: one HTML page, Markdown and JSON, the same for the same journal.

Text of changes and judges is made harmless for readers, and then for HTML or Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.page import page_environment, text_environment
from sparkwright.base.text import clean
from sparkwright.search.calibrate import ends
from sparkwright.search.model import Change, SearchProblem, SearchResult, SearchStep, StepVerdict
from sparkwright.search.subsets import Changes

TEMPLATES = Path(__file__).parent / "template"

_TONES = {
    StepVerdict.GOOD: "pass",
    StepVerdict.BAD: "fail",
    StepVerdict.UNTESTABLE: "invalid",
    StepVerdict.UNSTABLE: "inconclusive",
}
_NAMED = 3  # changes at most that a headline names
_WIDTH = 1000.0  # of the picture's columns, in its own units


@dataclass(frozen=True)
class Row:
    """Evaluations of one candidate in a row, with one verdict.

    Attributes:
        steps: the evaluations.
        first: number of the first, from 1.
        bars: left edge and width of each run of applied changes, 0 to 1000.
    """

    steps: tuple[SearchStep, ...]
    first: int
    bars: tuple[tuple[float, float], ...]

    @property
    def step(self) -> SearchStep:
        """Return the first of them."""
        return self.steps[0]

    @property
    def tone(self) -> str:
        """Return the name of its colours in the style sheet."""
        return _TONES[self.step.verdict]

    @property
    def seconds(self) -> float:
        """Return the time of all of them."""
        return sum(step.evaluation.seconds for step in self.steps)

    @property
    def detail(self) -> str:
        """Return the words of the last evaluation, or its signature."""
        evaluation = self.steps[-1].evaluation
        return evaluation.detail or evaluation.signature


def headline(problem: SearchProblem, result: SearchResult) -> str:
    """Return the answer as one sentence."""
    named = _changes(problem, result)
    few = len(named) <= _NAMED
    names = " and ".join(change.title for change in named) if few else f"{len(named)} changes"
    effect = {
        ("broke", "adds"): "broke it",
        ("fixed", "adds"): "fixed it",
        ("broke", "removes"): "would mend it if undone",
        ("fixed", "removes"): "would break it if undone",
    }[problem.direction, problem.question]
    if result.kind == "range":
        return clean(f"One of {len(named)} upstream changes {effect}: {named[0].title} to {named[-1].title}")
    if result.kind == "set":
        return clean(f"What {effect} could not be separated: {names}")
    return clean(f"{names} {'together ' if result.kind == 'interaction' else ''}{effect}")


def rows(problem: SearchProblem, result: SearchResult) -> tuple[Row, ...]:
    """Return the search in the order of its evaluations."""
    changes = Changes(problem)
    ids = [change.id for change in problem.changes]
    found = []
    number = 1
    for (applied, _), group in groupby(result.steps, key=lambda step: (step.applied, step.verdict)):
        steps = tuple(group)
        found.append(Row(steps, number, tuple(_bars(ids, changes.close(applied)))))
        number += len(steps)
    return tuple(found)


def _bars(ids: Sequence[str], applied: frozenset[str]) -> Iterator[tuple[float, float]]:
    unit = _WIDTH / len(ids)
    for inside, group in groupby(range(len(ids)), key=lambda place: ids[place] in applied):
        places = list(group)
        if inside:
            yield round(places[0] * unit, 2), round(len(places) * unit, 2)


def _changes(problem: SearchProblem, result: SearchResult) -> list[Change]:
    return [change for change in problem.changes if change.id in result.changes]


def render_html(problem: SearchProblem, result: SearchResult) -> str:
    """Return the result as one page that needs no network and no script."""
    page = page_environment(TEMPLATES).get_template("bisection.html")
    return page.render(**_values(problem, result), tones=_TONES).strip() + "\n"


def render_markdown(problem: SearchProblem, result: SearchResult) -> str:
    """Return the result as Markdown."""
    text = text_environment(TEMPLATES).get_template("bisection.md.jinja")
    return text.render(**_values(problem, result)).strip() + "\n"


def _values(problem: SearchProblem, result: SearchResult) -> dict[str, Any]:
    good, bad = ends(problem)
    ids = [change.id for change in problem.changes]
    return {
        "problem": problem,
        "result": result,
        "headline": headline(problem, result),
        "named": _changes(problem, result),
        "rows": rows(problem, result),
        "answer": tuple(_bars(ids, frozenset(result.changes))),
        "good": good,
        "bad": bad,
    }


def render_json(problem: SearchProblem, result: SearchResult) -> bytes:
    """Return the result as JSON, the changes of the answer spelt out."""
    data: dict[str, Any] = {
        "headline": headline(problem, result),
        **to_builtins(result),
        "changes": to_builtins(_changes(problem, result)),
        "evaluations": result.evaluations,
        "searching": result.searching,
        "start": problem.start,
        "end": problem.end,
        "judge": problem.judge,
        "direction": problem.direction,
        "question": problem.question,
    }
    return to_json(data)
