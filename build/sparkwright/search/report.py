"""Reports of a bisection: one HTML page, Markdown and JSON.

All three are the same for the same journal. Text of changes and judges goes through `clean` and is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.page import page_environment
from sparkwright.base.text import clean, human_seconds
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
_WIDTH = 1000.0  # of the picture's columns, in its own units
_ROW = 16
_LIST = 12  # changes of a range that are spelt out


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
    names = " and ".join(change.title for change in named)
    effect = {
        ("broke", "adds"): "broke it",
        ("fixed", "adds"): "fixed it",
        ("broke", "removes"): "would mend it if removed",
        ("fixed", "removes"): "would break it if removed",
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
    environment = page_environment(TEMPLATES)
    environment.filters["human_seconds"] = human_seconds
    good, bad = ends(problem)
    found = rows(problem, result)
    page = environment.get_template("bisection.html").render(
        problem=problem,
        result=result,
        headline=headline(problem, result),
        tone="pass" if result.kind in {"culprit", "interaction"} else "inconclusive",
        changes=_changes(problem, result),
        rows=found,
        height=_ROW * len(found),
        row=_ROW,
        left=_spots(problem, result),
        good=good,
        bad=bad,
        seconds=sum(one.seconds for one in found),
        tones=_TONES,
    )
    return page.strip() + "\n"


def _spots(problem: SearchProblem, result: SearchResult) -> tuple[tuple[float, float], ...]:
    """Return the columns of the answer."""
    return tuple(_bars([change.id for change in problem.changes], frozenset(result.changes)))


def render_markdown(problem: SearchProblem, result: SearchResult) -> str:
    """Return the result as Markdown."""
    good, bad = ends(problem)
    named = _changes(problem, result)
    calibration = result.calibration
    lines = [
        f"## {_cell(headline(problem, result))}",
        "",
        f"- good: `{_code(good)}`; bad: `{_code(bad)}`; judge: `{_code(problem.judge)}`",
        f"- {result.kind}, confidence {result.confidence:.1%}",
        f"- {result.evaluations} evaluations, {result.searching} after both ends",
        f"- {len(result.untestable)} of them could not be judged",
        f"- the bad end was bad in {calibration.shown} of {calibration.runs} runs",
        f"- good runs that make a candidate good: {calibration.repetitions}",
    ]
    lines += [f"- `{_code(change.id)}`: {_cell(change.title)}" for change in named[:_LIST]]
    if len(named) > _LIST:
        lines.append(f"- and {len(named) - _LIST} more")
    lines += ["", "| step | applied | runs | verdict | time | detail |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row.first} | {_cell(', '.join(row.step.applied) or 'nothing')} | {len(row.steps)} "
        f"| {row.step.verdict} | {human_seconds(row.seconds)} | {_cell(row.detail)} |"
        for row in rows(problem, result)
    ]
    if result.check:
        lines += ["", "Check by hand, the bad one first:", "", "```sh", *map(clean, result.check), "```"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Return *text* for a cell of a table."""
    shown = clean(text, 300).replace("\\", "\\\\")
    for character in "|<>[]*_`":
        shown = shown.replace(character, f"\\{character}")
    return " ".join(shown.split())


def _code(text: str) -> str:
    return clean(text, 300).replace("`", "'").replace("\n", " ")


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
