"""A hub on the loopback interface: models out of folders, by the addresses that huggingface.co answers."""

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from http_server import Handler, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubServer:
    """The models of the server, and what it was asked.

    Attributes:
        models: folders by repository.
        gated: repositories that need the token.
        token: the token.
        whole: answer ranges with whole files.
        elsewhere: root of another server that files are redirected to.
        slow: end of the paths whose files are sent at a MiB in a second.
        sent: bytes of bodies.
        asked: paths, with the token that came.
    """

    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_secret"  # noqa: S105
    whole: bool = False
    elsewhere: str = ""
    slow: str = ""
    sent: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:  # noqa: C901 - one branch for each address
    """Serve a hub inside the block."""
    state = HubServer()

    class Answering(Handler):
        def do_GET(self) -> None:  # noqa: N802
            path = urlsplit(self.path).path
            token = self.headers.get("Authorization", "")
            state.asked.append((path, token))
            listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path)
            tree = re.fullmatch(rf"/api/models/([^/]+/[^/]+)/tree/(?:main|{COMMIT})", path)
            held = re.fullmatch(rf"/([^/]+/[^/]+)/resolve/(?:main|{COMMIT})/(.+)", path)
            name = (listed or tree or held or [None, ""])[1]
            if name not in state.models or (listed and listed[2] not in {"main", "v2"}):
                known = any(f"/{one}/" in path for one in state.models)
                self._answer(404, b"not found", {"X-Error-Code": f"{'Entry' if known else 'Repo'}NotFound"})
            elif name in state.gated and held and token != f"Bearer {state.token}":
                self._answer(403, b"gated", {"X-Error-Code": "GatedRepo"})
            elif listed:
                self._answer(200, json.dumps(_listed(state.models[name])).encode())
            elif tree:
                self._answer(200, json.dumps(_tree(state.models[name])).encode())
            elif state.elsewhere:
                self.reply(302, Location=state.elsewhere + path)
            else:
                assert held
                path = state.models[name] / held[2]
                self._file(path) if path.is_file() else self._answer(
                    404, b"Entry not found", {"X-Error-Code": "EntryNotFound"}
                )

        do_HEAD = do_GET  # noqa: N815 - as http.server calls it

        def _file(self, path: Path) -> None:
            facts = {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": COMMIT}
            size = path.stat().st_size
            part = None if state.whole else self.asked_part(size)
            begin, end = part or (0, size)
            if part and begin >= size:
                self._answer(416, b"no such range", facts)
                return
            with path.open("rb") as stream:
                stream.seek(begin)
                # Of a whole file of gigabytes, a part is enough for a client that wants its beginning.
                self._answer(206 if part else 200, stream.read(min(end - begin, 4 << 20)), facts)

        def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            with contextlib.suppress(OSError):
                for begin in range(0, len(body), 1 << 16):
                    self.wfile.write(body[begin : begin + (1 << 16)])
                    state.sent += len(body[begin : begin + (1 << 16)])
                    if state.slow and self.path.endswith(state.slow):
                        time.sleep(1 / 16)

    with serving(Answering) as server:
        state.url = server.url
        yield state


def _listed(folder: Path) -> dict[str, object]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    siblings = [{"rfilename": str(path.relative_to(folder)), "size": path.stat().st_size} for path in files]
    return {"id": "org/m", "sha": COMMIT, "siblings": siblings}


def _tree(folder: Path) -> list[dict[str, object]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [
        {
            "type": "file",
            "oid": _digest(path),
            "size": path.stat().st_size,
            "path": str(path.relative_to(folder)),
        }
        for path in files
    ]


def _digest(path: Path) -> str:
    return hashlib.sha1(f"{path}{path.stat().st_size}".encode(), usedforsecurity=False).hexdigest()
