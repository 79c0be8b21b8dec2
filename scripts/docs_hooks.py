"""Hooks of mkdocs: generated tables, and links that leave docs/ as plain paths."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from sparkwright.carries import Carry, load_carries
from sparkwright.serve.container_env import variables
from sparkwright.serve.preflight.finding import finding_rows

ROOT = Path(__file__).parents[1]
_TABLE_MARK = "<!-- table of carries -->"
_FINDINGS_MARK = "<!-- table of findings -->"
_VARIABLES_MARK = "<!-- table of variables -->"
_FACT = re.compile(r"\{[^}]*\}")
_LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return *markdown* as the site shows it."""
    if _TABLE_MARK in markdown:
        markdown = markdown.replace(_TABLE_MARK, table_of_carries(load_carries(ROOT / "carries")))
    if _FINDINGS_MARK in markdown:
        markdown = markdown.replace(_FINDINGS_MARK, table_of_findings())
    if _VARIABLES_MARK in markdown:
        markdown = markdown.replace(_VARIABLES_MARK, table_of_variables())
    return link_outside_as_path(markdown, page.file.src_uri)


def link_outside_as_path(markdown: str, source: str) -> str:
    """Replace links from *source* to files outside docs/, which the site does not hold, by text and path."""

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), link["target"]))
        return link[0] if path.startswith("docs/") else f"{link['text']} (`{path}`)"

    return _LINK.sub(replaced, markdown)


def table_of_carries(carries: dict[str, Carry]) -> str:
    """Return a Markdown table with each carry's title, upstream pull requests and level of evidence."""
    rows = ["| carry | what it does | upstream | shown on |", "|---|---|---|---|"]
    for name, carry in sorted(carries.items()):
        spec = carry.spec
        pulls = ", ".join(f"#{entry.pull}" for entry in spec.upstream)
        rows.append(f"| `{name}` | {spec.title} | {pulls} | {spec.evidence.level} |")
    return "\n".join(rows)


def table_of_findings() -> str:
    """Return a Markdown table of preflight's findings: facts, which differ from start to start, are dots."""
    rows = ["| finding | level | what | remedy |", "|---|---|---|---|"]
    for name, row in finding_rows().items():
        level = f"{row.level}, liftable" if row.liftable else row.level
        what, remedy = (_FACT.sub("…", text).replace("|", "\\|") for text in (row.what, row.next))
        rows.append(f"| `{name.partition('/')[0]}` | {level} | {what} | {remedy} |")
    return "\n".join(rows)


def table_of_variables() -> str:
    """Return a Markdown table of a container's variables."""
    rows = ["| variable | sets |", "|---|---|"]
    for first, one in variables().items():
        names = " or ".join(f"`{name}`" for name in (first, *one.names))
        rows.append(f"| {names} | {one.means or f'the flag `{one.flag}`'} |")
    return "\n".join(rows)
