"""Chat templates that vLLM cannot use, each planted beside its healthy twin."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.recipes import Recipe
from sparkwright.serve.preflight.files import check_template

WHOLE = "{% for m in messages %}{{ m.content }}{% endfor %}"
BROKEN = "{% for m in messages %}{{ m.content }}"


def found(**flags: Any) -> list[tuple[str, str]]:
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    recipe = Recipe(format=1, name="r", title="r", model="m", flags=given)
    return [(one.check, one.level) for one in check_template(recipe)]


WARNED, REFUSED = ("chat-template", "warn"), ("chat-template", "refuse")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("@/whole.jinja", []),
        ("@/broken.jinja", [WARNED]),
        # What vLLM cannot open
        ("@/none.jinja", [REFUSED]),
        ("@/", [REFUSED]),
        ("@/latin.jinja", [REFUSED]),
        # A relative path wherever one stands, but for those of vLLM's own
        ("whole.jinja", [REFUSED]),
        ("template_chatml.jinja", []),
        # The template itself
        (WHOLE * 500, []),
        (BROKEN, [WARNED]),
    ],
)
def test_a_template_that_is_given(tmp_path, monkeypatch, given, expected) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole.jinja").write_text(WHOLE)
    (tmp_path / "broken.jinja").write_text(BROKEN)
    (tmp_path / "latin.jinja").write_bytes(b"caf\xe9 {{ x }}")
    assert found(chat_template=given.replace("@", str(tmp_path))) == expected


def test_tags_that_transformers_adds() -> None:
    text = "{% for m in messages %}{% generation %}{{ m }}{% endgeneration %}{% break %}{% endfor %}"
    assert found(chat_template=text) == []
    assert found(chat_template=text.replace("{% endgeneration %}", "")) == [WARNED]
