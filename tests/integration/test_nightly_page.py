"""A night's page in a real browser: it can be read at every width and in every medium, and loads nothing."""

from collections.abc import Iterator
from pathlib import Path

import night_kit
import pytest
from browser import FAINT, SIDEWAYS, Page, find_browser, running_browser, visit

from sparkwright.nightly.report import render_html

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium here")

WIDTHS = (1280, 820, 390)
UPSTREAM = "https://github.com/vllm-project/vllm.git"

# Strips of nights that are drawn, with the number of their bars that have an area and a colour of their own.
STRIPS = """[...document.querySelectorAll('svg.strip')].map(one =>
 [...one.querySelectorAll('rect')].filter(bar => {
  const box = bar.getBoundingClientRect();
  return box.width > 2 && box.height > 2 && !['none', 'rgb(0, 0, 0)'].includes(getComputedStyle(bar).fill);
}).length)"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running_browser() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("nights")
    for name in ("eventful", "hostile"):
        page = render_html(getattr(night_kit, name)(), upstream=UPSTREAM, proposals=[night_kit.EVIL])
        (made / f"{name}.html").write_text(page)
    return made


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["eventful", "hostile"])
def test_nothing_makes_the_page_scroll_sideways(port: int, folder: Path, name: str, width: int) -> None:
    async def look(page: Page) -> None:
        await page.look(width)
        assert await page.ask(SIDEWAYS) == []

    visit(port, folder / f"{name}.html", look)


@pytest.mark.parametrize("medium", ["light", "dark", "paper"])
def test_every_text_stands_out_from_what_is_behind_it(port: int, folder: Path, medium: str) -> None:
    async def look(page: Page) -> None:
        await page.look(1280, dark=medium == "dark", paper=medium == "paper")
        assert await page.ask(FAINT) == []

    visit(port, folder / "eventful.html", look)


def test_strips_are_drawn(port: int, folder: Path) -> None:
    async def look(page: Page) -> None:
        drawn = await page.ask(STRIPS)
        told = [
            min(len(carry.history), 30) for found in night_kit.eventful().targets for carry in found.carries
        ]
        assert drawn == told
        assert max(told) == 30

    visit(port, folder / "eventful.html", look)


def test_it_prints(port: int, folder: Path) -> None:
    async def look(page: Page) -> None:
        assert (await page.print()).startswith(b"%PDF")

    visit(port, folder / "eventful.html", look)
