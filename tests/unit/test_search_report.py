"""The page, the Markdown and the JSON of a bisection name the answer, and no text in them is markup."""

import json
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from search_kit import Judge, problem, run, untestable

from sparkwright.search.model import Change
from sparkwright.search.report import headline, render_html, render_json, render_markdown, rows

NASTY = "<script>alert(1)</script> | `x` **b** \x1b[31m \u202e"


def nasty():
    changes = tuple(Change(id=f"c{n}|<b>", axis="carries", title=f"{n} {NASTY}") for n in range(1, 6))
    asked = problem(changes=changes, judge=NASTY, command="sparkwright check --apply '{applied}'")
    return asked, run(asked, Judge(lambda applied: "c4|<b>" in applied))


def page(asked, result) -> ET.Element:
    """Parse the page as XML, closing the elements that HTML leaves open."""
    text = render_html(asked, result).replace("<!doctype html>", "")
    for name in ("meta", "link"):
        parts = text.split(f"<{name} ")
        text = parts[0] + "".join(f"<{name} {part.replace('>', '/>', 1)}" for part in parts[1:])
    return ET.fromstring(text)  # noqa: S314 - our own page


def test_text_of_others_is_no_markup() -> None:
    asked, result = nasty()
    html = render_html(asked, result)
    assert "<script" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert page(asked, result).find(".//script") is None
    tokens = MarkdownIt("commonmark").enable("table").parse(render_markdown(asked, result))
    children = [child for token in tokens for child in token.children or []]
    assert not [child for child in children if child.type in {"html_inline", "strong_open", "link_open"}]
    columns = [token for token in tokens if token.type == "td_open"]
    assert len(columns) == 6 * len(rows(asked, result))


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    html = render_html(*nasty())
    assert "default-src 'none'" in html
    for forbidden in ("http://", "https://", "<script", "@import", "src="):
        assert forbidden not in html


def test_the_picture_shows_each_candidate_in_its_verdict() -> None:
    def rule(applied):
        return untestable() if len(applied) == 8 else len(applied) >= 6

    asked = problem(16, "upstream")
    result = run(asked, Judge(rule))
    picture = page(asked, result).find(".//svg")
    drawn = [(group.get("class"), group.findall("rect")[1:]) for group in picture.findall("g")]
    tones = {"good": "pass", "bad": "fail", "untestable": "invalid", "unstable": "inconclusive"}
    assert [tone for tone, _ in drawn] == [tones[step.verdict] for step in result.steps]
    for step, (_, bars) in zip(result.steps, drawn, strict=True):
        width = sum(float(bar.get("width", 0)) for bar in bars)
        assert width == pytest.approx(1000 * (int(step.applied[0][1:]) if step.applied else 0) / 16)
    (answer,) = picture.findall("rect")
    assert (float(answer.get("x", 0)), float(answer.get("width", 0))) == (312.5, 62.5)


def test_the_json_holds_everything_that_the_search_took() -> None:
    asked, result = nasty()
    data = json.loads(render_json(asked, result))
    assert [change["id"] for change in data["changes"]] == ["c4|<b>"]
    assert len(data["steps"]) == data["evaluations"] == result.evaluations
    assert data["check"] == ["sparkwright check --apply 'c4|<b>'", "sparkwright check --apply ''"]
    assert (data["kind"], data["direction"]) == ("culprit", "broke")


@pytest.mark.parametrize(("rule", "kind", "named"), [
    (lambda a: "c2" in a, "culprit", {"change 2"}),
    (lambda a: {"c2", "c5"} <= a, "interaction", {"change 2", "change 5"}),
    (lambda a: untestable() if len(a) == 2 else len(a) >= 2, "range", {"change 2", "change 3"}),
])  # fmt: skip
def test_each_kind_of_answer_is_named_in_each_report(rule, kind, named) -> None:
    asked = problem(6, "upstream" if kind == "range" else "carries")
    result = run(asked, Judge(rule))
    assert result.kind == kind
    for text in (headline(asked, result), render_markdown(asked, result), render_html(asked, result)):
        assert all(name in text for name in named)
        assert "change 4" not in text
    for render in (render_markdown, render_html):
        assert ("confidence" in render(asked, result)) == (kind != "range")


def test_many_changes_are_counted_in_the_headline_and_listed_below_it() -> None:
    asked = problem(12)
    result = run(asked, Judge(lambda applied: {f"c{n}" for n in range(1, 6)} <= applied))
    assert headline(asked, result) == "5 changes together broke it"
    assert "change 5" in render_html(asked, result)


def test_reports_are_the_same_for_the_same_result() -> None:
    asked, result = nasty()
    for render in (render_html, render_markdown, render_json):
        assert render(asked, result) == render(asked, result)
