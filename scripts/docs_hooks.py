"""Hooks of mkdocs: generated tables, and links that leave docs/ as plain paths.

A page has the place of a table as ``<!-- table of NAME -->``, NAME being one of `TABLES`.
"""

from __future__ import annotations

import json
import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from sparkwright.carries.model import load_carries
from sparkwright.engine.server.failures import causes
from sparkwright.recipes.evidence import GRADES
from sparkwright.recipes.recipe import recipes
from sparkwright.serve.preflight.finding import finding_rows

ROOT = Path(__file__).parents[1]
_MARK = re.compile(r"<!-- table of ([a-z]+) -->")
_FACT = re.compile(r"\{[^}]*\}")
_LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return *markdown* as the site shows it."""
    markdown = _MARK.sub(lambda mark: table(mark[1]), markdown)
    return link_outside_as_path(markdown, page.file.src_uri)


def link_outside_as_path(markdown: str, source: str) -> str:
    """Replace links from *source* to files outside docs/, which the site does not hold, by text and path."""

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), link["target"]))
        return link[0] if path.startswith("docs/") else f"{link['text']} (`{path}`)"

    return _LINK.sub(replaced, markdown)


def table(name: str) -> str:
    """Return the table *name* in Markdown."""
    headings, rows = TABLES[name]
    lines = [headings, ["---"] * len(headings), *rows()]
    escaped = ([cell.replace("|", r"\|") for cell in cells] for cells in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def _carries() -> Iterator[list[str]]:
    for name, carry in sorted(load_carries(ROOT / "carries").items()):
        spec = carry.spec
        pulls = ", ".join(f"#{entry.pull}" for entry in spec.upstream)
        yield [f"`{name}`", spec.title, pulls, spec.evidence.level]


def _findings() -> Iterator[list[str]]:
    """Yield preflight's findings: facts, which differ from start to start, are dots."""
    for row in finding_rows().values():
        level = f"{row.level}, liftable" if row.liftable else row.level
        what, remedy = (_FACT.sub("…", text) for text in (row.what, row.next_step))
        yield [f"`{row.check}`", level, what, remedy]


def _causes() -> Iterator[list[str]]:
    """Yield the known causes of a server's failed start or end."""
    for name, (cause, _) in causes().items():
        yield [f"`{name}`", cause.because, cause.next_step]


def _recipes() -> Iterator[list[str]]:
    for recipe in recipes().values():
        page = recipe.about.page if recipe.about is not None else ""
        yield [
            f"`{recipe.name}`",
            f"[{recipe.model}]({page})" if page else recipe.model,
            recipe.drafter or str(recipe.speculative.get("method", "none")),
            str(recipe.flags.get("kv-cache-dtype", "auto")),
            str(recipe.nodes),
            ", ".join(recipe.uses) or "none",
            ", ".join(recipe.series) or "any",
            recipe.standing,
        ]


def _grades() -> Iterator[list[str]]:
    for grade, said in GRADES.items():
        yield [f"`{grade}`", said]


def _checks() -> Iterator[list[str]]:
    for name, one in _toml_of_verify("checks/findings.toml").items():
        if "measures" in one:
            yield [f"`{name}`", one["measures"], one["fails"]]


def _faults() -> Iterator[list[str]]:
    for name, one in _toml_of_verify("simulator/faults.toml").items():
        yield [f"`{name}`", one["does"], ", ".join(one["noticed-by"]) or "none: it is odd, and right"]


def _outcomes() -> Iterator[list[str]]:
    for series, columns in _LATER.items():
        for carry in next(iter(columns.values())):
            yield [series, f"`{carry}`", *(columns.get(release, {}).get(carry, "") for release in _RELEASES)]


def _toml_of_verify(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "build" / "sparkwright" / "verify" / path).read_text(encoding="utf-8"))


_LATER: dict[str, dict[str, dict[str, str]]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "patchsets" / "later-releases").glob("*.json"))
}
_RELEASES = sorted({release for columns in _LATER.values() for release in columns}, key=Version)
TABLES = {
    "carries": (["carry", "what it does", "upstream", "shown on"], _carries),
    "findings": (["finding", "level", "what", "remedy"], _findings),
    "causes": (["name", "cause", "remedy"], _causes),
    "recipes": (
        ["recipe", "model", "drafter", "KV cache", "machines", "uses", "series", "evidence"],
        _recipes,
    ),
    "grades": (["grade", "what it says"], _grades),
    "checks": (["check", "measurement", "fails when"], _checks),
    "outcomes": (["series", "carry", *_RELEASES], _outcomes),
    "faults": (["fault", "what it does", "noticed by"], _faults),
}
