"""The report of a bisection names the answer, and no text in it is markup."""

import pytest
from markdown_it import MarkdownIt
from search_kit import Judge, problem, run, untestable

from sparkwright.search.model import Change
from sparkwright.search.report import headline, render_markdown

NASTY = "<script>alert(1)</script> | `x` **b** \x1b[31m \u202e"


def nasty():
    changes = tuple(Change(id=f"c{n}|<b>", axis="carries", title=f"{n} {NASTY}") for n in range(1, 6))
    asked = problem(changes=changes, judge=NASTY, command="sparkwright check --apply '{applied}'")
    return asked, run(asked, Judge(lambda applied: "c4|<b>" in applied))


def test_text_of_others_is_no_markup() -> None:
    asked, result = nasty()
    text = render_markdown(asked, result)
    assert "\x1b" not in text
    assert "\u202e" not in text
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    children = [child for token in tokens for child in token.children or []]
    assert not [child for child in children if child.type in {"html_inline", "strong_open", "link_open"}]
    columns = [token for token in tokens if token.type == "td_open"]
    assert len(columns) == 6 * result.evaluations


@pytest.mark.parametrize(("rule", "kind", "named"), [
    (lambda a: "c2" in a, "culprit", {"change 2"}),
    (lambda a: {"c2", "c5"} <= a, "interaction", {"change 2", "change 5"}),
    (lambda a: untestable() if len(a) == 2 else len(a) >= 2, "range", {"change 2", "change 3"}),
])  # fmt: skip
def test_each_kind_of_answer_is_named_in_each_report(rule, kind, named) -> None:
    asked = problem(6, "upstream" if kind == "range" else "carries")
    result = run(asked, Judge(rule))
    assert result.kind == kind
    for text in (headline(asked, result), render_markdown(asked, result)):
        assert all(name in text for name in named)
        assert "change 4" not in text
    assert ("confidence" in render_markdown(asked, result)) == (kind != "range")


def test_runs_of_one_candidate_with_one_verdict_are_one_row() -> None:
    result = run(asked := problem(deterministic=False), Judge(lambda applied: "c5" in applied))
    rows = [line for line in render_markdown(asked, result).splitlines() if line.startswith("| ")][1:]
    numbers, runs = ([int(row.split(" | ")[place].strip("| ")) for row in rows] for place in (0, 2))
    assert (numbers[0], max(runs) > 1, sum(runs)) == (1, True, result.evaluations)
    assert [one + count for one, count in zip(numbers, runs, strict=True)][:-1] == numbers[1:]
