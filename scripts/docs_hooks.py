"""Hooks of mkdocs: generate the tables of carries and checks, and turn links that leave docs/ into paths."""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from sparkwright.carries import Carry, load_carries

ROOT = Path(__file__).parents[1]
_TABLE_MARK, _CHECKS_MARK = "<!-- table of carries -->", "<!-- table of checks -->"
_LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return *markdown* as the site shows it."""
    if _TABLE_MARK in markdown:
        markdown = markdown.replace(_TABLE_MARK, table_of_carries(load_carries(ROOT / "carries")))
    if _CHECKS_MARK in markdown:
        markdown = markdown.replace(_CHECKS_MARK, table_of_checks())
    return link_outside_as_path(markdown, page.file.src_uri)


def link_outside_as_path(markdown: str, source: str) -> str:
    """Replace links from *source* to files outside docs/, which the site does not hold, by text and path."""

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), link["target"]))
        return link[0] if path.startswith("docs/") else f"{link['text']} (`{path}`)"

    return _LINK.sub(replaced, markdown)


def table_of_checks() -> str:
    """Return a Markdown table with what each check of `verify` measures, and when it fails."""
    path = ROOT / "build" / "sparkwright" / "verify" / "checks" / "findings.toml"
    texts = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = ["| check | measurement | fails when |", "|---|---|---|"]
    rows += [
        f"| `{name}` | {one['measures']} | {one['fails']} |"
        for name, one in texts.items()
        if "measures" in one
    ]
    return "\n".join(rows)


def table_of_carries(carries: dict[str, Carry]) -> str:
    """Return a Markdown table with each carry's title, upstream pull requests and level of evidence."""
    rows = ["| carry | what it does | upstream | shown on |", "|---|---|---|---|"]
    for name, carry in sorted(carries.items()):
        spec = carry.spec
        pulls = ", ".join(f"#{entry.pull}" for entry in spec.upstream)
        rows.append(f"| `{name}` | {spec.title} | {pulls} | {spec.evidence.level} |")
    return "\n".join(rows)
