"""The servers that `scaling.py` starts: an HTTP server for a shared store, and a scheduler with workers."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from scaling_parts import Packed, open_packed

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS = 4
"""Compilers of one worker."""
_READY_S = 60


class Bazel(http.server.BaseHTTPRequestHandler):
    """GET, HEAD and PUT of objects in memory, which is the layout of Bazel's caches."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        """Answer with an object."""
        found = self.objects.get(self.path)
        self.send_response(200 if found is not None else 404)
        self.send_header("Content-Length", str(len(found or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(found or b"")

    do_HEAD = do_GET  # noqa: N815 - as the library names it

    def do_PUT(self) -> None:
        """Take an object."""
        self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(port: int) -> None:
    """Be the server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Bazel) as server:
        server.serve_forever()


def work(folder: Path, scratch: Path, scheduler: str) -> None:
    """Be a worker with the toolchain of *folder*, which has no packages to be fetched."""
    from sparkwright.cluster import compiling

    from sparkwright.cli.main import main as sparkwright

    chain = open_packed(folder, scratch).inputs.toolchain
    vars(compiling)["prepare_toolchain"] = lambda *_, **__: chain
    sys.exit(sparkwright(["worker", scheduler, "--jobs", str(SLOTS)]))


@contextlib.contextmanager
def started(*command: str, env: dict[str, str] | None = None) -> Iterator[None]:
    """Run *command* beside the block."""
    quiet = {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "error"}
    process = subprocess.Popen(command, env={**os.environ, **quiet, **(env or {})}, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(_READY_S)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def await_port(port: int) -> None:
    """Wait until something listens on *port*."""
    end = time.monotonic() + _READY_S
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}")


@contextlib.contextmanager
def bazel_server() -> Iterator[str]:
    """Give the address of an empty server, which is a process of its own."""
    port = free_port()
    with started(sys.executable, __file__, "serve", str(port)):
        await_port(port)
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def scheduler_with_workers(packed: Packed, number: int, url: str) -> Iterator[str]:
    """Give the address of a scheduler of Dask with *number* workers, each with an empty store."""
    from distributed import Client

    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    options = ("--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    with contextlib.ExitStack() as stack:
        stack.enter_context(started(sys.executable, "-m", "distributed.cli.dask_scheduler", *options))
        await_port(port)
        for one in range(number):
            home = packed.scratch / "workers" / str(one)
            env = {
                "SPARKWRIGHT_HOME": str(home),
                "SPARKWRIGHT_STORE_URL": url,
                "SPARKWRIGHT_STORE_KEY": str(packed.scratch / "key.pem"),
            }
            words = (str(packed.folder), str(packed.scratch), address)
            stack.enter_context(started(sys.executable, __file__, "work", *words, env=env))
        with Client(address) as client:  # type: ignore[no-untyped-call]
            client.wait_for_workers(number, timeout=_READY_S)
        yield address


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        work(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
