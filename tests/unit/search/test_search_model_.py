"""The headline of a bisection names the answer, in harmless text."""

import pytest
from search_kit import Judge, problem, run, untestable

from sparkwright.search.model import Change, headline


def test_control_characters_of_a_title_are_not_shown() -> None:
    changes = tuple(Change(id=f"c{n}", axis="carries", title=f"{n} \x1b[31m \u202e") for n in range(1, 6))
    asked = problem(changes=changes)
    text = headline(asked, run(asked, Judge(lambda applied: "c4" in applied)))
    assert text.startswith("4 ")
    assert not {"\x1b", "\u202e"} & set(text)


@pytest.mark.parametrize(("rule", "kind", "named"), [
    (lambda a: "c2" in a, "culprit", {"change 2"}),
    (lambda a: {"c2", "c5"} <= a, "interaction", {"change 2", "change 5"}),
    (lambda a: untestable() if len(a) == 2 else len(a) >= 2, "range", {"change 2", "change 3"}),
])  # fmt: skip
def test_each_kind_of_answer_is_named(rule, kind, named) -> None:
    asked = problem(6, "upstream" if kind == "range" else "carries")
    result = run(asked, Judge(rule))
    assert result.kind == kind
    text = headline(asked, result)
    assert all(name in text for name in named)
    assert "change 4" not in text
