"""Servers for the store's remote tier: nginx and S3 in their own process, and one that misbehaves."""

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests
from http_server import Handler, serving

from sparkwright.base.machine import free_port

_CONFIGURATION = """\
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/bodies;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      root {folder}/objects;
      dav_methods PUT;
      create_full_put_path on;
      client_max_body_size {most};
      {authorization}
    }}
  }}
}}
"""


@contextlib.contextmanager
def nginx_store(folder: Path, *, user: str = "", password: str = "", most: str = "1g") -> Iterator[str]:
    """Give the address of a WebDAV server over ``objects/`` in *folder*; skip where nginx is missing."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    (folder / "objects").mkdir(parents=True, exist_ok=True)
    (folder / "objects").chmod(0o777)
    authorization = ""
    if user:
        (folder / "users").write_text(f"{user}:{{PLAIN}}{password}\n")
        authorization = f"auth_basic store; auth_basic_user_file {folder}/users;"
    port = free_port()
    (folder / "nginx.conf").write_text(
        _CONFIGURATION.format(folder=folder, port=port, authorization=authorization, most=most)
    )
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with _running(command, f"http://127.0.0.1:{port}") as address:
        yield address


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Give the endpoint of moto's S3 server, with the bucket ``wheels``; skip where moto is missing."""
    pytest.importorskip("moto")
    port = free_port()
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("s3_process.py")), str(port)]
    with _running(command, f"http://127.0.0.1:{port}") as address:
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}
        requests.put(f"{address}/wheels", headers=signed, timeout=30).raise_for_status()
        yield address


@contextlib.contextmanager
def _running(command: list[str], address: str) -> Iterator[str]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(requests.ConnectionError):
                requests.head(address, timeout=30)
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: status {process.poll()}")
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(30)


@dataclass
class Misbehaviour:
    """A fault in every answer of a method.

    Attributes:
        status: answer with this status and nothing else.
        body: answer with these bytes, whatever was asked for.
        cut: end after that many bytes, though the header says more.
        endless: never end the body.
        hang: answer nothing before the server stops.
        drip_s: send one byte at a time, and wait that long after each.
        redirect: answer 302 with that address.
        times: how many answers to spoil; the later ones are right. All by default.
    """

    status: int = 0
    body: bytes | None = None
    cut: int | None = None
    endless: bool = False
    hang: bool = False
    drip_s: float = 0
    redirect: str = ""
    times: int = 1 << 30


@dataclass
class HostileStore:
    """A server of objects in memory, how it misbehaves by method, and what it was asked.

    Attributes:
        hold: while it is cleared, no PUT is answered.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, Misbehaviour] = field(default_factory=dict)
    requests: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.hold.set()

    def asked(self, method: str) -> list[str]:
        """Return the places that were asked for by *method*."""
        return [place for name, place, _ in self.requests if name == method]


@contextlib.contextmanager
def hostile_store() -> Iterator[HostileStore]:
    """Give a server that does right until it is told otherwise."""
    state = HostileStore()

    with serving(type("Stored", (_Handler,), {"store": state})) as server:
        state.url = f"{server.url}/base"
        try:
            yield state
        finally:
            state.ended.set()
            state.hold.set()


class _Handler(Handler):
    store: HostileStore

    def do_GET(self) -> None:  # noqa: N802
        fault = self._noted()
        data = self.store.objects.get(self._place)
        if fault is not None:
            self._spoil(fault, data or b"nothing")
        elif data is None:
            self.reply(404)
        else:
            self.reply(200, data)

    do_HEAD = do_GET  # noqa: N815 - as http.server calls it

    def do_PUT(self) -> None:  # noqa: N802
        data = self.rfile.read(int(self.headers["Content-Length"]))
        fault = self._noted()
        self.store.hold.wait(60)
        if fault is not None:
            self._spoil(fault, b"")
            return
        self.store.objects[self._place] = data
        self.reply(201)

    @property
    def _place(self) -> str:
        return self.path.removeprefix("/base/")

    def _noted(self) -> Misbehaviour | None:
        self.store.requests.append((self.command, self._place, dict(self.headers)))
        fault = self.store.faults.get(self.command)
        if fault is None or fault.times <= 0:
            return None
        fault.times -= 1
        return fault

    def _spoil(self, fault: Misbehaviour, data: bytes) -> None:
        self.close_connection = True
        with contextlib.suppress(ConnectionError):
            if fault.hang:
                self.store.ended.wait(60)
            elif fault.redirect:
                self.reply(302, Location=fault.redirect)
            elif fault.status:
                self.reply(fault.status)
            elif fault.body is not None:
                self.reply(200, fault.body)
            else:
                self._stream(fault, data)

    def _stream(self, fault: Misbehaviour, data: bytes) -> None:
        self.send_response(200)
        if not fault.endless:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault.cut is not None:
            self.wfile.write(data[: fault.cut])
        while fault.endless and not self.store.ended.is_set():
            self.wfile.write(bytes(1 << 16))
        for byte in data if fault.drip_s else b"":
            self.wfile.write(bytes([byte]))
            if self.store.ended.wait(fault.drip_s):
                break
