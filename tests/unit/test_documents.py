"""Links and names of pages lead to files and headings, and the page on architecture lists every package."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]


def links(text: str) -> Iterator[str]:
    """Yield the target of every link and image in a Markdown *text*."""
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        for token in block.children or ():
            target = token.attrGet("href") or token.attrGet("src")
            if target:
                yield str(target)


def broken_links(page: Path) -> list[str]:
    """Return the relative links of *page* whose target is no file or folder, or has no such heading."""
    found = (urlsplit(link) for link in links(page.read_text(encoding="utf-8")))
    return [link.geturl() for link in found if not link.scheme and not _leads(page, unquote(link.path), link)]


def _leads(page: Path, path: str, link: SplitResult) -> bool:
    target = page.parent / path if path else page
    anchored = link.fragment and target.suffix == ".md"
    return target.exists() and (not anchored or link.fragment in headings(target))


@cache
def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    texts = (one.content for before, one in pairwise(tokens) if before.type == "heading_open")
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower()) for text in texts}


def named_pages(text: str) -> Iterator[str]:
    """Yield each page of docs/, with its anchor, that a *text* other than Markdown names."""
    yield from re.findall(r"\bdocs/[\w./-]+\.md(?:#[\w-]+)?", text)


def missing_pages(text: str, root: Path) -> list[str]:
    """Return the pages named in *text* that *root* does not have, or that have no such heading.

    Carries name the records of measurements by files of a past commit, which the table of evidence lists:
    their words are in wheels, whose bytes would change with them.
    """
    found, evidence = [], root / "docs" / "evidence.md"
    listed = re.findall(r"`(2026-[\w.-]+)`", evidence.read_text(encoding="utf-8"))
    records = {f"docs/evidence/{name}.md" for name in listed}
    for name in named_pages(text):
        page, _, anchor = name.partition("#")
        if page in records:
            continue
        if not (root / page).is_file() or (anchor and anchor not in headings(root / page)):
            found.append(name)
    return found


def tracked(*patterns: str) -> list[Path]:
    """Return the files of this repository that match one of *patterns*."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", *patterns], check=True, capture_output=True, text=True
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_links_lead_to_files() -> None:
    pages = tracked("*.md")
    assert ROOT / "README.md" in pages
    wrong = {page.name: broken_links(page) for page in pages}
    assert {name: links for name, links in wrong.items() if links} == {}


def test_pages_that_carries_recipes_and_code_name_are_there() -> None:
    files = tracked("carries/*.toml", "build/*.toml", "build/*.py", "scripts/*.py", "tests/gpu/*.py")
    named = [name for file in files for name in named_pages(file.read_text(encoding="utf-8"))]
    assert named
    wrong = {file.name: missing_pages(file.read_text(encoding="utf-8"), ROOT) for file in files}
    assert {name: pages for name, pages in wrong.items() if pages} == {}


def test_a_page_or_heading_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Title\n\n## The kernel's 0.33 bits\n\ntext\n")
    (tmp_path / "docs" / "evidence.md").write_text("H200 · `2026-11-pair`\n")
    good = "in docs/page.md and (docs/page.md#the-kernels-033-bits), docs/evidence/2026-11-pair.md."
    assert missing_pages(good, tmp_path) == []
    assert missing_pages("docs/gone.md, docs/page.md#text, docs/evidence/2026-11-x.md", tmp_path) == [
        "docs/gone.md", "docs/page.md#text", "docs/evidence/2026-11-x.md",
    ]  # fmt: skip


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there is.md").write_text("## A part\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n\n[good](there%20is.md#a-part) [outside](https://example.org/x#y)\n\n"
        "[here](#here) [no](#part)\n\n"
        "| a |\n|---|\n| [in a table](absent.md) |\n\n![picture](absent.svg)\n"
    )
    assert broken_links(page) == ["#part", "absent.md", "absent.svg"]


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
