"""The table of findings: code and documentation read the same rows, and none is left over."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkwright.serve.preflight.finding import finding, finding_rows

ROOT = Path(__file__).parents[3]
SOURCE = "".join(
    path.read_text(encoding="utf-8")
    for path in (ROOT / "build" / "sparkwright" / "serve" / "preflight").glob("*.py")
)


def test_every_row_is_used_and_every_finding_has_a_row():
    rows = finding_rows()
    assert set(re.findall(r'finding\(\s*"([a-z0-9/-]+)"', SOURCE)) <= rows.keys()
    assert [name for name in rows if f'"{name}"' not in SOURCE] == []


def test_a_case_has_what_it_does_not_state_from_its_finding():
    facts = {"name": "N", "value": "v", "host": "h", "slow": "s", "fast": "f", "first": "f", "up": "u"}
    plain, none = finding("link-interface", **facts), finding("link-interface/none", **facts)
    assert (none.check, none.level, none.next_step) == ("link-interface", "refuse", plain.next_step)
    assert none.what != plain.what


def test_a_fact_that_is_missing_is_an_error_and_a_brace_in_one_is_not():
    with pytest.raises(KeyError, match="address"):
        finding("port", port=1)
    assert finding("port", port=1, address="{x}").what == "port 1 of {x} is taken"


def test_pages_have_a_place_for_every_table_and_none_for_others(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "scripts")])
    from docs_hooks import TABLES, on_page_markdown, table

    rows = table("findings").splitlines()[2:]
    assert len(rows) == len(finding_rows())
    assert all(len(re.split(r"(?<!\\)\|", row)) == 6 for row in rows)
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")]
    assert {name for text in pages for name in re.findall("<!-- table of ([a-z]+) -->", text)} == set(TABLES)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="recipes.md"))
    assert "| `smoke` |" in on_page_markdown("<!-- table of recipes -->", page=page)
