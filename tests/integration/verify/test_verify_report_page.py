"""The page in a real browser: it renders at every width and in every medium, and loads nothing."""

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import report_kit

from sparkwright.verify.report import render_html

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-port=0",
)

# The contrast of each piece of text with what is behind it (WCAG 2.2), where it is below 4.5.
FAINT = """(() => {
  const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = one => { for (; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (!/, 0\\)$/.test(colour) && colour.startsWith('rgb')) return colour; } return 'rgb(255, 255, 255)'; };
  const found = [];
  for (const one of document.querySelectorAll('body *:not(svg *)')) {
    const own = [...one.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !one.getClientRects().length) continue;
    const pair = [light(getComputedStyle(one).color), light(behind(one))].sort((a, b) => b - a);
    if ((pair[0] + 0.05) / (pair[1] + 0.05) < 4.5) found.push(one.textContent.slice(0, 40));
  }
  return found;
})()"""

# What makes the page scroll sideways.
SIDEWAYS = """(() => {
  const wide = document.documentElement.clientWidth;
  if (document.scrollingElement.scrollWidth <= wide) return [];
  return [...document.querySelectorAll('body *')].filter(one => one.getBoundingClientRect().right > wide + 1
    && !one.closest('.scroll, pre, nav')).map(one => `${one.tagName} ${one.textContent.slice(0, 30)}`);
})()"""


def find_browser() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.number = 0
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded = False

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        await self.socket.send_json({"id": self.number, "method": method, "params": parameters})
        while True:
            message = await self._receive()
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]

    async def _receive(self) -> dict[str, Any]:
        message = json.loads((await self.socket.receive(timeout=120)).data)
        said = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(said["request"]["url"])
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(said["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["exceptionDetails"]))
            case "Log.entryAdded":
                self.complaints.append(said["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"dialog: {said['message']}")
            case "Page.loadEventFired":
                self.loaded = True
        return message

    async def open(self, url: str) -> None:
        for room in ("Page", "Network", "Runtime", "Log"):
            await self.send(f"{room}.enable")
        self.loaded = False
        await self.send("Page.navigate", url=url)
        while not self.loaded:
            await self._receive()

    async def look(self, width: int, height: int = 900, *, dark: bool = False, paper: bool = False) -> None:
        """Set the window's size, the colour scheme and the medium."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", media="print" if paper else "screen", features=[scheme])

    async def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        said = await self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def print(self) -> bytes:
        """Return the page on paper (PDF)."""
        await self.send("Emulation.setEmulatedMedia", media="", features=[])
        said = await self.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(said["data"])


@contextlib.contextmanager
def running_browser() -> Iterator[int]:
    """Yield a browser of its own for the length of the block: the port that it listens on."""
    path = find_browser()
    assert path
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = subprocess.Popen([path, *FLAGS, f"--user-data-dir={home}", "about:blank"], **silent)
        try:
            yield _port(Path(home, "DevToolsActivePort"), running)
        finally:
            running.terminate()
            running.wait(timeout=60)


def _port(file: Path, running: subprocess.Popen[bytes]) -> int:
    for _ in range(1200):
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        assert running.poll() is None, "the browser ended"
        time.sleep(0.05)
    raise AssertionError("the browser did not open its port")


@contextlib.asynccontextmanager
async def open_page(port: int, url: str) -> AsyncIterator[Page]:
    """Yield the browser's tab with *url* in it."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            tab = next(one for one in await answer.json() if one["type"] == "page")
        async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            page = Page(socket)
            await page.open(url)
            yield page


def visit(port: int, file: Path, look: Callable[[Page], Awaitable[Any]]) -> Any:
    """Open *file*, and return what *look* gives; the page must complain of nothing and load nothing else."""

    async def visiting() -> Any:
        async with open_page(port, file.as_uri()) as page:
            seen = await look(page)
            assert page.complaints == []
            assert [url for url in page.requests if not url.startswith("data:")] == [file.as_uri()]
            return seen

    return asyncio.run(visiting())


pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium here")

WIDTHS = (1600, 820, 390)

# Everything that is folded shows.
UNFOLD = "document.querySelectorAll('details').forEach(one => { one.open = true; })"


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
