"""A hub on the loopback interface: models out of folders, by the addresses that huggingface.co answers."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class HubServer:
    """The models of the server, and what it was asked.

    Attributes:
        models: folders by repository.
        gated: repositories that need the token.
        token: the token.
        whole: answer ranges with whole files.
        elsewhere: root of another server that files are redirected to.
        sent: bytes of bodies.
        asked: paths, with the token that came.
    """

    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_secret"  # noqa: S105
    whole: bool = False
    elsewhere: str = ""
    sent: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    """Serve a hub inside the block."""
    state = HubServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            token = self.headers.get("Authorization", "")
            state.asked.append((path, token))
            listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path)
            held = re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{COMMIT}/(.+)", path)
            name = (listed or held or [None, ""])[1]
            if name not in state.models or (listed and listed[2] not in {"main", "v2"}):
                self._answer(404, b"Repository not found")
            elif name in state.gated and held and token != f"Bearer {state.token}":
                self._answer(403, b"gated")
            elif listed:
                self._answer(200, json.dumps(_listed(state.models[name])).encode())
            elif state.elsewhere:
                self.send_response(302)
                self.send_header("Location", state.elsewhere + path)
                self.end_headers()
            else:
                assert held
                self._file(state.models[name] / held[2])

        def _file(self, path: Path) -> None:
            wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
            size = path.stat().st_size
            part = wanted is not None and not state.whole
            begin, end = (int(wanted[1]), int(wanted[2]) + 1) if wanted and part else (0, size)
            with path.open("rb") as stream:
                stream.seek(begin)
                # Of a whole file of gigabytes, a part is enough for a client that wants its beginning.
                self._answer(206 if part else 200, stream.read(min(end - begin, 4 << 20)))

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)
                state.sent += len(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def _listed(folder: Path) -> dict[str, object]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    siblings = [{"rfilename": str(path.relative_to(folder)), "size": path.stat().st_size} for path in files]
    return {"id": "org/m", "sha": COMMIT, "siblings": siblings}
