"""HTTP servers in this process."""

import contextlib
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Server(http.server.ThreadingHTTPServer):
    """Ignores clients that hang up or are killed: tests do both."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        pass

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Says nothing, and keeps connections open."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, data: bytes = b"", **headers: str) -> None:
        """Answer with *data*, and with *headers*, whose names have ``_`` for ``-``."""
        self.send_response(status)
        for name, value in {"Content_Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def asked_part(self, size: int) -> tuple[int, int] | None:
        """Return where the range of *size* bytes begins and ends that was asked for, if one was."""
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        return found and (int(found[1]), min(size, int(found[2] or size) + 1))


@contextlib.contextmanager
def serving(handler: Callable[..., Any], **state: Any) -> Iterator[Server]:
    """Serve by *handler* on the loopback interface inside the block; *state* are attributes of the server."""
    with Server(("127.0.0.1", 0), handler) as server:
        vars(server).update(state)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
