"""Publishing a large file to each kind of target, and resolving over an index with many builds.

    python scripts/bench/publish.py upload [--mb 270] [--rounds 3]
    python scripts/bench/publish.py resolve [--builds 500] [--rounds 3]

`upload` takes turns: each round publishes a new file to a folder, to nginx and to moto's S3 server, and does
the obvious alternatives (`cp`, `curl -T`, boto3's ``upload_file``), which read nothing back. CPU seconds are
those of the client's process; servers run in processes of their own on the same machine.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import http.server
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from store_servers import s3_server

from sparkwright.publish.index import PublishedFile, all_pages

WHEEL = "files/vllm-0.24.0+spark.{}.aaaaaaaa-cp38-abi3-manylinux_2_28_aarch64.whl"
PUT = """
import sys
from pathlib import Path
from sparkwright.publish.places import open_target
open_target(sys.argv[1]).put_file(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
"""
BOTO = """
import sys, boto3
store = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1")
store.upload_file(sys.argv[2], "wheels", sys.argv[3])
"""
OPEN = """
import sys
from sparkwright.publish.places import open_target
open_target(sys.argv[1]).read("absent")
"""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"}


def timed(argv: list[str]) -> tuple[float, float]:
    """Run *argv*; return its seconds on the clock and its CPU seconds, its children's included."""
    before, started = os.times(), time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, **CREDENTIALS})
    wall, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, cpu


def upload(mb: int, rounds: int) -> None:
    """Print the medians of each kind of upload, all in turns."""
    figures: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="sparkwright-bench-") as name:
        scratch = Path(name)
        with s3_server() as s3:
            for number in range(rounds):
                file = scratch / "wheel"
                file.write_bytes(os.urandom(mb * 1_000_000))
                sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
                wheel = WHEEL.format(number)
                kinds = {
                    "folder": str(scratch / "folder"),
                    "S3 (moto)": f"s3://wheels/ours?endpoint={s3}",
                }
                for kind, address in kinds.items():
                    put = [sys.executable, "-c", PUT, address, wheel, str(file), sha256]
                    figures[kind].append(timed(put))
                    figures[f"{kind}, again"].append(timed(put))
                figures["cp"].append(timed(["cp", str(file), str(scratch / "copy")]))
                boto = [sys.executable, "-c", BOTO, s3, str(file), "theirs.whl"]
                figures["boto3 upload_file to S3"].append(timed(boto))
                opening = [sys.executable, "-c", OPEN, str(scratch)]
                figures["no upload: a folder is opened"].append(timed(opening))
    print(f"{mb} MB, {rounds} rounds; median (least to most)")
    for kind, pairs in figures.items():
        wall, cpu = ([pair[n] for pair in pairs] for n in (0, 1))
        print(f"{kind:34} wall {spread(wall)}   CPU {spread(cpu)}")


def spread(values: list[float]) -> str:
    """Return median and range, seconds."""
    return f"{statistics.median(values):6.2f} s ({min(values):.2f} to {max(values):.2f})"


# Resolution ---------------------------------------------------------------------------------------------


class CountingServer(http.server.ThreadingHTTPServer):
    """Serves pages from memory, and counts what it sends."""

    daemon_threads = True
    sent: int
    requests: int

    def __init__(self, pages: dict[str, bytes], *, zipped: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.pages, self.zipped = pages, zipped
        self.sent = self.requests = 0


class _Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CountingServer

    def do_GET(self) -> None:
        path = self.path + ("index.html" if self.path.endswith("/") else "")
        data = self.server.pages.get(path, b"")
        self.send_response(200 if data else 404)
        if self.server.zipped and data and "gzip" in self.headers.get("Accept-Encoding", ""):
            data = gzip.compress(data, 6)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.server.sent += len(data)
        self.server.requests += 1

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


def index_of(builds: int) -> dict[str, bytes]:
    """Return the pages and metadata of an index with *builds* wheels, by path."""
    files, pages = [], {}
    for number in range(1, builds + 1):
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        version = f"0.24.0+spark.{number}.{digest[:8]}"
        name = f"vllm-{version}-cp38-abi3-manylinux_2_28_aarch64.whl"
        requires = "".join(f"Requires-Dist: dependency-{n}>={n}\n" for n in range(80))
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n{requires}\n".encode()
        pages["/" + name.replace("+", "%2B") + ".metadata"] = metadata
        files.append(
            PublishedFile(
                project="vllm", version=version, filename=name, sha256=digest, size=270_000_000,
                requires_python=">=3.10", metadata_sha256=hashlib.sha256(metadata).hexdigest(),
            )
        )  # fmt: skip
    return pages | {f"/simple/{path}": page for path, page in all_pages(files).items()}


def resolve(builds: int, rounds: int) -> None:
    """Print time, requests and bytes of a resolution without a pin, with one build and with *builds*."""
    platform = ("--python-platform", "aarch64-manylinux_2_28")
    uv = [sys.executable, "-m", "uv", "pip", "compile", "-", "--no-deps", "--no-cache", "--quiet"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--no-deps"]
    pip += ["--no-cache-dir", "--quiet", "--target", "/nonexistent", "--only-binary", ":all:"]
    pip += ["--platform", "manylinux_2_28_aarch64", "--report", "-"]
    clients = {"uv": [*uv, *platform], "pip": [*pip, "vllm"]}
    for count in (1, builds):
        for zipped in (False, True):
            server = CountingServer(index_of(count), zipped=zipped)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for client, argv in clients.items():
                server.sent = server.requests = 0
                url = f"http://127.0.0.1:{server.server_port}/simple/"
                pairs = [
                    resolved([*argv, "--index-url", url], f"0.24.0+spark.{count}.") for _ in range(rounds)
                ]
                wall, cpu = ([pair[n] for pair in pairs] for n in (0, 1))
                print(f"{count:4} builds{', gzip' if zipped else '':5} {client:4}", end=" ")
                print(f"wall {spread(wall)}   CPU {spread(cpu)}", end="   ")
                print(f"{server.requests / rounds:.0f} requests, {server.sent / rounds / 1000:.1f} kB")
            server.shutdown()


def resolved(argv: list[str], newest: str) -> tuple[float, float]:
    """Run the client *argv*, which has to choose *newest*; return seconds on the clock and of CPU."""
    environment = {"PIP_CONFIG_FILE": os.devnull, "PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(argv, input="vllm", text=True, capture_output=True, check=False, env=environment)
    wall, after = time.perf_counter() - started, os.times()
    if done.returncode or newest not in done.stdout:
        raise SystemExit(f"{argv[2]} did not take {newest}: {done.stderr}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, cpu


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["upload", "resolve"])
    parser.add_argument("--mb", type=int, default=270)
    parser.add_argument("--builds", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.what == "upload":
        upload(options.mb, options.rounds)
    else:
        resolve(options.builds, options.rounds)


if __name__ == "__main__":
    main()
