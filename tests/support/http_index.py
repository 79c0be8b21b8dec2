"""A package index on the loopback interface, with faults that tests plant."""

import contextlib
import hashlib
import json
import random
import threading
import time
from dataclasses import dataclass, field

from http_server import Handler, serving

NAME = "vllm-1.0.tar.gz"
DATA = random.Random(1).randbytes(700_000)


@dataclass
class Fault:
    """A fault in one answer to a request for a file.

    Attributes:
        status: answer with this status and nothing else.
        drop_after: close the connection after that many bytes of the body.
        ignore_range: answer 200 with the whole file.
        shift_range: answer 206, but from that many bytes further on.
        flip: answer with other bytes of the same length.
        longer: state no length and send that many bytes too many.
        silence_s: wait that long before the body.
        pause_s: wait that long after each 64 KiB.
        drip_s: send one byte at a time, and wait that long after each.
        until: hold the body back until this event is set, at most a minute.
        redirect: answer 302 with that address.
    """

    status: int = 0
    drop_after: int | None = None
    ignore_range: bool = False
    shift_range: int = 0
    flip: bool = False
    longer: int = 0
    silence_s: float = 0
    pause_s: float = 0
    drip_s: float = 0
    until: threading.Event | None = None
    redirect: str = ""


@dataclass
class Index:
    """The files and planted faults of the server, and the requests that it got.

    Attributes:
        addresses: where a file is to be had, by its name, if not here.
        page_drip_s: send pages one byte at a time, and wait that long after each.
        page_bytes: state that size of pages and send nothing of them.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    digests: dict[str, str | None] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    page_faults: list[int] = field(default_factory=list)
    page_drip_s: float = 0
    page_bytes: int = 0
    addresses: dict[str, str] = field(default_factory=dict)
    json: bool = False
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def add(self, filename: str, data: bytes) -> str:
        """Offer a file; returns its digest."""
        self.files[filename] = data
        self.digests[filename] = hashlib.sha256(data).hexdigest()
        return self.digests[filename]

    @property
    def downloads(self) -> list[str | None]:
        """The Range header of each GET for a file."""
        return [ranged for method, path, ranged in self.requests if method == "GET" and "/files/" in path]


class _Handler(Handler):
    @property
    def index(self) -> Index:
        return self.server.index

    def do_GET(self):  # noqa: N802
        self.index.requests.append((self.command, self.path, self.headers.get("Range")))
        if self.path.startswith("/simple/"):
            self.page(self.path.removeprefix("/simple/").strip("/"))
        else:
            self.file(self.path.removeprefix("/files/"))

    do_HEAD = do_GET  # noqa: N815 - as http.server calls it

    def page(self, project):
        if self.index.page_faults:
            self.reply(self.index.page_faults.pop(0))
            return
        names = [name for name in self.index.files if name.replace("_", "-").startswith(project + "-")]
        if not names:
            self.reply(404, b"no such project")
        elif self.index.json:
            listed = [
                {
                    "filename": name,
                    "url": self.address(name),
                    "hashes": {"sha256": self.index.digests[name]} if self.index.digests[name] else {},
                    "size": len(self.index.files[name]),
                }
                for name in names
            ]
            page = {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": listed}
            self.listing(json.dumps(page).encode(), "application/vnd.pypi.simple.v1+json")
        else:
            links = (
                f'<a href="{self.address(name)}{"#sha256=" + digest if digest else ""}">{name}</a>'
                for name in names
                for digest in [self.index.digests[name]]
            )
            self.listing(("<!DOCTYPE html>" + "\n".join(links)).encode(), "text/html")

    def address(self, name):
        return self.index.addresses.get(name, f"../../files/{name}")

    def listing(self, data, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(self.index.page_bytes or len(data)))
        self.end_headers()
        if not self.index.page_bytes and self.command != "HEAD":
            self.drip(data, self.index.page_drip_s)

    def drip(self, data, pause_s):
        if not pause_s:
            self.wfile.write(data)
            return
        for byte in data:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(pause_s)

    def file(self, name):
        body = self.command != "HEAD"
        fault = self.index.faults.pop(0) if self.index.faults and body else Fault()
        data = self.index.files.get(name)
        if fault.redirect:
            self.reply(302, Location=fault.redirect)
            return
        if fault.status or data is None:
            self.reply(fault.status or 404)
            return
        part = None if fault.ignore_range else self.asked_part(len(data))
        start, end = part or (0, len(data))
        if part:
            start += fault.shift_range
            if start >= len(data):
                self.reply(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        rest = bytes(255 - byte for byte in data[start:end]) if fault.flip else data[start:end]
        if fault.longer:
            rest += b"x" * fault.longer
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if body:
            self.send_body(rest, fault)

    def send_body(self, rest, fault):
        time.sleep(fault.silence_s)
        if fault.until is not None:
            fault.until.wait(timeout=60)
        if fault.drop_after is not None:
            rest = rest[: fault.drop_after]
        if fault.drip_s:
            self.drip(rest, fault.drip_s)
            return
        for offset in range(0, len(rest), 1 << 16):
            self.wfile.write(rest[offset : offset + (1 << 16)])
            self.wfile.flush()
            time.sleep(fault.pause_s)
        if fault.drop_after is not None or fault.longer:
            self.close_connection = True


class RunningIndex:
    """Serves an `Index` for the length of a ``with`` block."""

    def __enter__(self) -> Index:
        self.stack = contextlib.ExitStack()
        index = Index()
        index.url = f"{self.stack.enter_context(serving(_Handler, index=index)).url}/simple/"
        return index

    def __exit__(self, *_) -> None:
        self.stack.close()
