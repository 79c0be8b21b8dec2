"""The page in a real browser: it renders at every width and in every medium, and loads nothing."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import report_kit
from browser import FAINT, SIDEWAYS, Page, find_browser, running_browser, visit

from sparkwright.verify.report import render_html

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium here")

WIDTHS = (1600, 820, 390)

# Everything that is folded shows.
UNFOLD = "document.querySelectorAll('details').forEach(one => { one.open = true; })"

# Tables of cells that are wider than their frame.
CLIPPED = """[...document.querySelectorAll('#cells .scroll')].filter(one => one.scrollWidth > one.clientWidth)
  .map(one => `${one.scrollWidth} > ${one.clientWidth}`)"""

# Lines that the names of figures take.
NAMES = """[...document.querySelectorAll('.measured dt')].filter(one => one.getClientRects().length)
.map(one => Math.round(one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).lineHeight)))"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running_browser() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("reports")
    for name in ("healthy", "unhealthy", "hostile"):
        (made / f"{name}.html").write_text(render_html(getattr(report_kit, name)()))
    return made


@pytest.mark.parametrize("name", ["healthy", "unhealthy"])
def test_a_page_fits_its_window(port: int, folder: Path, name: str) -> None:
    async def look(page: Page) -> None:
        for width in WIDTHS:
            await page.look(width)
            await page.ask(UNFOLD)
            assert await page.ask(SIDEWAYS) == [], width

    visit(port, folder / f"{name}.html", look)


def test_the_table_of_cells_shows_all_of_its_columns(port: int, folder: Path) -> None:
    async def look(page: Page) -> None:
        await page.look(1400)
        await page.ask(UNFOLD)
        assert await page.ask(CLIPPED) == []

    visit(port, folder / "healthy.html", look)


def test_names_of_figures_are_never_broken_letter_by_letter(port: int, tmp_path: Path) -> None:
    """Beside a value of many words, which may have lines of its own."""
    run = report_kit.healthy()
    sizes = {"main boot 0 sizes": ", ".join(map(str, range(8, 520, 8)))}
    findings = [msgspec.structs.replace(run.findings[0], measured=sizes), *run.findings[1:]]
    file = tmp_path / "long.html"
    file.write_text(render_html(dataclasses.replace(run, findings=findings)))

    async def look(page: Page) -> list[float]:
        await page.look(1280)
        await page.ask(UNFOLD)
        found: list[float] = await page.ask(NAMES)
        return found

    heights = visit(port, file, look)
    assert heights
    assert max(heights) <= 2


def test_verdict_and_table_of_a_passed_run_take_one_screen(port: int, folder: Path) -> None:
    async def look(page: Page) -> tuple[float, int]:
        await page.look(1280, 900)
        end = await page.ask(
            "document.querySelector('#speed table').getBoundingClientRect().bottom + scrollY"
        )
        return end, await page.ask("document.body.innerText.split(/\\s+/).length")

    end, words = visit(port, folder / "healthy.html", look)
    assert end < 900
    assert words < 900


def test_a_link_to_a_folded_finding_shows_it(port: int, folder: Path) -> None:
    async def look(page: Page) -> Any:
        await page.look(1280)
        await page.ask("location.hash = '#finding-1'")
        return await page.ask("document.querySelector('#finding-1').getBoundingClientRect().height")

    assert visit(port, folder / "healthy.html", look) > 0


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_in_light_and_dark(port: int, folder: Path, *, dark: bool) -> None:
    async def look(page: Page) -> str:
        await page.look(1280, dark=dark)
        await page.ask(UNFOLD)
        assert await page.ask(FAINT) == []
        colour: str = await page.ask("getComputedStyle(document.body).backgroundColor")
        return colour

    assert visit(port, folder / "unhealthy.html", look) == (
        "rgb(13, 16, 20)" if dark else "rgb(245, 246, 248)"
    )


def test_faint_words_are_seen(port: int, folder: Path) -> None:
    faint = folder / "faint.html"
    faint.write_text((folder / "healthy.html").read_text().replace("--soft: #4d5766", "--soft: #b0b0b0"))

    async def look(page: Page) -> Any:
        await page.look(1280)
        await page.ask(UNFOLD)
        return await page.ask(FAINT)

    assert visit(port, faint, look)


def test_nothing_hostile_happens(port: int, folder: Path) -> None:
    async def look(page: Page) -> None:
        for width in WIDTHS:
            await page.look(width)
            assert await page.ask(SIDEWAYS) == []
        assert await page.ask("document.querySelectorAll('script, img, iframe').length") == 0
        await page.ask(UNFOLD)

    visit(port, folder / "hostile.html", look)


def test_on_paper_everything_that_is_folded_is_told(port: int, folder: Path) -> None:
    async def look(page: Page) -> None:
        await page.look(1280, dark=True, paper=True)
        assert await page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert await page.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
        printed = await page.print()
        assert printed.startswith(b"%PDF")

    visit(port, folder / "unhealthy.html", look)


def test_the_keyboard_reaches_links_and_tables(port: int, folder: Path) -> None:
    async def look(page: Page) -> None:
        await page.look(1280)
        seen = []
        for _ in range(12):
            await page.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", windowsVirtualKeyCode=9)
            seen.append(
                await page.ask("document.activeElement.tagName + ' ' + document.activeElement.className")
            )
        assert seen[0] == "A skip"
        assert "A check pass" in seen
        tables = "[...document.querySelectorAll('.scroll')].every(one => one.tabIndex === 0 && one.ariaLabel)"
        assert await page.ask(tables)

    visit(port, folder / "healthy.html", look)


def test_those_who_cannot_see_hear_what_is_there(port: int, folder: Path) -> None:
    async def look(page: Page) -> list[tuple[str, str]]:
        await page.look(1280)
        await page.ask(UNFOLD)
        await page.send("Accessibility.enable")
        nodes = (await page.send("Accessibility.getFullAXTree"))["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"] and "role" in node
        ]

    heard = visit(port, folder / "healthy.html", look)
    roles = [role for role, _ in heard]
    assert {"banner", "navigation", "main", "contentinfo", "table"} <= set(roles)
