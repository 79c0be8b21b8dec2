"""A folder on a plain static server in this process."""

import functools
import http.server
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from http_server import serving


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers with files, and notes what was asked for; tests derive servers that misbehave."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.answer()

    def answer(self) -> None:
        super().do_GET()


@contextmanager
def served(folder: Path, handler: type[Handler] = Handler) -> Iterator[tuple[str, list[str]]]:
    """Give the address of *folder*, and the list of paths that it was asked for."""
    asked: list[str] = []
    with serving(functools.partial(handler, directory=str(folder)), asked=asked) as server:
        yield server.url, asked
