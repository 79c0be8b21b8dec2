"""Relative links lead to files that exist, and the page on architecture lists every package in its layer."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


def links(text: str) -> Iterator[str]:
    """Yield the target of every link and image in a Markdown *text*."""
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        for token in block.children or ():
            target = token.attrGet("href") or token.attrGet("src")
            if target:
                yield str(target)


def broken_links(page: Path) -> list[str]:
    """Return the relative links of *page* whose target is no file or folder."""
    found = (urlsplit(link) for link in links(page.read_text(encoding="utf-8")))
    return [
        link.geturl()
        for link in found
        if not link.scheme and link.path and not (page.parent / unquote(link.path)).exists()
    ]


def test_links_lead_to_files() -> None:
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "*.md"], check=True, capture_output=True, text=True
    ).stdout
    pages = [ROOT / name for name in listed.split("\0") if name]
    assert ROOT / "README.md" in pages
    assert {page.name: broken_links(page) for page in pages if broken_links(page)} == {}


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there is.md").touch()
    page = tmp_path / "page.md"
    page.write_text(
        "[good](there%20is.md#part) [outside](https://example.org/x) [here](#part)\n\n"
        "| a |\n|---|\n| [in a table](absent.md) |\n\n![picture](absent.svg)\n"
    )
    assert broken_links(page) == ["absent.md", "absent.svg"]


def packages_listed(page: str) -> dict[str, list[str]]:
    """Return the packages in the table under "Packages", in its order, with the files to open first."""
    rows = re.findall(
        r"^\| `(\w+)` \| .* \| (.+) \|$", page.partition("## Packages")[2].partition("\n## ")[0], re.MULTILINE
    )
    return {name: re.findall(r"`([\w.]+)`", files) for name, files in rows}


def layers() -> list[set[str]]:
    """Return the packages of each layer that `lint-imports` enforces, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [set(layer.split(" | ")) - {"__main__"} for layer in contracts[0]["layers"]][1:]


def test_the_page_on_architecture_lists_every_package_in_the_order_of_its_layers() -> None:
    listed = packages_listed((ROOT / "docs" / "architecture.md").read_text())
    layer_of = {name: number for number, layer in enumerate(layers()) for name in layer}
    assert set(listed) == set(layer_of)
    assert list(listed) == sorted(listed, key=lambda name: layer_of[name])
    source = ROOT / "build" / "sparkwright"
    assert [
        name for name, files in listed.items() if not all((source / name / file).is_file() for file in files)
    ] == []
